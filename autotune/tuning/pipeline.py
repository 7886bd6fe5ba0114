"""render -> compile -> load -> verify -> measure -> store, for many configs of a layer at once."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, cast

from autotune.compilation.compile import Binary
from autotune.errors import Rejected
from autotune.evaluation.evaluator import Evaluator
from autotune.family.origins import pointed
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.measurement.occupancy import occupancy
from autotune.problem import Conv2dProblem
from autotune.store import Scope, Store, TrialKey
from autotune.study import Study
from autotune.trial import Config, Measured, Outcome, Phases, Trial

SWITCH_S = 0.0001
"""How long a device's answer waits for the interpreter while the search computes, which is four times a kernel;
Python's own 5 ms are as long as a kernel."""


@dataclass(slots=True)
class _InFlight:
    """A trial in flight: a config that was started and has no result yet."""

    number: int
    config: Config
    proposed_by: str
    source: KernelSource
    render_us: float
    binary: Future[Binary] | None
    """None: the very kernel is known, or waits for a trial with the same source"""


@dataclass(frozen=True, slots=True)
class _Launched:
    """A trial on a device, or next in line there: its row is `running`."""

    key: TrialKey
    trial: Trial
    source: KernelSource


class Ended(Protocol):
    """Gets every trial once it is stored."""

    def __call__(self, trial: Trial, *, known: bool) -> None:
        """`known`: its result was in the database before."""


