"""Prove an exported folder: build the library from its files in fresh processes and run its self-test.

On a CUDA device, the library's kernels are also timed, interleaved with the tuner's own. The results are written to the
folder's `proof.txt`.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from autotune.checking.sanitize import FAULT, Sanitizer, Winner
from autotune.compilation.cache import BinaryCache
from autotune.compilation.toolchain import compiler_version, find_cxx, find_nvcc
from autotune.devices.device import DeviceInfo
from autotune.errors import AutotuneError, DeviceLost, Rejected, ToolchainError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting.build import SELF_TEST_S, BuildError, Built, build_for_cuda, build_for_host, self_test
from autotune.exporting.exporter import Exported
from autotune.exporting.folder import PROOF, write_proof
from autotune.exporting.golden import self_test_problems
from autotune.exporting.kernel import SelectedKernel
from autotune.family.template import KernelTemplate
from autotune.measurement.benchmark import paired_ratio
from autotune.tempdirs import temporary_folder
from autotune.tuning.layer_finals import noise_floor
from autotune.workers.worker import FinalsTimings

ALLOWED = 0.02  # fraction by which an exported kernel may be slower, if the noise floor is lower
TIMED_S = 3.0  # wall-clock time of each kernel's finals
_HOST_FLOPS = (
    5e8  # FLOP of a pass on the CPU; testing a kernel takes two dozen passes, and two cores run 1e8 per second
)


class ProofFailed(AutotuneError):
    """An exported folder is wrong, or its library is slower than the tuned kernel."""


@dataclass(frozen=True, slots=True)
class LibraryTiming:
    """One of the library's kernels, timed interleaved with the tuner's own."""

    name: str
    own_us: tuple[float, ...]
    """medians of the tuner's kernel, microseconds, each with weights at a different address"""
    library_us: tuple[float, ...]
    """medians of the library's kernel, microseconds, each with weights at a different address"""
    ratio: float
    """median over rounds of the library's fastest timing divided by the tuner's slowest"""
    surely: float
    """the lower end of the ratio's confidence interval"""
    allowed: float
    """fraction by which the library may be slower: ALLOWED, or the noise floor of this comparison if that is larger"""

    @property
    def too_slow(self) -> bool:
        """Whether the library is slower than the tuned kernel."""
        return self.ratio > 1 + self.allowed and self.surely > 1

    def __str__(self) -> str:
        moves = any(max(us) > (1 + ALLOWED) * min(us) for us in (self.library_us, self.own_us))
        return (
            f"{self.name}: {_span(self.library_us)} us, the tuner's own kernel {_span(self.own_us)} us"
            f"{', depending on the addresses of weights' if moves else ''}: "
            f"{100 * (self.ratio - 1):+.2f} % ({100 * self.allowed:.1f} % allowed)"
        )


def _span(us: Sequence[float]) -> str:
    least, most = min(us), max(us)
    return f"{least:.2f} to {most:.2f}" if most > (1 + ALLOWED) * least else f"{most:.2f}"


def library_timing(name: str, timings: FinalsTimings) -> LibraryTiming:
    """Compare a kernel's timings in the tuner and in the library, each with weights at several addresses."""
    own, library = timings.kernels, timings.libraries
    noise = noise_floor(own[0], timings.again) if timings.again else 0.0
    slowest = max(own, key=lambda timing: timing.median_us)
    fastest = min(library, key=lambda timing: timing.median_us)
    low, ratio, _ = paired_ratio(fastest.samples_us, slowest.samples_us)
    own_us, library_us = (tuple(timing.median_us for timing in each) for each in (own, library))
    return LibraryTiming(name, own_us, library_us, ratio, low, max(ALLOWED, noise))


def prove(
    exported: Exported,
    evaluator: DeviceEvaluator | str,
    sanitizer: Sanitizer | str,
    *,
    not_run: str = "",
    families: Mapping[str, KernelTemplate] = MappingProxyType({}),
    stage: Callable[[str], None] = lambda _: None,
    cache: BinaryCache | None = None,
) -> Iterator[str]:
    """Prove a folder on a CUDA device, or on the host if `evaluator` is a string that says why there is no device.

    First, the sanitizer checks the kernels with few images. `sanitizer` may be a string that says why there is none,
    and `not_run` lists checks that don't run here. Yields the results line by line. `families` are the installed
    families, so that messages can refer to lines of their files. `cache` contains programs compiled for the CPU.

    Raises ProofFailed, after writing the failure to the folder, if the library doesn't build, gives wrong results or is
    too slow. Raises ToolchainError if there is no compiler, or if nothing can be built or run in the folder for
    temporary files.
    """
    lines: list[str] = []
    try:
        seen = (
            _on_host(exported, evaluator, stage, cache)
            if isinstance(evaluator, str)
            else _on_cuda(exported, evaluator, stage)
        )
        stage("checking the kernels under a sanitizer")
        for line in itertools.chain(_sanitized(exported, sanitizer, not_run, families), seen):
            lines.append(line)
            yield line
    except (BuildError, ProofFailed) as error:
        message = " ".join(str(error).split())
        write_proof(exported.folder, ("FAILED: do not use this library", message, *lines))
        raise ProofFailed(f"{exported.folder}: failed its proof, see {PROOF}: {message}") from None
    except OSError as error:  # a full temporary folder, or one in which programs cannot run
        raise ToolchainError(
            f"{error.filename or tempfile.gettempdir()}: {error.strerror}; "
            "set TMPDIR to a folder with free space, in which programs can be run"
        ) from None
    proven = "NOT TIMED" if isinstance(evaluator, str) else "PROVEN"
    if exported.untuned:
        lines.append(f"chosen without a run: {', '.join(exported.untuned)}")
        yield lines[-1]
    write_proof(exported.folder, (f"NOT TUNED: {exported.never_run}" if exported.never_run else proven, *lines))


