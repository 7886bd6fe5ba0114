"""Tune one layer: ask, render, compile, verify, measure, store and tell, then run the finals."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

from autotune.evaluation.evaluator import Evaluator
from autotune.family.space import SearchSpace
from autotune.problem import Layer
from autotune.search.search import Search
from autotune.search.warm_start import WarmStart
from autotune.study import Study
from autotune.trial import Config, Outcome, Trial
from autotune.tuning.layer_finals import PLAIN_FINALS, FinalsPlan, Held, InTurn, LayerFinals
from autotune.tuning.layer_result import (
    INTERRUPTED,
    PAUSED,
    DesignResult,
    LayerResult,
)
from autotune.tuning.layer_store import LayerState, StoredLayer, quarantine_suspects
from autotune.tuning.pipeline import LayerQueue, Pipeline
from autotune.tuning.trial_log import Phase, Progress, TrialLog, fastest

SHARE = 5  # at most 1/5 of a budget is pending, so that later configs in a small budget learn from earlier results


@dataclass(frozen=True, slots=True)
class Part:
    """The limits of one part of a cluster run, which continues a layer where earlier parts of the run left off."""

    evaluations: int
    """number of new evaluations after which the layer is paused"""
    spent_s: float
    """seconds of the layer's time budget that earlier parts used"""
    first_number: int
    """number of the run's first trial; the best trial with a smaller number is the incumbent of the finals"""


@dataclass(frozen=True, slots=True)
class Run:
    """The settings of a `tune` run, shared by all of its layers."""

    study: Study
    evaluator: Evaluator
    observe: Callable[[Progress], None]
    stopping: Callable[[], bool]
    clock: Callable[[], float] = time.perf_counter
    search: bool = True
    """False: only run the finals, on stored trials"""
    finals: FinalsPlan | None = PLAIN_FINALS
    rates: Mapping[str, float] = field(default_factory=dict)
    """measured rates of the device; empty if the device was never calibrated"""
    part: Part | None = None
    """None: the run is not divided into parts"""


@dataclass(frozen=True, slots=True)
class OpenLayer:
    """A layer to tune, with its search spaces, stored state and database writer."""

    layer: Layer
    spaces: Sequence[SearchSpace]
    state: LayerState
    writer: StoredLayer
    design: Callable[[], WarmStart | None]
    """makes the initial design when the search starts, so that the design can use this run's results for similar
    layers
    """


