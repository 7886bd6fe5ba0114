"""Check that a family compiles for every architecture that its header admits. This needs nvcc, but no GPU."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from autotune.compilation.compile import compile_cubin
from autotune.compilation.toolchain import output_of
from autotune.devices.device import DeviceInfo
from autotune.errors import Rejected, ToolchainError
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate

SMEM_BYTES: Mapping[int, int] = {
    75: 65536,
    80: 166912,
    86: 101376,
    87: 166912,
    88: 101376,
    89: 101376,
    90: 232448,
    100: 232448,
    103: 232448,
    110: 232448,
    120: 101376,
    121: 101376,
}
"""Maximum shared memory of a block by architecture, bytes (CUDA C++ Programming Guide, compute capabilities)."""
_LISTED = re.compile(r"^sm_(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ArchResult:
    """The result of compiling a kernel for an architecture. `message` is the compiler's error, if there was one."""

    arch: int
    source: KernelSource
    message: str


class Architectures:
    """Compiles configs for the CUDA toolkit's architectures, several at once."""

    def __init__(self, nvcc: Path, jobs: int, *, each: bool) -> None:
        """With `each`, compile every config for every architecture instead of one after the other in turn."""
        self._nvcc, self._each = nvcc, each
        self._threads = ThreadPoolExecutor(jobs, thread_name_prefix="nvcc")
        self._turn = 0
        self._longest_s = 0.0
        """longest time of a compilation so far, seconds"""
        self.all = toolkit_architectures(nvcc)

    def submit(self, bound: BoundTemplate, source: KernelSource, left_s: float) -> list[Future[ArchResult]]:
        """Start compiling a config for all architectures that admit it, or just for the next one.

        Nothing is compiled if that would probably take longer than the remaining `left_s` seconds.
        """
        if self._longest_s > left_s:
            return []
        archs = self.all if self._each else self.all[self._turn :] + self.all[: self._turn]
        return [self._threads.submit(self._compile, own) for own in self._admitted(bound, source, archs)]

    def _admitted(
        self, bound: BoundTemplate, source: KernelSource, archs: tuple[int, ...]
    ) -> Iterator[tuple[int, KernelSource]]:
        for arch in archs:
            other = BoundTemplate(bound.template, bound.problem, device_of(arch))
            if not other.supported:
                continue
            try:
                rendered = render(other, source.config)
            except Rejected:
                continue  # a rule of the space refuses the config on this architecture
            yield arch, rendered
            if not self._each:
                self._turn = (self.all.index(arch) + 1) % len(self.all)
                return

    def _compile(self, own: tuple[int, KernelSource]) -> ArchResult:
        (arch, source), message, began = own, "", time.monotonic()
        try:
            compile_cubin(source.program, arch, self._nvcc)
        except Rejected as rejected:
            message = rejected.message
        self._longest_s = max(self._longest_s, time.monotonic() - began)
        return ArchResult(arch, source, message)

    def close(self) -> None:
        """Cancel compilations that haven't started, and wait for the others."""
        self._threads.shutdown(wait=True, cancel_futures=True)


def device_of(arch: int) -> DeviceInfo:
    """Return a small device of an architecture. An unknown architecture gets the least shared memory of any
    since 8.6.
    """
    return DeviceInfo("cuda", f"sm_{arch}", arch, 40, 1 << 34, smem_per_block_bytes=SMEM_BYTES.get(arch, 101376))


def toolkit_architectures(nvcc: Path) -> tuple[int, ...]:
    """Return the architectures for which nvcc compiles. Raises ToolchainError if nvcc can't list them."""
    found = tuple(sorted({int(number) for number in _LISTED.findall(output_of(nvcc, "--list-gpu-code"))}))
    if not found:
        raise ToolchainError(f"{nvcc}: does not support --list-gpu-code; install CUDA 11.5 or newer")
    return found