def runs_on(exported: Exported, info: DeviceInfo) -> bool:
    """Return whether a device runs machine code for one of the export's architectures.

    The architecture must be of the same generation as the device, and not newer.
    """
    return any(arch // 10 == info.arch // 10 and arch <= info.arch for arch in exported.archs)


def _sanitized(
    exported: Exported, sanitizer: Sanitizer | str, not_run: str, families: Mapping[str, KernelTemplate]
) -> Iterator[str]:
    """Yield the result of each check of each kernel. Raises ProofFailed for findings that aren't known false alarms."""
    if isinstance(sanitizer, str):
        yield f"not checked for few images: {sanitizer}"
    else:
        winners = [
            Winner(kernel.stem, kernel.source, kernel.bound, families.get(kernel.source.config.template))
            for kernel in exported.served
        ]
        verdicts = list(sanitizer.check(winners))
        faults = [verdict for verdict in verdicts if verdict.word == FAULT]
        if faults:
            raise ProofFailed("; ".join(map(str, faults)))
        yield from map(str, verdicts)
    if not_run:
        yield not_run


def _on_host(exported: Exported, why: str, stage: Callable[[str], None], cache: BinaryCache | None) -> Iterator[str]:
    quick = []
    for kernel in exported.served:
        few, _ = self_test_problems(kernel.problem)
        if few.flops <= _HOST_FLOPS:
            quick.append(kernel.name)
        else:
            yield f"{kernel.name}: not tested: {few.at_runtime} would take too long on a CPU"
    if quick:
        yield from _tested_on_host(exported, quick, stage, cache)
    try:
        nvcc = find_nvcc()
    except ToolchainError:
        yield "not built for a GPU: there is no nvcc"
    else:
        stage("building the library with nvcc")
        with temporary_folder() as folder:
            build_for_cuda(exported, Path(folder), nvcc=nvcc, cxx=find_cxx(), run=False)
        yield f"builds with {compiler_version(nvcc)} for {', '.join(f'sm_{arch}' for arch in exported.archs)}"
    yield f"not timed: {why}"


def _tested_on_host(
    exported: Exported, kernels: Sequence[str], stage: Callable[[str], None], cache: BinaryCache | None
) -> Iterator[str]:
    with temporary_folder() as folder:
        stage("building the library for the CPU")
        try:
            built = build_for_host(exported, Path(folder), cxx=find_cxx(), cache=cache)
        except Rejected as rejected:  # the host device supports less than nvcc
            yield f"not tested: the host device cannot compile a kernel: {rejected.message}"
        else:
            stage("running its self-test")
            yield from _tested(built, "on the CPU", SELF_TEST_S * len(kernels), kernels)


def _on_cuda(
    exported: Exported,
    evaluator: DeviceEvaluator,
    stage: Callable[[str], None],
) -> Iterator[str]:
    with temporary_folder() as folder:
        stage("building the library with nvcc")
        built = build_for_cuda(exported, Path(folder), nvcc=find_nvcc(), cxx=find_cxx())
        stage("running its self-test")
        yield from _tested(built, f"on {evaluator.info.name}", SELF_TEST_S)
        slow = []
        for kernel in exported.served:
            stage(f"timing {kernel.name} next to the tuner's own kernel")
            compared = _timed(kernel, built, evaluator)
            if compared.too_slow:  # repeated in a fresh worker before it counts
                evaluator.refresh()
                compared = _timed(kernel, built, evaluator)
            yield str(compared)
            if compared.too_slow:
                slow.append(compared)
        if slow:
            raise ProofFailed(f"slower than the tuner's own kernel: {'; '.join(map(str, slow))}")


def _timed(kernel: SelectedKernel, built: Built, evaluator: DeviceEvaluator) -> LibraryTiming:
    """Verify one of the library's kernels for the tuned sizes, and time it interleaved with the tuner's own."""
    compiled = evaluator.compile(kernel.source)
    evaluator.begin_layer(kernel.problem)
    try:
        timed = evaluator.library_finals(
            built.library, kernel.source, compiled.result(), cache=kernel.origin.cache, budget_s=TIMED_S
        )
    except (Rejected, DeviceLost) as error:
        raise ProofFailed(f"{kernel.name}: {error}") from None
    return library_timing(kernel.name, timed)


def _tested(built: Built, where: str, limit_s: float, kernels: Sequence[str] = ()) -> Iterator[str]:
    passed, words = self_test(built, limit_s, kernels)
    if not passed:
        raise ProofFailed(f"the self-test failed {where}: {words.splitlines()[-1]}")
    yield from words.splitlines()
