"""Devices and their compilers by name: the only module that knows all backends."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.compilation.compile import NVCC_FLAGS, Binary, Program, Target
from autotune.compilation.toolchain import compiler_version, find_cxx, find_nvcc
from autotune.devices import host_compile
from autotune.errors import DeviceError, shortened

if TYPE_CHECKING:  # compiler processes need neither a device nor NumPy
    from autotune.devices.device import Device

KINDS = ("cuda", "host", "null", "replay")
"""kinds of devices, the first part of their names; `device.ABILITIES` lists their abilities"""
CHECK_ORDER_SEED = 20  # of the random orders of host:check


def parse_device(name: str) -> tuple[str, str]:
    """A device's name as kind and the rest: `cuda:1` is ('cuda', '1'). Raises DeviceError for an unknown kind."""
    kind, _, rest = name.partition(":")
    if kind not in KINDS or (kind == "host" and rest not in ("", "check")):
        shown = shortened(name) or repr(name)
        raise DeviceError(f"{shown}: no such device; there are cuda:N, host, host:check, null and replay:FILE")
    if kind == "replay" and not rest:
        raise DeviceError(f"{name}: expected replay:FILE with FILE a results database")
    if kind == "cuda" and rest and not rest.isdecimal():
        raise DeviceError(f"{shortened(name)}: expected cuda:N with N a number, such as cuda:0")
    return kind, rest


def runtime_program(kind: str) -> Program | None:
    """The program that a process needs before it runs kernels on this kind of device, for Target(kind);
    None if none.
    """
    if kind != "host":
        return None
    return host_compile.runtime_program()


def worker_environ(name: str) -> Mapping[str, str]:
    """The environment variables for a process that opens the device: `host:check` preloads a sanitizer."""
    if parse_device(name) == ("host", "check"):
        return host_compile.check_environment(str(find_cxx()))
    return {}


def open_device(name: str, runtime: Binary | None = None) -> Device:
    """Open `cuda:N` or `host`, with its compiled `runtime_program`, which is compiled here if none is given.

    Raises DeviceError if the device does not exist or has no driver.
    """
    kind, rest = parse_device(name)
    if kind == "cuda":
        from autotune.devices.cuda.pycuda_import import require_pycuda

        number = int(rest or 0)
        require_pycuda(number)
        from autotune.devices.cuda.cuda_device import CudaDevice

        return CudaDevice(number)
    if kind == "host":
        from autotune.devices.host import HostDevice, HostOptions
        from autotune.devices.host_machine import usable_cores

        options = HostOptions(cores=usable_cores())
        if rest == "check":
            options = replace(options, order="threads", order_seed=CHECK_ORDER_SEED, checked=True)
        return HostDevice(str(find_cxx()), options, runtime)
    raise DeviceError(f"{name}: runs no kernels")


def compiler_identity(target: Target) -> str:
    """Everything that affects a binary besides program and target: compiler, version, flags, and the CPU if it matters.

    Raises ToolchainError if there is no compiler.
    """
    if target.kind == "cuda":
        return f"{compiler_version(find_nvcc())} {' '.join(NVCC_FLAGS)}"
    return host_compile.host_identity(str(find_cxx()))


def load_compiler(kind: str) -> None:
    """Import the modules that `compile_program` needs for a kind of device, before the first program."""
    if kind == "cuda":
        importlib.import_module("autotune.devices.cuda.cuda_compile")


def compile_program(program: Program, target: Target) -> Binary:
    """Compile for a target with the compiler that its kind of device uses.

    Raises Rejected('compile', ...) for the program's own fault and ToolchainError when there is no compiler.
    """
    if target.kind == "cuda":
        from autotune.devices.cuda.cuda_compile import compile_cuda

        return compile_cuda(program, target.arch)
    return host_compile.compile_host(program, target, cxx=str(find_cxx()))
