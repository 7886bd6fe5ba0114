"""render -> compile -> load -> verify -> measure -> store, for many configs of one or more layers at once."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, TypeVar, cast

from autotune.compilation.compile import Binary
from autotune.errors import Rejected
from autotune.evaluation.evaluator import Evaluator
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.source_map import with_source_lines
from autotune.family.space import BoundTemplate
from autotune.measurement.occupancy import residency
from autotune.problem import Problem
from autotune.study import Study
from autotune.trial import Config, Measured, Outcome, Phases, Trial
from autotune.tuning.layer_store import LayerState, StoredLayer

T = TypeVar("T")
SWITCH_S = 0.0001
"""Seconds that a device's result may wait for the interpreter while the search is computing.

Python's default of 5 ms is longer than most kernels take.
"""


class Ended(Protocol):
    """Called with every trial once it is stored."""

    def __call__(self, trial: Trial, *, known: bool) -> None:
        """Handle a stored trial. `known` means that its result was already in the database."""


@dataclass(slots=True, eq=False)
class LayerQueue:
    """A layer in a pipeline: the families of its configs, a writer for its trials, and a callback for each trial."""

    study: Study
    writer: StoredLayer
    bounds: Mapping[str, BoundTemplate]
    best_us: Callable[[], float | None]
    """returns the median of the layer's fastest kernel so far, so that the timing of slow kernels stops early"""
    ended: Ended
    quarantined: frozenset[str]
    known: dict[str, Trial]
    """known results by source hash; these kernels are not measured again"""
    ready: Future[None]
    """done when the layer's data is on the devices"""
    evaluated: int = 0
    """number of kernels that this pipeline compiled or tried to compile"""


@dataclass(slots=True, eq=False)
class _InFlight:
    """A config that has been started but has no result yet."""

    queue: LayerQueue
    trial: Trial
    """what is known so far; the outcome is `running`"""
    proposed_by: str
    source: KernelSource
    binary: Future[Binary] | None
    """None: the result of this kernel is known, or another pending trial has the same kernel"""