class TunedLayer:
    """A layer being tuned. Each call to `ask` starts a config in a pipeline, and `conclude` runs the finals.

    Asking for configs doesn't wait for results, so `Schedule` can tune several layers at once.
    """

    def __init__(self, run: Run, opened: OpenLayer) -> None:
        self.run_of, self.study, self.evaluator, self.opened = run, run.study, run.evaluator, opened
        self.layer, self.state, self.writer = opened.layer, opened.state, opened.writer
        self.spaces = {space.template: space for space in opened.spaces}
        self.bounds = {space.template: space.bound for space in opened.spaces}
        self.spent_s = 0.0
        """search time of the layer in this run, seconds; concurrent layers share the time"""
        self.log = TrialLog(
            self.state,
            label=self.state.name,
            budget=self.study.trials,
            observe=run.observe,
            clock=lambda: self.spent_s,
        )
        if run.part is not None:
            self.spent_s = run.part.spent_s
        for trial in self.state.trials:
            if self._in_spaces(trial.config):
                self.log.add(trial)
        self.incumbent = self._incumbent()
        self._evaluated_before = len(self.log.evaluated)
        self.begun = False
        self.stopped = "" if run.search else "finals only"
        """the reason why the layer starts no more configs; empty while it still starts configs"""
        self.result: LayerResult | None = None
        """set at the end of `conclude`"""
        self.suspects = () if self.stopped else self.log.suspects(self._in_spaces)
        self.design: WarmStart | None = None
        self._queue: LayerQueue | None = None

    def begin(self, pipeline: Pipeline) -> None:
        """Prepare the search, then repeat each trial that a killed run left `running`, one at a time."""
        self.begun = True
        if self.run_of.search:
            self.design = self.opened.design()
        self.search = Search(
            [space for space in self.spaces.values() if space.default],
            sampler=self.study.sampler,
            seed=self.study.seed,
            budget=self.study.certain_trials,
            history=self.log.trials,
            design=self.design,
            watch=self.study.min_gain is not None,
        )
        self.state = quarantine_suspects(self.state, self.suspects, self.writer, self.evaluator.info)
        if not self.suspects:
            self.stopped = self.stopped or self._why_stop(set())
            if self.stopped:
                return
        queue = pipeline.open(
            self.study,
            self.layer.problem,
            self.state,
            self.writer,
            self.bounds,
            best_us=lambda: self.best_us,
            ended=self._ended,
        )
        self._queue = queue
        self._report(phase="start")
        for suspect in self.suspects:
            pipeline.drain()
            pipeline.start(queue, suspect.number, suspect.config, self.search.proposed_by(suspect.config))
            pipeline.drain()

    @property
    def best_us(self) -> float | None:
        """The fastest correct kernel's median in microseconds, or None if no kernel is correct."""
        return self.log.best.median_us if self.log.best else None

    @property
    def start_us(self) -> float | None:
        """The time from which this run started: the best earlier kernel's, or else the first correct one's."""
        if self.incumbent is not None:
            return self.incumbent.median_us
        return next((trial.median_us for trial in self.log.trials if trial.median_us is not None), None)

    @property
    def evaluated(self) -> int:
        """The number of distinct kernels that were compiled, or failed to compile, in the study's entire history."""
        return len(self.log.evaluated)

    def under_way(self, pipeline: Pipeline) -> int:
        """Return the number of started configs without a result."""
        return pipeline.of(self._queue) if self._queue else 0

    def can_start(self, pipeline: Pipeline) -> bool:
        """Return whether to start another config before a pending one has ended."""
        if self._queue is None or not pipeline.can_start:
            return False
        if pipeline.of(self._queue) >= max(1, self.study.trials // SHARE):
            return False
        return not pipeline.has_enough(self._queue) or not self.search.is_random

    def ask(self, pipeline: Pipeline) -> None:
        """Start the next config or, if there is none, set `stopped` to the reason."""
        assert self._queue is not None  # noqa: S101 - it has begun and not stopped
        self.stopped = self._why_stop(pipeline.pending(self._queue))
        if not self.stopped:
            config = self.search.ask(self.log.next_number)
            if config is None:
                self.stopped = "exhausted"
            else:
                pipeline.start(self._queue, self.log.take_number(), config, self.search.proposed_by(config))

    def conclude(self, pipeline: Pipeline, finals_s: float) -> Generator[Future[object], None, None]:
        """Run the finals for up to `finals_s` seconds and set `result`. There must be no pending trials."""
        if self._queue is not None:
            yield cast("Future[object]", self._queue.ready)
            self._queue.ready.result()
        new = self._queue.evaluated if self._queue else 0
        finals = None
        plan = None if self.stopped == PAUSED else self.run_of.finals
        decided = self.run_of.search and new == 0 and self.state.finals_are_current
        if plan is not None and (plan.libraries or not decided) and self.log.best is not None:
            if self.run_of.stopping():
                self.stopped = INTERRUPTED
            else:
                self._report(phase="finals")
                finals = yield from self._hold(replace(plan, budget_s=finals_s), pipeline)
        self._report(ended=True)
        self.result = LayerResult(
            layer=self.layer,
            name=self.state.name,
            best=finals.winner if finals else self.log.best,
            evaluated=len(self.log.evaluated),
            new=new,
            failures=dict(self.log.failures),
            messages=dict(self.log.messages),
            stopped=self.stopped,
            design=self._design_result(),
            finals=finals,
        )

    def _hold(self, plan: FinalsPlan, pipeline: Pipeline) -> Held:
        def on_device(measure: Callable[[], InTurn]) -> Future[InTurn]:
            return pipeline.alone(partial(self._with_data, measure))

        finals = LayerFinals(
            plan=plan,
            evaluator=self.evaluator,
            writer=self.writer,
            problem=self.layer.problem,
            on_device=on_device,
            bounds=self.bounds,
            admitted=self.study.admitted(self.layer.problem),
            default=next((space.default for space in self.spaces.values() if not space.bound.template.baseline), None),
            cache=self.study.measure.cache,
            seed=self.study.seed,
            disprove=self._disprove,
        )
        return finals.hold(self.log.trials, self.incumbent)

    def _with_data(self, measure: Callable[[], InTurn]) -> InTurn:
        """Run `measure` as soon as the devices have the layer's data, which a search has already requested."""
        if self._queue is None:
            self.evaluator.begin_layer(self.layer.problem)
        return measure()

    def _disprove(self, trial: Trial, message: str) -> None:
        """Record that a correct trial's kernel was wrong in the finals, which removes its time."""
        self.writer.disprove(trial.source_hash or "", message)
        self.log.disprove(replace(trial, outcome=Outcome.WRONG_RESULT, reason="wrong_after_timing", message=message))

    def _design_result(self) -> DesignResult | None:
        """Return the results of the initial configs, or None if there were none."""
        if self.design is None:
            return None
        trials = [trial for trial in self.log.trials if self.search.proposed_by(trial.config) == self.design.by]
        return DesignResult(self.design.by, len(trials), self.design.layers, fastest(trials)) if trials else None

    # Stored results.

    def _incumbent(self) -> Trial | None:
        """Return the best trial from before this run."""
        part = self.run_of.part
        if part is None:
            return self.log.best
        return fastest(trial for trial in self.log.trials if trial.number < part.first_number)

    def _in_spaces(self, config: Config) -> bool:
        space = self.spaces.get(config.template)
        return space is not None and space.row_of(config) is not None

    # Asking and starting.

    def _why_stop(self, pending: set[str]) -> str:
        """Return why no further config should start while these sources are pending, or "" if one should."""
        if self.run_of.stopping():
            return INTERRUPTED
        limit = self.study.time_budget_s
        if limit is not None and self.spent_s >= limit:
            return "time"
        evaluated = len(self.log.evaluated | pending)
        if evaluated >= self.study.trials:
            return "budget"
        part = self.run_of.part
        if part is not None and evaluated - self._evaluated_before >= part.evaluations:
            return PAUSED
        gain, least = self.search.expected_gain, self.study.min_gain
        if gain is not None and least is not None and gain < least:
            return f"expected gain {gain:.2%}, below {least:.2%}"
        return ""

    def _ended(self, trial: Trial, *, known: bool) -> None:
        """Count a stored trial and tell the search about it."""
        self.log.add(trial, known=known)
        self.search.tell(trial)
        self._report(trial)

    def _report(self, trial: Trial | None = None, *, ended: bool = False, phase: Phase = "search") -> None:
        self.log.report(len(self.log.evaluated), trial=trial, ended=ended, phase=phase)
