"""Build an exported folder from nothing but its files, in another folder: with nvcc, or for the CPU on the host
device.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.compilation.cache import BinaryCache
from autotune.compilation.compile import (
    Binary,
    Program,
    Target,
    first_errors,
    killed,
)
from autotune.compilation.nvrtc import compile_by_nvrtc, find_nvrtc
from autotune.compilation.toolchain import find_cxx
from autotune.devices.device import DeviceInfo
from autotune.devices.driver_api import driver_here
from autotune.devices.host_compile import DRIVER_NAME, RUNTIME_NAME, HostCompiler, driver_program, runtime_program
from autotune.devices.host_machine import usable_cores
from autotune.errors import AutotuneError, Rejected
from autotune.exporting.exporter import Exported
from autotune.exporting.kernel import DEPENDENT, NVCC_FLAGS, SelectedKernel, gencode

SELF_TEST = "selftest"
SELF_TEST_S = 600.0  # enough for a large layer on a busy CPU
_OF_THE_MACHINE = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_FOR_CUDA = ("-O2", "-O2")  # optimisation of the library and of its self-test, as in the exported README
_UNUSED = ("-O0", "-O0")  # if they are not run, only to see whether they build
_FOR_HOST = ("-O0", "-O1")  # for the host device: the self-test is as fast, and compiles in half of the time


class BuildError(AutotuneError):
    """An exported folder can't be built."""


@dataclass(frozen=True, slots=True)
class Built:
    """The library and programs built from a folder."""

    folder: Path
    library: Path
    """the shared library"""
    environment: Mapping[str, str]
    """environment variables for running the programs"""


def build_for_cuda(exported: Exported, into: Path, *, nvcc: Path, cxx: Path, run: bool = True) -> Built:
    """Compile the kernels with nvcc and the rest with a C++ compiler, without optimisation unless `run` is set.

    Raises BuildError with the first errors.
    """

    def compiled(kernel: SelectedKernel) -> None:
        codes = gencode(exported.archs, kernel.source.program.text)
        name = f"{kernel.stem}.cu"
        shutil.copyfile(exported.folder / name, into / name)  # nvcc passes the full path, links resolved, to a shell
        options = [*NVCC_FLAGS, *codes, "-fatbin", "-o", str(into / f"{kernel.stem}.fatbin")]
        _run([str(nvcc), *options, f"./{name}"], into)  # `./`, because the name may begin like an option

    _each(compiled, exported)
    return Built(into, _link(exported, into, cxx, _FOR_CUDA if run else _UNUSED), clean())


def build_for_host(exported: Exported, into: Path, *, cxx: Path, cache: BinaryCache | None = None) -> Built:
    """Build the library for the host device: each kernel as C++, and a libcuda.so.1 that runs kernels on the CPU.

    Cached kernels and host-device libraries aren't compiled again. Raises Rejected('compile', ...) if a kernel uses
    something that the host device doesn't support.
    """

    def compiled(kernel: SelectedKernel) -> None:
        text = (exported.folder / f"{kernel.stem}.cu").read_text(encoding="utf-8")
        program = replace(kernel.source.program, text=text)
        (into / f"{kernel.stem}.fatbin").write_bytes(compiler(program).image)

    compiler = HostCompiler(str(cxx), cache)
    _each(compiled, exported)
    for name, program in ((RUNTIME_NAME, runtime_program()), (DRIVER_NAME, driver_program())):
        (into / name).write_bytes(compiler.own(program).image)
    library = _link(exported, into, cxx, _FOR_HOST)
    environment = clean()
    libraries = [str(into), environment.get("LD_LIBRARY_PATH", "")]  # may have the compiler's C++ library
    return Built(into, library, {**environment, "LD_LIBRARY_PATH": ":".join(filter(None, libraries))})


def _each(compiled: Callable[[SelectedKernel], None], exported: Exported) -> None:
    """Compile the kernels in parallel, one per core. Raises the first error."""
    with ThreadPoolExecutor(usable_cores()) as threads:
        list(threads.map(compiled, exported.served))