class Pipeline:
    """The configs of one layer that are under way: many are compiled, as many measured as there are devices.

    Used as a context: leaving it by an exception drops what is under way.
    """

    def __init__(
        self,
        study: Study,
        evaluator: Evaluator,
        store: Store,
        scope: Scope,
        bounds: Mapping[str, BoundTemplate],
        *,
        quarantined: frozenset[str],
        best_us: Callable[[], float | None],
        ended: Ended,
        clock: Callable[[], float],
    ) -> None:
        self._study, self._evaluator, self._store, self._scope = study, evaluator, store, scope
        self._bounds, self._quarantined = bounds, quarantined
        self._known = set(store.known.hashes(scope))
        """sources with a result, which are not measured again"""
        self._best_us, self._ended, self._clock = best_us, ended, clock
        self._threads = ThreadPoolExecutor(evaluator.slots, thread_name_prefix="measure")
        self._under_way: list[_InFlight] = []
        self._measuring: dict[Future[Measured], _Launched] = {}
        self._queue = min(evaluator.slots + 1, evaluator.ahead)
        """kernels given to the devices at most: one more than they take, since a proposal takes as long as a kernel"""
        self._switch_s = sys.getswitchinterval()
        self._ready: Future[None] | None = None
        """done when the devices have the layer's data"""
        self.evaluated = 0
        """kernels compiled or tried to, by this pipeline"""

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
        self._threads.shutdown()
        sys.setswitchinterval(self._switch_s)

    @property
    def has_room(self) -> bool:
        """Whether another config is worth starting now."""
        return self.under_way < self._evaluator.ahead

    @property
    def supplied(self) -> bool:
        """Whether the devices have enough to do until another config is compiled."""
        return self.under_way >= 2 * self._queue

    @property
    def under_way(self) -> int:
        """Configs that were started and are not stored yet."""
        return len(self._under_way) + len(self._measuring)

    @property
    def pending(self) -> set[str]:
        """Hashes of the sources under way."""
        return {flight.source.hash for flight in self._under_way} | {
            launched.source.hash for launched in self._measuring.values()
        }

    def prepare(self, problem: Conv2dProblem) -> None:
        """Have the devices make the layer's data, while the first kernels are chosen and compiled."""
        self._ready = self._threads.submit(self._evaluator.begin_layer, problem)

    def start(self, number: int, config: Config, proposed_by: str) -> None:
        """Render, and start compiling unless this very kernel is known, quarantined or under way."""
        before = self._clock()
        source = render(self._bounds[config.template], config)
        spared = source.hash in self.pending | self._quarantined | self._known
        binary = None if spared else self._evaluator.compile(source)
        render_us = 1e6 * (self._clock() - before)
        self._under_way.append(_InFlight(number, config, proposed_by, source, render_us, binary))

    def advance(self, *, wait: bool = True) -> None:
        """Launch what is ready and store what has ended; with `wait`, once something has."""
        self._launch()
        if wait and self._measuring:
            full = len(self._measuring) >= self._queue
            _wait_any([*self._measuring, *([] if full else self._compiling())])
        elif wait and self._under_way:
            _wait_any(self._compiling())
        ended = [(future, launched) for future, launched in self._measuring.items() if future.done()]
        for future, _ in ended:
            del self._measuring[future]
        if ended:
            self._launch([launched for _, launched in ended])  # the device waits for nothing else
        for future, launched in ended:
            self._end(future, launched)

    def drain(self) -> None:
        """Finish everything under way. Raises what the devices raised over the layer's data."""
        while self._under_way or self._measuring:
            self.advance()
        if self._ready:
            self._ready.result()

    def _compiling(self) -> list[Future[Binary]]:
        return [flight.binary for flight in self._under_way if flight.binary is not None]

    def _launch(self, ended: Sequence[_Launched] = ()) -> None:
        """Give free devices the trials whose binaries are there; take over what is known of the others.

        `ended` were measured, and are not stored yet.
        """
        measured_now = {launched.source.hash for launched in (*self._measuring.values(), *ended)}
        waiting: set[str] = set()
        for flight in list(self._under_way):
            source_hash = flight.source.hash
            if flight.binary is None:
                if source_hash not in waiting | measured_now:
                    self._under_way.remove(flight)
                    self._take_over(flight)
            elif flight.binary.done() and len(self._measuring) < self._queue:
                if self._ready:
                    self._ready.result()
                self._under_way.remove(flight)
                self._measure(flight, flight.binary)
                measured_now.add(source_hash)
            waiting.add(source_hash)

    def _take_over(self, flight: _InFlight) -> None:
        """A kernel that is not run: its result is known, or it is quarantined."""
        known = self._store.known.get(self._scope, flight.source.hash)
        by = flight.proposed_by
        if known is not None:
            trial = self._store.known.reuse(self._scope, flight.number, flight.config, known, proposed_by=by)
        else:
            message = "quarantined: it took down earlier runs; `autotune quarantine --clear` gives it another chance"
            trial = replace(_running(flight), outcome=Outcome.RUNTIME, reason="quarantined", message=message)
            self._store.trials.add(self._scope, trial, flight.source, proposed_by=by)
        self._ended(trial, known=known is not None)

    def _measure(self, flight: _InFlight, compiled: Future[Binary]) -> None:
        """Hand a compiled trial to a device; `running` is committed first."""
        source, trial, by = flight.source, _running(flight), flight.proposed_by
        self.evaluated += 1
        try:
            binary = compiled.result()
            trial = replace(
                trial,
                phases=replace(trial.phases, compile_us=binary.compile_us),
                resources=binary.resources,
                smem_bytes=binary.resources.static_smem_bytes + max(stage.smem_bytes for stage in source.stages),
            )
            trial = replace(trial, occupancy=self._occupancy(source, binary))
        except Rejected as rejected:
            trial = rejected_trial(trial, self._pointed(rejected, source))
            self._store.trials.add(self._scope, trial, source, proposed_by=by)
            self._known.add(source.hash)
            self._ended(trial, known=False)
            return
        key = self._store.trials.begin(self._scope, flight.number, flight.config, source, proposed_by=by)
        future = self._threads.submit(self._evaluate, source, binary)
        self._measuring[future] = _Launched(key, trial, source)

    def _evaluate(self, source: KernelSource, binary: Binary) -> Measured:
        """On a device that takes another kernel, in a race against the best by then."""
        best_us = self._best_us() or math.inf
        return self._evaluator.evaluate(source, binary, cache=self._study.measure.cache, best_us=best_us)

    def _end(self, future: Future[Measured], launched: _Launched) -> None:
        """Store what a device said of a trial."""
        try:
            measured = future.result()
        except Rejected as rejected:
            trial = rejected_trial(launched.trial, self._pointed(rejected, launched.source))
        else:
            trial = _correct(launched.trial, measured)
        self._store.trials.end(launched.key, trial)
        self._known.add(launched.source.hash)
        self._ended(trial, known=False)

    def _pointed(self, rejected: Rejected, source: KernelSource) -> Rejected:
        """The rejection with the lines of the family's own files in its message."""
        family = self._bounds[source.config.template].template
        message = pointed(rejected.message, family, source, self._evaluator.info)
        return Rejected(rejected.outcome, rejected.reason, message)

    def _occupancy(self, source: KernelSource, binary: Binary) -> float | None:
        """Theoretical, of the least occupied stage; None off the GPU.

        Raises Rejected when no block fits, or when the compiler ran out of registers by far: nothing is loaded then.
        """
        info, resources = self._evaluator.info, binary.resources
        if info.kind != "cuda":
            return None
        limit = self._study.spill_limit_bytes
        if resources.spill_bytes > limit:
            message = f"spills more than the {limit} bytes a thread that the study's spill_limit_bytes allows"
            raise Rejected(Outcome.CONSTRAINTS, "resource_limit", message)
        least = 1.0
        for stage in source.stages:
            threads = stage.block[0] * stage.block[1] * stage.block[2]
            smem_bytes = stage.smem_bytes + resources.static_smem_bytes
            least = min(least, occupancy(info, threads=threads, registers=resources.registers, smem_bytes=smem_bytes))
            if not least:
                message = (
                    f"no block of {stage.entry} fits a multiprocessor: {threads} threads of {resources.registers} "
                    f"registers, {smem_bytes} bytes of shared memory"
                )
                raise Rejected(Outcome.CONSTRAINTS, "resource_limit", message)
        return least


def rejected_trial(trial: Trial, rejected: Rejected) -> Trial:
    """The trial as what its config was rejected for."""
    return replace(trial, outcome=Outcome(rejected.outcome), reason=rejected.reason, message=rejected.message)


def _running(flight: _InFlight) -> Trial:
    source = flight.source
    return Trial(
        number=flight.number,
        config=flight.config,
        outcome=Outcome.RUNNING,
        source_hash=source.hash,
        accuracy=source.accuracy,
        deterministic=source.deterministic,
        phases=Phases(render_us=flight.render_us),
    )


def _correct(trial: Trial, measured: Measured) -> Trial:
    return replace(
        trial,
        outcome=Outcome.CORRECT,
        reason="too_slow" if measured.too_slow else "",
        timing=measured.timing,
        error=measured.error,
        phases=replace(
            trial.phases,
            load_us=measured.load_us,
            verify_us=measured.verify_us,
            measure_us=measured.measure_us,
        ),
    )


def _wait_any(futures: Sequence[Future[Measured] | Future[Binary]]) -> None:
    anything: Sequence[Future[object]] = [cast("Future[object]", future) for future in futures]
    wait(anything, return_when=FIRST_COMPLETED)
