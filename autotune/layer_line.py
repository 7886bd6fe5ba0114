"""The line for one layer: ask, render, compile, verify, measure, store, tell, and the finals at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import cast

from autotune.compile import Binary
from autotune.errors import Rejected
from autotune.evaluate import Evaluator
from autotune.finals import entrants
from autotune.layer_finals import PLAIN_FINALS, FinalsPlan, FinalsResult, hold_finals
from autotune.occupancy import occupancy
from autotune.problem import Layer
from autotune.render import render
from autotune.search import Search
from autotune.source import KernelSource
from autotune.space import SearchSpace
from autotune.store import Scope, Store, TrialKey
from autotune.study import Study
from autotune.trial import Config, Measured, Outcome, Phases, Trial

RECORDED_REJECTIONS = 1000  # configs of a family's full product, up to which each rejected one is stored
STRIKES = 2  # runs that ended while a kernel was running, after which it is quarantined


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a layer is; given to the observer after every trial."""

    layer: str
    """study.layer"""
    done: int
    """evaluations so far, earlier runs included"""
    budget: int
    best: Trial | None
    failures: Mapping[str, int]
    """outcome to number of trials, correct ones left out"""
    elapsed_s: float
    reused: int
    """trials whose result was already in the database"""
    ended: bool
    """the layer's last report"""


@dataclass(frozen=True, slots=True)
class Start:
    """What the search of a layer starts with."""

    first: Mapping[Config, str]
    """config to what suggested it: WARM_START or PRIOR"""
    layers: tuple[tuple[str, float], ...] = ()
    """`study.layer on DEVICE` that the warm starts come from to its distance, nearest first"""


WARM_START, PRIOR = "warm_start", "prior"
COLD_START = Start({})


@dataclass(frozen=True, slots=True)
class StartResult:
    """What came of the configs that a search started with."""

    by: str
    """WARM_START or PRIOR"""
    used: int
    layers: tuple[tuple[str, float], ...]
    """where warm starts come from"""
    best: Trial | None
    """the fastest of them; None when none is correct"""