Compile = Callable[[Program], Binary]


def compile_for(device: DeviceInfo, cache: BinaryCache) -> Compile:
    """Return a caching compiler of exported kernels for one device. Raises ToolchainError if there is none."""
    if device.can.cpu:
        return HostCompiler(str(find_cxx()), cache)
    driver, target = driver_here(), Target("cuda", device.arch)
    newest = int(driver.cuda.split(".")[0]) if driver else 0
    nvrtc = find_nvrtc(newest=newest or None)

    def compiled(program: Program) -> Binary:
        program = replace(program, flags=(*program.flags, DEPENDENT))
        key = BinaryCache.key(program, target, nvrtc.version)
        return cache.kept(key, lambda: compile_by_nvrtc(program, target.arch, nvrtc))

    return compiled


def compile_kernel(kernel: SelectedKernel, compiled: Compile) -> Binary | str:
    """Compile a kernel, and return its binary or the reason why that failed."""
    try:
        return compiled(kernel.source.program)
    except Rejected as rejected:
        return f"its kernel does not compile: {rejected.message}"


def self_test(built: Built, limit_s: float = SELF_TEST_S, kernels: Sequence[str] = ()) -> tuple[bool, str]:
    """Run the self-test for these kernels, or for all of them, in a separate process.

    Returns whether it passed, and its output.
    """
    try:
        done = subprocess.run(
            [str(built.folder / SELF_TEST), "0", *kernels],
            capture_output=True,
            text=True,
            check=False,
            cwd=built.folder,
            env=built.environment,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return False, f"the self-test did not end within {limit_s:g} s"
    words = f"{done.stdout}{done.stderr}".strip()
    if done.returncode < 0:
        words = f"{words}\nthe self-test was killed by {signal.Signals(-done.returncode).name}".strip()
    return done.returncode == 0, words or f"the self-test ended with status {done.returncode}"


def _link(exported: Exported, into: Path, cxx: Path, optimisations: tuple[str, str]) -> Path:
    """Build the library and its self-test, and return the library's path."""
    of_library, of_test = optimisations
    folder, name = exported.folder.resolve(), exported.operation.name
    library = into / f"lib{name}.so"
    own = ("-std=c++17", of_library, "-fPIC", "-fvisibility=hidden", f"-Wa,-I,{into}")
    units = (name, "kernels")

    def compiled(unit: str) -> None:
        _run([str(cxx), *own, "-c", "-o", str(into / f"{unit}.o"), str(folder / f"{unit}.cpp")], into)

    with ThreadPoolExecutor(len(units)) as threads:
        list(threads.map(compiled, units))
    script = ("-Xlinker", f"--version-script={folder / name}.map")  # -Wl, does not allow a comma in a path
    objects = [str(into / f"{unit}.o") for unit in units]
    _run([str(cxx), "-shared", *script, "-o", str(library), *objects, "-ldl"], into)
    libraries = (f"-L{into}", f"-l{name}", f"-Wl,-rpath,{into}", "-ldl", "-lpthread")
    source = str(folder / "selftest.cpp")
    _run([str(cxx), "-std=c++17", of_test, "-o", str(into / SELF_TEST), source, *libraries], into)
    return library


def _run(command: Sequence[str], folder: Path) -> None:
    """Run a compiler in `folder`. Its temporary files go there too, so they are removed even if it is killed."""
    environ = {**clean(), "TMPDIR": str(folder)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environ)
    except OSError as error:
        raise BuildError(f"{command[0]}: cannot be run: {error.strerror}") from None
    if done.returncode:
        words = killed(done.returncode) or first_errors(done.stdout + done.stderr, str(folder))
        raise BuildError(f"{Path(command[0]).name}: {words}")


def clean(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment without variables that configure Python or other settings of this process.

    The remaining variables describe where things are on this machine, and which GPU is the first.
    """
    return {name: environ[name] for name in _OF_THE_MACHINE if name in environ} | {"LC_ALL": "C"}
