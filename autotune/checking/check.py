"""Verify a family's configs on problems that cover everything that its header supports."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from autotune.checking.architectures import Architectures, ArchResult
from autotune.checking.cases import Case, CasePlan
from autotune.checking.int32_overflow import large_for_a_cpu, large_problems, large_weights
from autotune.checking.other_sizes import OtherProblems, RuntimeSizes, within
from autotune.checking.sanitize import HOST_CHECK
from autotune.checking.unset_variables import dependence_on_unset
from autotune.compilation.compile import Binary
from autotune.errors import DeviceError, DeviceLost, Rejected
from autotune.evaluation.evaluator import DeviceEvaluator, Evaluator
from autotune.family.render import relaunched, render
from autotune.family.source import KernelSource
from autotune.family.source_map import with_source_lines
from autotune.family.space import BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.operation.operation import Operation
from autotune.operation.registry import operations
from autotune.operation.storage_types import FLOATS
from autotune.problem import Problem, by, valid_problems
from autotune.trial import Config, ErrorStats, Outcome
from autotune.workers.worker import SomeBlocksRequest


@dataclass(frozen=True, slots=True)
class CheckRow:
    """The outcome of one of a family's configs on one problem."""

    source: KernelSource
    """the kernel, for the first run-time sizes that failed or else for the problem's own sizes"""
    sizes: tuple[tuple[int, ...], ...]
    """run-time sizes that the compiled kernel ran with"""
    outcome: str
    reason: str
    message: str
    error: ErrorStats | None
    factors: tuple[int, ...]
    """value indices of the plan's factors; empty if the row does not belong to a case"""
    device: str
    """the kind of device: cuda, host or host:check"""

    @property
    def problem(self) -> Problem:
        """The problem that was checked."""
        return self.source.problem


@dataclass(frozen=True, slots=True)
class _Started:
    case: Case
    sources: tuple[KernelSource, ...]
    """the kernel for each run-time size, the problem's own size first"""
    once: tuple[KernelSource, ...]
    """the kernel for further run-time sizes that need only one run"""
    binary: Future[Binary]
    archs: tuple[Future[ArchResult], ...]
    on: Evaluator


_SANITIZED_EVERY = 4  # one in this many cases runs under sanitizers, which takes about four times as long
_SANITIZED_FLOPS = 3_000_000  # maximum FLOPs of a run under sanitizers, in which a matrix product takes seconds
_SPARE = 3  # number of configs that a search keeps compiled in addition to the next one
_SANITIZED_THREADS = 1 << 15  # maximum threads of a run under sanitizers
_ONCE_S = 2.0  # maximum expected time of a run at a further run-time size
_ONCE_THREADS = 3 << 18  # maximum threads of all runs at further run-time sizes; a CPU takes 2 us per thread
_VARIANTS = 4  # number of problems of other sizes after each case
_QUICK_S = 3.0  # maximum average time of a case for such problems to run; matrix instructions take long on a CPU
_TRIED = 400  # number of cases to search for one that a CPU quickly runs with large arrays
_MORE = (
    64  # a large run-time size divided by the size of a first run, which shows how long a CPU takes with large arrays
)
_FEWER = 32  # factor by which a problem of few units is smaller than a large problem
_STEADY = 0.01  # maximum difference between the numbers of blocks for each unit of the two
_DAY_S = 86400.0
_LONG_S = 8.0  # maximum expected time of a run at a larger run-time size
_SANITIZED_SHARE = 0.4  # share of the verification time above which no further case is sanitized for a while


def checker_of(evaluator: Evaluator) -> DeviceEvaluator:
    """Return the evaluator, typed as one that verifies kernels.

    Raises DeviceError for a device that doesn't run kernels, because every kernel would appear to be correct.
    """
    if not isinstance(evaluator, DeviceEvaluator):
        raise DeviceError(
            f"{evaluator.info.kind}: runs no kernels, so it cannot verify any; give --device host, host:check or cuda:N"
        )
    return evaluator


def _rejection(on: Evaluator, source: KernelSource) -> Rejected | None:
    """Compile a kernel, verify it once, and return its rejection, if any."""
    try:
        binary = on.compile(source).result()
        on.begin_layer(source.problem)
        checker_of(on).verify(source, binary, once=True)
    except Rejected as rejected:
        return rejected
    return None


class Stopwatch:
    """Measures seconds of CPU time, or of wall-clock time if several cores were working.

    On a busy machine, the result is therefore hardly larger than on an idle one.
    """

    def __init__(self, cpu: Callable[[], float]) -> None:
        self._cpu = cpu
        self._begun = time.monotonic(), cpu()

    @property
    def seconds(self) -> float:
        """The CPU time or wall-clock time since the start, whichever is smaller, in seconds."""
        began, used = self._begun
        return max(0.0, min(time.monotonic() - began, self._cpu() - used))  # a fresh worker has used less CPU time