class Pipeline:
    """The pending configs of all layers. Many are compiled at once, but each device measures one at a time.

    Use the pipeline as a context manager. If the block raises, the pending configs are dropped.
    """

    def __init__(self, evaluator: Evaluator, *, clock: Callable[[], float]) -> None:
        self._evaluator, self._clock = evaluator, clock
        self._threads = ThreadPoolExecutor(evaluator.slots, thread_name_prefix="measure")
        self._finals = ThreadPoolExecutor(1, thread_name_prefix="finals")
        self._under_way: list[_InFlight] = []
        self._measuring: dict[Future[Measured], _InFlight] = {}
        self._switch_s = sys.getswitchinterval()

    def __enter__(self) -> Pipeline:
        sys.setswitchinterval(SWITCH_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._under_way.clear()
            for future in self._measuring:
                future.cancel()
        self._finals.shutdown(cancel_futures=kind is not None)
        self._threads.shutdown()
        sys.setswitchinterval(self._switch_s)

    @property
    def can_start(self) -> bool:
        """Whether to start another config now."""
        return self.under_way < self._evaluator.ahead

    @property
    def _capacity(self) -> int:
        """The number of kernels that may be handed to the devices.

        It is one more than the number of concurrent `evaluate` calls, because proposing a config takes as long as
        running a kernel.
        """
        return min(self._evaluator.slots + 1, self._evaluator.ahead)

    @property
    def under_way(self) -> int:
        """The number of started configs whose trials aren't stored yet."""
        return len(self._under_way) + len(self._measuring)

    def of(self, queue: LayerQueue) -> int:
        """Return the number of this layer's configs under way."""
        return sum(one.queue is queue for one in self._all)

    def has_enough(self, queue: LayerQueue) -> bool:
        """Return whether a layer has enough pending configs to keep the devices busy until another one is compiled."""
        return self.of(queue) >= 2 * self._capacity

    def pending(self, queue: LayerQueue) -> set[str]:
        """Return the hashes of a layer's pending sources."""
        return {one.source.hash for one in self._all if one.queue is queue}

    @property
    def _all(self) -> tuple[_InFlight, ...]:
        return (*self._under_way, *self._measuring.values())

    def open(
        self,
        study: Study,
        problem: Problem,
        state: LayerState,
        writer: StoredLayer,
        bounds: Mapping[str, BoundTemplate],
        *,
        best_us: Callable[[], float | None],
        ended: Ended,
    ) -> LayerQueue:
        """Open a queue for a layer. The devices make its data while the first kernels are being compiled."""
        return LayerQueue(
            study,
            writer,
            bounds,
            best_us,
            ended,
            quarantined=state.quarantined,
            known=dict(state.known),
            ready=self._threads.submit(self._evaluator.begin_layer, problem),
        )

    def alone(self, measure: Callable[[], T]) -> Future[T]:
        """Run `measure` in the finals' thread once earlier calls have ended."""
        return self._finals.submit(measure)

    def start(self, queue: LayerQueue, number: int, config: Config, proposed_by: str) -> None:
        """Render a config and start compiling it, unless its kernel is known, quarantined or already pending."""
        before = self._clock()
        source = render(queue.bounds[config.template], config)
        spared = any(source.hash in hashes for hashes in (self.pending(queue), queue.quarantined, queue.known))
        binary = None if spared else self._evaluator.compile(source)
        trial = running_trial(number, config, source, render_us=1e6 * (self._clock() - before))
        self._under_way.append(_InFlight(queue, trial, proposed_by, source, binary))

    def advance(self, *, wait: bool = True, others: Sequence[Future[object]] = ()) -> None:
        """Launch compiled kernels and store finished trials.

        With `wait`, wait until a trial ends or one of `others` is done.
        """
        self._launch()
        if wait:
            full = len(self._measuring) >= self._capacity
            awaited = [*map(_any, self._measuring), *([] if full else self._awaited()), *others]
            if awaited:
                wait_for(awaited, return_when=FIRST_COMPLETED)
        ended = [(future, flight) for future, flight in self._measuring.items() if future.done()]
        for future, _ in ended:
            del self._measuring[future]
        if ended:
            self._launch([flight for _, flight in ended])  # before storing results, so that no device is idle
        for future, flight in ended:
            self._end(future, flight)

    def drain(self) -> None:
        """Finish all pending trials. If making a layer's data failed, raises the device's error."""
        while self._under_way or self._measuring:
            self.advance()

    def _awaited(self) -> list[Future[object]]:
        """Return the future that each pending kernel is waiting for: first its compilation, then the layer's data."""
        compiled = [(flight.queue, flight.binary) for flight in self._under_way if flight.binary is not None]
        return [_any(queue.ready if binary.done() else binary) for queue, binary in compiled]

    def _launch(self, ended: Sequence[_InFlight] = ()) -> None:
        """Send trials whose binaries are ready to free devices, and reuse known results for trials without a binary.

        The trials in `ended` have been measured but not stored yet.
        """
        measured_now = {_identity(flight) for flight in (*self._measuring.values(), *ended)}
        waiting: set[tuple[int, str]] = set()
        for flight in list(self._under_way):
            identity = _identity(flight)
            if flight.binary is None:
                if identity not in waiting | measured_now:
                    self._under_way.remove(flight)
                    self._take_over(flight)
            elif flight.binary.done() and flight.queue.ready.done() and len(self._measuring) < self._capacity:
                flight.queue.ready.result()
                self._under_way.remove(flight)
                self._measure(flight, flight.binary)
                measured_now.add(identity)
            waiting.add(identity)

    def _take_over(self, flight: _InFlight) -> None:
        """Store a trial without running its kernel, because the result is known or the kernel is quarantined."""
        writer, started, by = flight.queue.writer, flight.trial, flight.proposed_by
        known = flight.queue.known.get(flight.source.hash)
        if known is None:
            message = "quarantined: it took down earlier runs; `autotune clean --quarantine` lets it run again"
            trial = replace(started, outcome=Outcome.RUNTIME, reason="quarantined", message=message)
            writer.add(trial, flight.source, proposed_by=by)
        else:
            trial = replace(known, number=started.number, config=started.config, phases=Phases())
            writer.reuse(started.number, started.config, flight.source.hash, proposed_by=by)
        flight.queue.ended(trial, known=known is not None)

    def _measure(self, flight: _InFlight, compiled: Future[Binary]) -> None:
        """Store a compiled trial as `running` and send it to a device."""
        queue, source, trial, by = flight.queue, flight.source, flight.trial, flight.proposed_by
        queue.evaluated += 1
        try:
            binary = compiled.result()
            trial = replace(
                trial,
                phases=replace(trial.phases, compile_us=binary.compile_us),
                resources=binary.resources,
                smem_bytes=binary.resources.static_smem_bytes + max(stage.smem_bytes for stage in source.stages),
            )
            trial = replace(trial, occupancy=self._occupancy(queue, source, binary))
        except Rejected as rejected:
            trial = rejected_trial(trial, self._with_source_lines(queue, rejected, source))
            queue.writer.add(trial, source, proposed_by=by)
            queue.known[source.hash] = trial
            queue.ended(trial, known=False)
            return
        queue.writer.begin(trial.number, trial.config, source, proposed_by=by)
        flight.trial = trial
        self._measuring[self._threads.submit(self._evaluate, queue, source, binary)] = flight

    def _evaluate(self, queue: LayerQueue, source: KernelSource, binary: Binary) -> Measured:
        """Evaluate a kernel on a free device, racing it against the current best time."""
        best_us = queue.best_us() or math.inf
        return self._evaluator.evaluate(source, binary, cache=queue.study.measure.cache, best_us=best_us)

    def _end(self, future: Future[Measured], flight: _InFlight) -> None:
        """Store the result that a device returned for a trial."""
        try:
            measured = future.result()
        except Rejected as rejected:
            trial = rejected_trial(flight.trial, self._with_source_lines(flight.queue, rejected, flight.source))
        else:
            trial = _correct(flight.trial, measured)
        flight.queue.writer.end(trial)
        flight.queue.known[flight.source.hash] = trial
        flight.queue.ended(trial, known=False)

    def _with_source_lines(self, queue: LayerQueue, rejected: Rejected, source: KernelSource) -> Rejected:
        """Return the rejection with its message referring to lines of the family's own files."""
        family = queue.bounds[source.config.template].template
        message = with_source_lines(rejected.message, family, source, self._evaluator.info)
        return Rejected(rejected.outcome, rejected.reason, message)

    def _occupancy(self, queue: LayerQueue, source: KernelSource, binary: Binary) -> float | None:
        """Return the lowest theoretical occupancy of any of the kernel's stages, or None if the device isn't a GPU.

        Raises Rejected, before the kernel is loaded, if no block fits or if the compiler spilled too many registers.
        """
        info, resources = self._evaluator.info, binary.resources
        if not info.can.gpu:
            return None
        limit = queue.study.spill_limit_bytes
        if resources.spill_bytes > limit:
            message = f"spills more than the {limit} bytes per thread that the study's spill_limit_bytes allows"
            raise Rejected(Outcome.INVALID_CONFIG, "resource_limit", message)
        least = 1.0
        for stage in source.stages:
            threads = stage.block[0] * stage.block[1] * stage.block[2]
            smem_bytes = stage.smem_bytes + resources.static_smem_bytes
            held = residency(info, threads=threads, registers=resources.registers, smem_bytes=smem_bytes)
            least = min(least, held.occupancy)
            if not least:
                message = (
                    f"no block of {stage.entry} fits a multiprocessor: {threads} threads of {resources.registers} "
                    f"registers, {smem_bytes} bytes of shared memory"
                )
                raise Rejected(Outcome.INVALID_CONFIG, "resource_limit", message)
        return least


def rejected_trial(trial: Trial, rejected: Rejected) -> Trial:
    """Return the trial with a rejection's outcome, reason and message."""
    return replace(trial, outcome=Outcome(rejected.outcome), reason=rejected.reason, message=rejected.message)


def running_trial(number: int, config: Config, source: KernelSource, *, render_us: float = 0.0) -> Trial:
    """Return the trial of a rendered config that has no result yet."""
    return Trial(
        number=number,
        config=config,
        outcome=Outcome.RUNNING,
        source_hash=source.hash,
        accuracy=source.accuracy,
        deterministic=source.deterministic,
        phases=Phases(render_us=render_us),
    )


def _correct(trial: Trial, measured: Measured) -> Trial:
    return replace(
        trial,
        outcome=Outcome.CORRECT,
        reason="too_slow" if measured.too_slow else "",
        timing=measured.timing,
        error=measured.error,
        phases=trial.phases + measured.phases,
    )


def _identity(one: _InFlight) -> tuple[int, str]:
    """Return a key that identifies a layer's kernel."""
    return id(one.queue), one.source.hash


def _any(future: Future[Measured] | Future[Binary] | Future[None]) -> Future[object]:
    return cast("Future[object]", future)
