"""Compile each program for the CPU once per test run, for all workers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from autotune.api.device_names import binary_cache
from autotune.compilation.compile import Binary, Program, Target
from autotune.devices.host import HostDevice, HostOptions
from autotune.devices.host_compile import HostCompiler, runtime_program
from autotune.exporting import Exported
from autotune.exporting.build import Built, build_for_host

HOST = Target("host")


def compiled(program: Program, target: Target = HOST, *, cxx: str) -> Binary:
    """A program, from the cache that runs of `autotune` also use."""
    return _compiler(cxx)(program, target)


def host_device(cxx: str, options: HostOptions | None = None) -> HostDevice:
    """A host device in this process, with a cached runtime."""
    return HostDevice(cxx, options, compiled(runtime_program(), cxx=cxx))


def built_for_host(exported: Exported, into: Path, *, cxx: str) -> Built:
    """An exported library on the host device, in a folder that is created if needed."""
    into.mkdir(exist_ok=True)
    return build_for_host(exported, into, cxx=Path(cxx), cache=binary_cache())


@cache
def _compiler(cxx: str) -> HostCompiler:
    return HostCompiler(cxx, binary_cache())