@dataclass(frozen=True, slots=True)
class LayerResult:
    """What tuning one layer came to."""

    layer: Layer
    name: str
    best: Trial | None
    evaluated: int
    """evaluations in the study's history, this run's included"""
    new: int
    """evaluations of this run"""
    failures: Mapping[str, int]
    messages: Mapping[str, tuple[int, Config]]
    """distinct message of a failure to how often it was seen, and one config that has it"""
    stopped: str
    """why it ended: budget, time, exhausted, interrupted or what gain was expected"""
    starts: tuple[StartResult, ...]
    """none: the search started from nothing"""
    finals: FinalsResult | None


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of `tune` is asked for, the same for all its layers."""

    study: Study
    evaluator: Evaluator
    store: Store
    observe: Callable[[Progress], None]
    stopping: Callable[[], bool]
    clock: Callable[[], float] = time.perf_counter
    search: bool = True
    """False: only the finals, on what the database holds"""
    finals: FinalsPlan = PLAIN_FINALS


@dataclass(slots=True)
class _Candidate:
    """A config under way."""

    number: int
    config: Config
    source: KernelSource
    render_us: float
    binary: Future[Binary] | None
    """None: the very kernel is known, or waits for a candidate with the same source"""


@dataclass(frozen=True, slots=True)
class _Launched:
    """A candidate on a device: its row is `running`."""

    key: TrialKey
    trial: Trial
    source: KernelSource


@dataclass(slots=True)
class _History:
    """What is known of a layer so far."""

    trials: list[Trial] = field(default_factory=list)
    evaluated: set[str] = field(default_factory=set)
    """source hashes, each of which cost one evaluation"""
    failures: Counter[str] = field(default_factory=Counter)
    messages: dict[str, tuple[int, Config]] = field(default_factory=dict)
    best: Trial | None = None
    reused: int = 0

    def count_failure(self, trial: Trial) -> None:
        """Count a trial that is not correct, under its outcome and its message."""
        self.failures[trial.outcome.value] += 1
        count, config = self.messages.get(trial.message, (0, trial.config))
        self.messages[trial.message] = (count + 1, config)

    def add(self, trial: Trial) -> None:
        """Count a finished trial."""
        self.trials.append(trial)
        if trial.compiled and trial.source_hash is not None:
            self.evaluated.add(trial.source_hash)
        if trial.outcome != Outcome.CORRECT:
            self.count_failure(trial)
        median = trial.median_us
        if median is not None and (self.best is None or median < (self.best.median_us or 0.0)):
            self.best = trial


class LayerLine:
    """Tunes one layer: several candidates under way, as many measured at once as there are devices."""

    def __init__(
        self, run: Run, layer: Layer, spaces: Sequence[SearchSpace], scope: Scope, start: Start = COLD_START
    ) -> None:
        self.run_of, self.study, self.evaluator, self.store = run, run.study, run.evaluator, run.store
        self.layer, self.spaces, self.scope = layer, {space.template: space for space in spaces}, scope
        self.history = _History()
        self.outside: dict[Config, Trial] = {}
        for trial in self.store.history(scope):
            if self._in_spaces(trial.config):
                self.history.add(trial)
            else:
                self.outside[trial.config] = trial
        self.incumbent = self.history.best
        self.search = Search(
            [space for space in spaces if space.default],
            sampler=self.study.sampler,
            seed=self.study.seed,
            budget=self.study.trials,
            history=self.history.trials,
            first=start.first,
            watch=self.study.stop_below is not None,
        )
        self.start = start
        self.quarantined = self.store.quarantined(scope)
        self.under_way: list[_Candidate] = []
        self.measuring: dict[Future[Measured], _Launched] = {}
        self.queue = min(2 * self.evaluator.slots, self.evaluator.ahead)
        """kernels given to the devices at most: each has its next at hand while the search proposes"""
        self.ready: Future[None] | None = None
        """done when the devices have the layer's data"""
        self.next_number = self.store.next_number(scope)
        self.new = 0
        self.started = run.clock()

    def run(self) -> LayerResult:
        """Evaluate until the budget, the time or the space ends, then hold the finals."""
        self._record_rejections()
        stopped = "" if self.run_of.search else "finals only"
        if not any(space.default for space in self.spaces.values()):
            stopped = "no feasible config"
        suspects = [] if stopped else self._suspects()
        searching = bool(suspects) or not (stopped or self._why_stop())
        with ThreadPoolExecutor(self.evaluator.slots, thread_name_prefix="measure") as threads:
            try:
                if searching:  # the first kernels are chosen and compiled meanwhile
                    self.ready = threads.submit(self.evaluator.begin_layer, self.layer.problem)
                for number, config in suspects:  # each alone, before anything else
                    self._start(number, config)
                    self._drain(threads)
                while not stopped:
                    while not stopped and len(self.under_way) + len(self.measuring) < self.evaluator.ahead:
                        stopped = self._why_stop() or self._ask()
                    self._advance(threads)
                self._drain(threads)
                if self.ready:
                    self.ready.result()
            except BaseException:
                self.under_way.clear()
                for future in self.measuring:
                    future.cancel()
                raise
        finals = None
        if self.history.best is not None and (
            self.run_of.finals.baselines or not self.run_of.search or self._undecided()
        ):
            if not searching:
                self.evaluator.begin_layer(self.layer.problem)
            finals = self._finals()
        self._report(ended=True)
        return LayerResult(
            layer=self.layer,
            name=self.scope.name,
            best=finals.winner if finals else self.history.best,
            evaluated=len(self.history.evaluated),
            new=self.new,
            failures=dict(self.history.failures),
            messages=dict(self.history.messages),
            stopped=stopped,
            starts=self._start_results(),
            finals=finals,
        )

    def _start_results(self) -> tuple[StartResult, ...]:
        """What came of the configs that the search started with, from what suggested them."""
        results = []
        for by in dict.fromkeys(self.start.first.values()):
            trials = [trial for trial in self.history.trials if self.start.first.get(trial.config) == by]
            timed = [trial for trial in trials if trial.median_us is not None]
            best = min(timed, key=lambda trial: trial.median_us or 0.0, default=None)
            if trials:
                results.append(StartResult(by, len(trials), self.start.layers if by == WARM_START else (), best))
        return tuple(results)

    def _undecided(self) -> bool:
        """Whether trials came since the last finals, or none were held: a killed run may have ended before its own."""
        held = any(
            row.basis == "finals"
            for row in self.store.best(self.scope.name, kind=self.evaluator.info.kind)
            if row.row.device.identity == self.evaluator.info.identity and row.row.policy == self.scope.policy
        )
        return self.new > 0 or (not held and len(entrants(self.history.trials, [])) > 1)

    # What is there already.

    def _in_spaces(self, config: Config) -> bool:
        space = self.spaces.get(config.template)
        return space is not None and space.row_of(config) is not None

    def _record_rejections(self) -> None:
        """Keep a trial for each config that breaks a rule, in spaces small enough to list them."""
        for space in self.spaces.values():
            for config in space.rejected(RECORDED_REJECTIONS):
                known = self.outside.get(config)
                if known is not None:
                    self.history.count_failure(known)
                    continue
                try:
                    space.bound.check(config)
                except Rejected as rejected:
                    trial = _rejected(Trial(self.next_number, config, Outcome.RUNNING), rejected)
                    self.store.add_trial(self.scope, trial)
                    self.next_number += 1
                    self.history.count_failure(trial)

    def _suspects(self) -> list[tuple[int, Config]]:
        """Trials that a killed run left running, to be tried once more; with a second strike, quarantined instead."""
        again = []
        for suspect in self.store.suspects(self.scope):
            if not self._in_spaces(suspect.trial.config):
                continue
            source_hash = suspect.key.source_hash
            if (
                suspect.attempts >= STRIKES
                and source_hash is not None
                and self.evaluator.info.kind not in ("null", "replay")
            ):
                message = f"{suspect.attempts} runs ended while it was running"
                self.store.quarantine(self.scope, source_hash, "crash", message)
                self.quarantined |= {source_hash}
            again.append((suspect.key.number, suspect.trial.config))
        return again

    # Asking and starting.

    def _full(self) -> bool:
        pending = {candidate.source.hash for candidate in self.under_way}
        pending |= {launched.source.hash for launched in self.measuring.values()}
        return len(self.history.evaluated | pending) >= self.study.trials

    def _why_stop(self) -> str:
        if self.run_of.stopping():
            return "interrupted"
        limit = self.study.time_budget_s
        if limit is not None and self.run_of.clock() - self.started >= limit:
            return "time"
        if self._full():
            return "budget"
        gain, least = self.search.expected_gain, self.study.stop_below
        if gain is not None and least is not None and gain < least:
            return f"expected gain {gain:.2%}, below {least:.2%}"
        return ""

    def _ask(self) -> str:
        """Start the next config; `exhausted` when the search has none left."""
        config = self.search.ask(self.next_number)
        if config is None:
            return "exhausted"
        self._start(self.next_number, config)
        self.next_number += 1
        return ""

    def _start(self, number: int, config: Config) -> None:
        """Render, and start compiling unless this very kernel is known, quarantined or under way."""
        before = self.run_of.clock()
        source = render(self.spaces[config.template].bound, config)
        twins = {candidate.source.hash for candidate in self.under_way}
        twins |= {launched.source.hash for launched in self.measuring.values()}
        spared = source.hash in twins | self.quarantined or self.store.known(self.scope, source.hash) is not None
        binary = None if spared else self.evaluator.compile(source)
        render_us = 1e6 * (self.run_of.clock() - before)
        self.under_way.append(_Candidate(number, config, source, render_us, binary))

    # Measuring and finishing.

    def _advance(self, threads: ThreadPoolExecutor) -> None:
        """Launch what is ready, then wait until something ends, unless more may be asked for at once."""
        self._launch(threads)
        if self.measuring:
            if len(self.measuring) < self.queue:
                _wait_any([*self.measuring, *self._compiling()])
            else:
                _wait_any(list(self.measuring))
            ended = [(future, self.measuring[future]) for future in self.measuring if future.done()]
            for future, _ in ended:
                del self.measuring[future]
            self._launch(threads, [launched for _, launched in ended])  # the device waits for nothing else
            for future, launched in ended:
                self._end(future, launched)
        elif self.under_way:
            _wait_any(self._compiling())

    def _compiling(self) -> list[Future[Binary]]:
        return [candidate.binary for candidate in self.under_way if candidate.binary is not None]

    def _drain(self, threads: ThreadPoolExecutor) -> None:
        """Finish everything under way."""
        while self.under_way or self.measuring:
            self._advance(threads)

    def _launch(self, threads: ThreadPoolExecutor, ended: Sequence[_Launched] = ()) -> None:
        """Give free devices the candidates whose binaries are there; take over what is known of the others.

        `ended` were measured, and are not stored yet.
        """
        measured_now = {launched.source.hash for launched in (*self.measuring.values(), *ended)}
        waiting: set[str] = set()
        for candidate in list(self.under_way):
            source_hash = candidate.source.hash
            if candidate.binary is None:
                if source_hash not in waiting | measured_now:
                    self.under_way.remove(candidate)
                    self._take_over(candidate)
            elif candidate.binary.done() and len(self.measuring) < self.queue:
                if self.ready:
                    self.ready.result()
                self.under_way.remove(candidate)
                self._measure(candidate, candidate.binary, threads)
                measured_now.add(source_hash)
            waiting.add(source_hash)

    def _take_over(self, candidate: _Candidate) -> None:
        """A kernel that is not run: its result is known, or it is quarantined."""
        known = self.store.known(self.scope, candidate.source.hash)
        number, config, by = candidate.number, candidate.config, self.search.proposed_by(candidate.config)
        if known is not None:
            trial = self.store.reuse_trial(self.scope, number, config, known, proposed_by=by)
            self.history.reused += 1
        else:
            message = "quarantined: it took down earlier runs; `autotune quarantine --clear` gives it another chance"
            trial = replace(self._running(candidate), outcome=Outcome.RUNTIME, reason="quarantined", message=message)
            self.store.add_trial(self.scope, trial, candidate.source, proposed_by=by)
        self._tell(trial)

    def _running(self, candidate: _Candidate) -> Trial:
        source = candidate.source
        return Trial(
            number=candidate.number,
            config=candidate.config,
            outcome=Outcome.RUNNING,
            source_hash=source.hash,
            accuracy=source.accuracy,
            deterministic=source.deterministic,
            phases=Phases(render_us=candidate.render_us),
        )

    def _measure(self, candidate: _Candidate, compiled: Future[Binary], threads: ThreadPoolExecutor) -> None:
        """Hand a compiled candidate to a device; `running` is committed first."""
        source, trial = candidate.source, self._running(candidate)
        by = self.search.proposed_by(candidate.config)
        self.new += 1
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
            trial = _rejected(trial, rejected)
            self.store.add_trial(self.scope, trial, source, proposed_by=by)
            self._tell(trial)
            return
        key = self.store.begin_trial(self.scope, candidate.number, candidate.config, source, proposed_by=by)
        best = self.history.best
        best_us = best.median_us if best else None
        cache = self.study.measure.cache
        future = threads.submit(self.evaluator.evaluate, source, binary, cache=cache, best_us=best_us)
        self.measuring[future] = _Launched(key, trial, source)

    def _end(self, future: Future[Measured], launched: _Launched) -> None:
        """Store what a device said of a candidate."""
        try:
            measured = future.result()
        except Rejected as rejected:
            trial = _rejected(launched.trial, rejected)
        else:
            trial = _correct(launched.trial, measured)
        self.store.end_trial(launched.key, trial)
        self._tell(trial)

    def _tell(self, trial: Trial) -> None:
        self.history.add(trial)
        self.search.tell(trial)
        self._report()

    def _occupancy(self, source: KernelSource, binary: Binary) -> float | None:
        """Theoretical, of the least occupied stage; None off the GPU.

        Raises Rejected when no block fits, or when the compiler ran out of registers by far: nothing is loaded then.
        """
        info, resources = self.evaluator.info, binary.resources
        if info.kind != "cuda":
            return None
        limit = self.study.spill_limit_bytes
        if resources.spill_bytes > limit:
            message = f"spills {resources.spill_bytes} bytes a thread; spill_limit_bytes of the study is {limit}"
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

    def _finals(self) -> FinalsResult | None:
        """Time the leaders in turns, decide, and store what was said; None when there is nothing to compare."""
        return hold_finals(
            self.run_of.finals,
            self.evaluator,
            self.store,
            self.scope,
            bounds={name: space.bound for name, space in self.spaces.items()},
            trials=self.history.trials,
            default=next((space.default for space in self.spaces.values()), None),
            incumbent=self.incumbent,
            cache=self.study.measure.cache,
            seed=self.study.seed,
        )

    def _report(self, *, ended: bool = False) -> None:
        self.run_of.observe(
            Progress(
                layer=self.scope.name,
                done=len(self.history.evaluated),
                budget=self.study.trials,
                best=self.history.best,
                failures=dict(self.history.failures),
                elapsed_s=self.run_of.clock() - self.started,
                reused=self.history.reused,
                ended=ended,
            )
        )


def _wait_any(futures: Sequence[Future[Measured] | Future[Binary]]) -> None:
    anything: Sequence[Future[object]] = [cast("Future[object]", future) for future in futures]
    wait(anything, return_when=FIRST_COMPLETED)


def _rejected(trial: Trial, rejected: Rejected) -> Trial:
    return replace(trial, outcome=Outcome(rejected.outcome), reason=rejected.reason, message=rejected.message)


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