class FamilyCheck:
    """Runs a plan's cases on a device, and records which problems weren't exercised.

    `sanitizing` opens `host:check`, which runs some of the cases, or returns None if that isn't possible. Raises the
    same errors as `checker_of`.
    """

    def __init__(
        self,
        plan: CasePlan,
        evaluator: Evaluator,
        architectures: Architectures | None = None,
        sanitizing: Callable[[], Evaluator | None] = lambda: None,
    ) -> None:
        self.plan = plan
        self._evaluator = evaluator
        checker_of(evaluator)
        self._sanitizing = sanitizing
        self._wait = 1
        """number of cases until one runs under sanitizers; not the first case, so that its outcome is known sooner"""
        self._left: Callable[[], float] = lambda: math.inf
        self._seconds = {False: 0.0, True: 0.0}
        """seconds of verification, without sanitizers (False) and with sanitizers (True)"""
        self._architectures = architectures
        self.compiled: dict[int, int] = dict.fromkeys(architectures.all if architectures else (), 0)
        """number of configs that were compiled for each architecture"""
        derived = [subject.bound for subject in plan.subjects if subject.factors[0] < 0]
        self._runtime_sizes = RuntimeSizes(plan.seed)
        self._others = OtherProblems(plan.template.operation, derived, plan.seed)
        self.large = large_problems(derived, evaluator.info)
        self.large_run = False
        self._weights = large_weights(derived) if evaluator.info.can.cpu else None
        self.overflows: list[str] = []
        """what is wrong if weights have more than 2^32 elements, with the problem"""
        self._on_cpu = deque(
            large_for_a_cpu(list(plan.some(_TRIED)), evaluator.info) if evaluator.info.can.cpu and derived else ()
        )
        """large problems, with configs, that a CPU can run"""
        self.refused: dict[Problem, str] = {}
        """problems that the device refuses, with the reasons"""
        self.blocks: dict[tuple[str, int], int] = {}
        """largest number of blocks in a correct launch, by kernel and axis of the grid"""

    def rows(self, *, most: int | None = None, left: Callable[[], float] = lambda: math.inf) -> Iterator[CheckRow]:
        """Verify cases until no case adds a pair of values, `most` cases have run, or there is no time left.

        At least one case runs, unless `most` is 0. Large problems run if `most` is None or 0.
        """
        self._left = left
        cases = self.plan.cases()
        under_way: deque[_Started] = deque()
        begun = 0
        ahead = max(1, self._evaluator.ahead - _SPARE)  # compilations that are running when the time ends are wasted
        try:
            while True:
                while len(under_way) < ahead and begun != most and (begun == 0 or left() > 0):
                    case = next(cases, None)
                    if case is None:
                        break
                    under_way.append(self._start(case))
                    begun += 1
                if not under_way:
                    break
                started = under_way.popleft()
                if begun > len(under_way) + 1 and not self._is_compiled(started):
                    break
                yield from self._finish(started)
                if most is None and not self.large_run and left() > 0:
                    yield from self._large()
                quick = sum(self._seconds.values()) <= _QUICK_S * (started.case.number + 1)
                for _ in range(_VARIANTS):
                    if most is None and quick and left() > 0:
                        yield from self._other_sizes(started.case)
                while most is None and self._on_cpu and left() > 0:
                    bound, config = self._on_cpu.popleft()
                    yield from self._one(bound, config, first=bound.problem.runtime_size // _MORE)
            if most == 0:
                yield from self._large()
        finally:
            for started in under_way:
                started.binary.cancel()
                for arch in started.archs:
                    arch.cancel()

    def _is_compiled(self, started: _Started) -> bool:
        """Wait for a case to be compiled within the remaining time, and return whether it was."""
        wait([started.binary], timeout=min(max(0.0, self._left()), _DAY_S))
        if not started.binary.done() or self._left() <= 0:
            started.binary.cancel()
            for arch in started.archs:
                arch.cancel()
            return False
        return True

    def _start(self, case: Case) -> _Started:
        bound = case.subject.bound
        source = render(bound, case.config)
        run = {bound.problem, *(other.problem for other in case.subject.others)}
        others = list(_relaunched(source, case.subject.others))
        further = _relaunched(source, self._runtime_sizes.of(bound, case.config, case.number, run, case.subject.most))
        once: list[KernelSource] = []
        left = _ONCE_THREADS
        for other in further:
            if _threads(other) <= left:
                once.append(other)
                left -= _threads(other)
        several = case.subject.with_several_blocks(case.config, (source, *others))
        if several is not None and several.allows(case.config):
            others.append(relaunched(source, several))
        on = self._evaluator_for(source.problem)
        if on is not self._evaluator:
            others = [
                other
                for other in others
                if other.problem.flops <= _SANITIZED_FLOPS and _threads(other) <= _SANITIZED_THREADS
            ]
            once = []
        for other in once:
            self._runtime_sizes.count(other.problem)
        for sources in (others, once):
            sources.sort(key=lambda other: _units(other.problem))
        on.expect(source.problem)
        archs = self._architectures.submit(bound, source, self._left()) if self._architectures else []
        return _Started(case, (source, *others), tuple(once), on.compile(source), tuple(archs), on)

    def _device(self, on: Evaluator) -> str:
        return on.info.kind if on is self._evaluator else HOST_CHECK

    def _evaluator_for(self, problem: Problem) -> Evaluator:
        """Return the evaluator for the next case: `host:check` for some cases, and the device's own for the others."""
        self._wait -= 1
        late = self._seconds[True] > _SANITIZED_SHARE * sum(self._seconds.values())
        if self._wait >= 0 or late or problem.flops > _SANITIZED_FLOPS:
            return self._evaluator
        self._wait = _SANITIZED_EVERY - 1
        return self._sanitizing() or self._evaluator

    def _finish(self, started: _Started) -> Iterator[CheckRow]:
        case = started.case
        factors = tuple(map(int, case.factors))
        row = self._verified(
            case.subject.bound.template, started.sources, started.once, started.binary, factors, started.on
        )
        if row is not None:
            self.plan.covering.cover(case.factors)
            yield row
        for arch in started.archs:
            wait([arch], timeout=min(max(0.0, self._left()), _DAY_S))
            if not arch.done():
                arch.cancel()
                continue
            result = arch.result()
            self.compiled[result.arch] += 1
            if result.message:
                message = f"sm_{result.arch}: {result.message}"
                yield CheckRow(result.source, (), Outcome.COMPILE, f"sm_{result.arch}", message, None, factors, "cuda")

    def _verified(
        self,
        template: KernelTemplate,
        sources: Sequence[KernelSource],
        once: Sequence[KernelSource],
        compiling: Future[Binary],
        factors: tuple[int, ...],
        on: Evaluator,
    ) -> CheckRow | None:
        """Verify one binary at several run-time sizes, with a single run for the sizes in `once`.

        Sizes that are expected to take long are left out, because padding makes a kernel far slower than the number of
        FLOPs suggests. Returns None if the device rejects a size.
        """
        errors: list[ErrorStats] = []
        run: list[tuple[int, ...]] = []
        source = first = (*sources, *once)[0]
        checker, device = checker_of(on), self._device(on)
        took, per_size = self._stopwatch(on), 0.0
        try:
            binary = compiling.result()
            took = self._stopwatch(on)
            for number, source in enumerate((*sources, *once)):
                most_s = _ONCE_S if factors and number >= len(sources) else _LONG_S
                if errors and per_size * _units(source.problem) > min(most_s, self._left()):
                    continue
                run.append(source.problem.runtime_sizes)
                run_took = self._stopwatch(on)
                on.begin_layer(source.problem)
                if not errors:  # begin_layer may have waited for the compilation of the reference
                    run_took = self._stopwatch(on)
                errors.append(checker.verify(source, binary, once=number >= len(sources)))
                seconds = run_took.seconds / _units(source.problem)
                per_size = min(per_size or seconds, seconds)  # a small size takes mostly fixed costs
                self._note_blocks(source)
            source = first
            if factors and (unset := dependence_on_unset(first, binary, partial(_rejection, on))):
                raise Rejected(Outcome.WRONG_RESULT, "unwritten", unset)
        except Rejected as rejected:
            message = with_source_lines(rejected.message, template, source, self._evaluator.info)
            if len(run) > len(errors) > 0:
                right = ", ".join(map(by, run[:-1]))
                message = f"wrong for {source.problem.at_runtime}, right for {right} with the same binary: {message}"
            return CheckRow(source, tuple(run), rejected.outcome, rejected.reason, message, None, factors, device)
        except DeviceLost:
            raise
        except DeviceError as error:
            self.refused[source.problem] = str(error)
            return None
        finally:
            self._seconds[device == HOST_CHECK] += took.seconds
        worst = max(errors, key=lambda error: error.over_bound)
        return CheckRow(first, tuple(run), Outcome.CORRECT, "", "", worst, factors, device)

    def _stopwatch(self, on: Evaluator) -> Stopwatch:
        return Stopwatch(lambda: on.busy_s)

    def _note_blocks(self, source: KernelSource) -> None:
        for stage in source.stages:
            for axis, extent in enumerate(stage.grid):
                self.blocks[stage.entry, axis] = max(extent, self.blocks.get((stage.entry, axis), 0))

    def _other_sizes(self, case: Case) -> Iterator[CheckRow]:
        """Verify the case's config on a variant of the problem with sizes that no feature has."""
        other = self._others.of(case.subject.bound, case.config) if case.subject.most is None else None
        if other is not None:
            yield from self._one(*other)

    def _large(self) -> Iterator[CheckRow]:
        """Verify problems with more elements than 31 bits can count, if the device has enough memory.

        A CPU has neither the memory nor the time, so it only runs some blocks under sanitizers, which detect overflows.
        """
        on = self._sanitizing() if self._evaluator.info.can.cpu else self._evaluator
        self.large_run = on is not None
        for large in self.large:
            if large.config is None or on is None:
                continue
            if on.info.can.cpu:
                yield from self._some_blocks(large.bound, large.config, on)
            else:
                yield from self._one(large.bound, large.config)
        if on is not None and self._weights is not None and self._weights.config is not None:
            for row in self._some_blocks(self._weights.bound, self._weights.config, on):
                if row.outcome in (Outcome.RUNTIME, Outcome.WRONG_RESULT):
                    self.overflows.append(f"{row.problem}, but there {row.message}")

    def _some_blocks(self, bound: BoundTemplate, config: Config, on: Evaluator) -> Iterator[CheckRow]:
        source = render(bound, config)
        row = CheckRow(source, (source.problem.runtime_sizes,), Outcome.CORRECT, "", "", None, (), HOST_CHECK)
        try:
            others = _scaled(bound, source) if bound.problem.operation.independent else ()
            request = SomeBlocksRequest(source, on.compile(source).result(), others[:1], others[1:])
            checker_of(on).run_some_blocks(request)
        except Rejected as rejected:
            message = with_source_lines(rejected.message, bound.template, source, self._evaluator.info)
            row = replace(row, outcome=rejected.outcome, reason=rejected.reason, message=message)
        if row.outcome != Outcome.TIMEOUT:  # a loop over a run-time size takes long
            yield row

    def _one(self, bound: BoundTemplate, config: Config, *, first: int = 0) -> Iterator[CheckRow]:
        """Verify a config that isn't a case, at the problem's run-time size.

        If `first` is given, that smaller run-time size runs first, and the larger one is skipped if it would take
        too long.
        """
        source = render(bound, config)
        smaller = valid_problems([partial(bound.problem.with_runtime, first)] if first else [])
        bounds = (BoundTemplate(bound.template, problem, bound.device) for problem in smaller)
        sources = (*(relaunched(source, other) for other in bounds), source)
        on = self._evaluator
        thorough, once = ((), sources) if on.info.can.cpu else (sources, ())
        row = self._verified(bound.template, thorough, once, on.compile(source), (), on)
        if row is not None and row.outcome != Outcome.CORRECT:
            yield row
        elif row is not None and len(row.sizes) == len(sources):
            yield replace(row, source=source)


def _relaunched(source: KernelSource, others: Iterable[BoundTemplate]) -> Iterator[KernelSource]:
    """Yield the kernel for other run-time sizes, leaving out larger ones that a rule excludes."""
    for other in others:
        if within(other.problem, source.problem.runtime_sizes) or other.allows(source.config):
            yield relaunched(source, other)


def _scaled(bound: BoundTemplate, source: KernelSource) -> tuple[KernelSource, ...]:
    """Return a large kernel with one unit less and, twice, far fewer units.

    Returns nothing if the grids don't grow with the units, because blocks then do other work, or if an array of
    integers determines where the kernel writes.
    """
    problem = bound.problem
    place = max(range(len(problem.runtime_sizes)), key=problem.runtime_sizes.__getitem__)
    units = problem.runtime_sizes[place]
    sizes = (units - 1, units // _FEWER, units // _FEWER + 1)
    problems = valid_problems(partial(problem.with_runtime_at, place, size) for size in sizes)
    bounds = (BoundTemplate(bound.template, other, bound.device, bound.admission) for other in problems)
    try:
        others = tuple(relaunched(source, other) for other in bounds)
    except Rejected:  # the device can't launch one of them
        return ()
    grids = [[math.prod(stage.grid) / _units(each.problem) for stage in each.stages] for each in (source, *others)]
    steady = all(len(each) == len(grids[0]) and np.allclose(each, grids[0], _STEADY) for each in grids)
    return others if steady and all(array.dtype in FLOATS for array in problem.filled) else ()


def _threads(source: KernelSource) -> int:
    return sum(math.prod((*stage.grid, *stage.block)) for stage in source.stages)


def _units(problem: Problem) -> int:
    """Return the product of the run-time sizes, to which a run's time is roughly proportional."""
    return math.prod(problem.runtime_sizes)


def hint_at_reference(declared: Operation) -> str:
    """Return a hint to check the reference if all kernels are wrong, or "" for autotune's own operations."""
    if declared.name in operations():
        return ""
    return f". All configs are wrong, even the simplest: check the reference in {declared.folder}"
