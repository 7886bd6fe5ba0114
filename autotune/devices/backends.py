"""Open devices and load compilers by name. No other module knows all backends.

Modules are imported only when they are needed, because a process that compiles needs neither a device nor NumPy.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from autotune.compilation.compile import NVCC_FLAGS, Binary, Program, Target
from autotune.compilation.toolchain import compiler_version, find_cxx, find_nvcc
from autotune.devices import host_compile
from autotune.errors import DeviceError, shortened

if TYPE_CHECKING:
    from autotune.devices.device import Device

CHECK_ORDER_SEED = 20  # seed of the random orders of host:check


@dataclass(frozen=True, slots=True)
class Backend:
    """A kind of device that compiles and runs kernels: its names, and how to open it and compile for it."""

    open: Callable[[str, Binary | None], Device]
    """opens the device with a number or word; the second argument is the compiled `runtime`, or None to compile it now
    """
    compile: Callable[[Program, Target], Binary]
    """raises Rejected('compile', ...) for an error in the program, and ToolchainError if there is no compiler"""
    identity: Callable[[], str]
    """returns everything that affects a binary except program and target: compiler, version, flags and possibly the CPU
    """
    words: tuple[str, ...] | None = None
    """the words that may follow the kind and a colon; None: a number follows"""
    runtime: Callable[[], Program] | None = None
    """the program that a process needs before it runs kernels"""
    environ: Callable[[str], Mapping[str, str]] = lambda _: {}
    """the environment variables for a process that opens the device with this number or word"""
    compiler_module: str = ""
    """the module that `compile` imports"""


def _open_cuda(number: str, _runtime: Binary | None) -> Device:
    from autotune.devices.cuda.cuda_compile import require_pycuda

    require_pycuda(int(number or 0))
    from autotune.devices.cuda.cuda_device import CudaDevice

    return CudaDevice(int(number or 0))


def _compile_cuda(program: Program, target: Target) -> Binary:
    from autotune.devices.cuda.cuda_compile import compile_cuda

    return compile_cuda(program, target.arch)


def _open_host(word: str, runtime: Binary | None) -> Device:
    from autotune.devices.host import HostDevice, HostOptions
    from autotune.devices.host_machine import usable_cores

    options = HostOptions(cores=usable_cores())
    if word == "check":
        options = replace(options, order="threads", order_seed=CHECK_ORDER_SEED, checked=True)
    return HostDevice(str(find_cxx()), options, runtime)


BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {
        "cuda": Backend(
            open=_open_cuda,
            compile=_compile_cuda,
            identity=lambda: f"{compiler_version(find_nvcc())} {' '.join(NVCC_FLAGS)}",
            compiler_module="autotune.devices.cuda.cuda_compile",
        ),
        "host": Backend(
            open=_open_host,
            compile=lambda program, target: host_compile.compile_host(program, target, cxx=str(find_cxx())),
            identity=lambda: host_compile.host_identity(str(find_cxx())),
            words=("", "check"),
            runtime=host_compile.runtime_program,
            environ=lambda word: host_compile.check_environment(str(find_cxx())) if word == "check" else {},
        ),
    }
)
"""The backends by kind. `device.ABILITIES` has an entry for each of them too."""
KINDS = (*BACKENDS, "null", "replay")
"""Kinds of devices. A device's name begins with its kind."""


def parse_device(name: str) -> tuple[str, str]:
    """Split a device's name into kind and rest: `cuda:1` becomes ('cuda', '1'). Raises DeviceError if it is invalid."""
    kind, _, rest = name.partition(":")
    words = BACKENDS[kind].words if kind in BACKENDS else (rest,)
    if kind not in KINDS or (words is not None and rest not in words):
        shown = shortened(name) or repr(name)
        names = (f"{kind}:{word}".rstrip(":") for kind, each in BACKENDS.items() for word in each.words or ("N",))
        raise DeviceError(f"{shown}: no such device; the devices are {', '.join(names)}, null and replay:FILE")
    if kind == "replay" and not rest:
        raise DeviceError(f"{name}: expected replay:FILE with FILE a results database")
    if words is None and rest and not rest.isdecimal():
        raise DeviceError(f"{shortened(name)}: expected {kind}:N with N a number, such as {kind}:0")
    return kind, rest


def open_device(name: str, runtime: Binary | None = None) -> Device:
    """Open a device that runs kernels. Raises DeviceError if it doesn't exist or has no driver."""
    kind, rest = parse_device(name)
    if kind not in BACKENDS:
        raise DeviceError(f"{name}: runs no kernels")
    return BACKENDS[kind].open(rest, runtime)


def worker_environ(name: str) -> Mapping[str, str]:
    """Return the environment variables for a process that opens the device. `host:check` preloads a sanitizer."""
    kind, rest = parse_device(name)
    return BACKENDS[kind].environ(rest) if kind in BACKENDS else {}


def runtime_program(kind: str) -> Program | None:
    """Return the program, for Target(kind), that a process must load before it runs kernels on this kind of device.

    Returns None if there is no such program.
    """
    runtime = BACKENDS[kind].runtime if kind in BACKENDS else None
    return runtime() if runtime else None


def load_compiler(kind: str) -> None:
    """Import the module that compiles for a kind of device, so that the first program doesn't have to wait for it."""
    if kind in BACKENDS and (module := BACKENDS[kind].compiler_module):
        importlib.import_module(module)


def compiler_identity(target: Target) -> str:
    """Return everything that affects a binary apart from program and target.

    Raises ToolchainError if there is no compiler.
    """
    return BACKENDS[target.kind].identity()


def compile_program(program: Program, target: Target) -> Binary:
    """Compile a program for the target's kind of device. Raises Rejected and ToolchainError."""
    return BACKENDS[target.kind].compile(program, target)
