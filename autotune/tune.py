"""The whole line: study, problem, template, space, render, compile, verify, measure, store, search."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace

from autotune.compile import Binary
from autotune.errors import NoTemplate, Rejected, StudyError
from autotune.evaluate import Evaluator
from autotune.occupancy import occupancy
from autotune.problem import Layer
from autotune.render import render
from autotune.search import Search
from autotune.source import KernelSource
from autotune.space import Admission, BoundTemplate, SearchSpace
from autotune.store import Scope, Store, StudyRecord, TemplateRecord
from autotune.study import Study
from autotune.template import KernelTemplate
from autotune.trial import Config, Outcome, Phases, Trial

RECORDED_REJECTIONS = 1000  # configs of a family's full product, up to which each rejected one is stored


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
    stopped: str
    """why it ended: budget, time, exhausted or interrupted"""


@dataclass(slots=True)
class _Candidate:
    """A config under way."""

    number: int
    config: Config
    source: KernelSource
    render_us: float
    binary: Future[Binary] | None
    """None: waits for a candidate with the same source"""


@dataclass(slots=True)
class _History:
    """What is known of a layer so far."""

    trials: list[Trial] = field(default_factory=list)
    evaluated: set[str] = field(default_factory=set)
    """source hashes, each of which cost one evaluation"""
    failures: Counter[str] = field(default_factory=Counter)
    best: Trial | None = None
    reused: int = 0

    def add(self, trial: Trial) -> None:
        """Count a finished trial."""
        self.trials.append(trial)
        if trial.compiled and trial.source_hash is not None:
            self.evaluated.add(trial.source_hash)
        if trial.outcome != Outcome.CORRECT:
            self.failures[trial.outcome.value] += 1
        median = trial.median_us
        if median is not None and (self.best is None or median < (self.best.median_us or 0.0)):
            self.best = trial


def tune(
    study: Study,
    templates: Mapping[str, KernelTemplate],
    evaluator: Evaluator,
    store: Store,
    *,
    layers: Sequence[Layer] | None = None,
    fresh: bool = False,
    observe: Callable[[Progress], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[LayerResult, ...]:
    """Tune the layers of a study, all or those given, and return what came of each.

    Raises StudyError when a layer has no family, before anything is run.
    """
    chosen = study.layers if layers is None else layers
    spaces = {layer.name: open_spaces(study, layer, templates, evaluator) for layer in chosen}
    key = store.begin_study(StudyRecord(study.name, study.seed, study.text, study.layers), fresh=fresh)
    records = [TemplateRecord(template.name, template.hash, template.header) for template in templates.values()]
    results = []
    for layer in chosen:
        scope = store.scope(key, layer, evaluator.info, evaluator.environment, policy(study), records)
        line = _LayerLine(study, layer, spaces[layer.name], evaluator, store, scope, observe, stopping, clock)
        results.append(line.run())
        if stopping():
            break
    return tuple(results)


def policy(study: Study) -> str:
    """How trials are verified and timed, as part of their identity."""
    return study.measure.cache


def open_spaces(
    study: Study, layer: Layer, templates: Mapping[str, KernelTemplate], evaluator: Evaluator
) -> list[SearchSpace]:
    """The search spaces of the families that serve a layer. Raises StudyError when none does, saying why."""
    for name in (*(study.templates or ()), *(study.space or {})):
        if name not in templates:
            raise StudyError(
                f"{study.path or study.name}: no template named {name!r}; there are {', '.join(templates)}"
            )
    admission = Admission(study.admitted(layer.problem), study.workspace_limit_bytes)
    spaces, refusals = [], []
    for name in study.templates or tuple(templates):
        bound = BoundTemplate(templates[name], layer.problem, evaluator.info, admission)
        narrowed = (study.space or {}).get(name, {})
        if not bound.supported:
            refusals.append(f"{name} needs {templates[name].supports.text} and {templates[name].arch.text}")
            continue
        space = SearchSpace(bound, narrowed, seed=study.seed)
        if space.default is None:
            refusals.append(f"{name} has no feasible config (accuracy classes {', '.join(admission.accuracy)})")
            continue
        spaces.append(space)
    if not spaces:
        raise NoTemplate(
            f"{study.path or study.name}: layer {layer.name} ({layer.problem}): no template supports it: "
            f"{'; '.join(refusals)}"
        )
    return spaces


class _LayerLine:
    """The line for one layer: ask, render, compile, verify, measure, store, tell."""

    def __init__(
        self,
        study: Study,
        layer: Layer,
        spaces: Sequence[SearchSpace],
        evaluator: Evaluator,
        store: Store,
        scope: Scope,
        observe: Callable[[Progress], None],
        stopping: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self.study, self.layer, self.spaces = study, layer, {space.template: space for space in spaces}
        self.evaluator, self.store, self.scope = evaluator, store, scope
        self.observe, self.stopping, self.clock = observe, stopping, clock
        self.history = _History()
        self.outside: set[Config] = set()
        for trial in store.history(scope):
            if self._in_spaces(trial.config):
                self.history.add(trial)
            else:
                self.outside.add(trial.config)
        self.search = Search(
            spaces, sampler=study.sampler, seed=study.seed, budget=study.trials, history=self.history.trials
        )
        self.under_way: list[_Candidate] = []
        self.next_number = store.next_number(scope)
        self.new = 0
        self.started = clock()

    def run(self) -> LayerResult:
        """Evaluate until the budget, the time or the space ends."""
        self._record_rejections()
        stopped = ""
        suspects = [suspect for suspect in self.store.suspects(self.scope) if self._in_spaces(suspect.trial.config)]
        if suspects or not self._full():
            self.evaluator.begin_layer(self.layer.problem)
        for suspect in suspects:
            self._start(suspect.key.number, suspect.trial.config)
            self._finish(self.under_way.pop())
        while not stopped:
            while not stopped and len(self.under_way) < self.evaluator.ahead:
                stopped = self._why_stop()
                if not stopped:
                    config = self.search.ask(self.next_number)
                    if config is None:
                        stopped = "exhausted"
                    else:
                        self._start(self.next_number, config)
                        self.next_number += 1
            while self.under_way and (stopped or len(self.under_way) >= self.evaluator.ahead):
                self._finish(self._ready())
        self._report(ended=True)
        return LayerResult(
            layer=self.layer,
            name=self.scope.name,
            best=self.history.best,
            evaluated=len(self.history.evaluated),
            new=self.new,
            failures=dict(self.history.failures),
            stopped=stopped,
        )

    def _record_rejections(self) -> None:
        """Keep a trial for each config that breaks a rule, in spaces small enough to list them."""
        for space in self.spaces.values():
            for config in space.rejected(RECORDED_REJECTIONS):
                if config not in self.outside:
                    try:
                        space.bound.check(config)
                    except Rejected as rejected:
                        trial = Trial(
                            number=self.next_number,
                            config=config,
                            outcome=Outcome(rejected.outcome),
                            reason=rejected.reason,
                            message=rejected.message,
                        )
                        self.store.add_trial(self.scope, trial)
                        self.next_number += 1

    def _in_spaces(self, config: Config) -> bool:
        space = self.spaces.get(config.template)
        return space is not None and space.row_of(config) is not None

    def _full(self) -> bool:
        pending = {candidate.source.hash for candidate in self.under_way} - self.history.evaluated
        return len(self.history.evaluated) + len(pending) >= self.study.trials

    def _why_stop(self) -> str:
        if self.stopping():
            return "interrupted"
        limit = self.study.time_budget_s
        if limit is not None and self.clock() - self.started >= limit:
            return "time"
        return "budget" if self._full() else ""

    def _start(self, number: int, config: Config) -> None:
        """Render, and start compiling unless this very kernel is known or under way."""
        before = self.clock()
        source = render(self.spaces[config.template].bound, config)
        twin = any(candidate.source.hash == source.hash for candidate in self.under_way)
        known = not twin and self.store.known(self.scope, source.hash) is not None
        binary = None if twin or known else self.evaluator.compile(source)
        render_us = 1e6 * (self.clock() - before)
        self.under_way.append(_Candidate(number, config, source, render_us, binary))

    def _ready(self) -> _Candidate:
        """The first candidate whose binary is there, waiting if none is."""
        futures = [candidate.binary for candidate in self.under_way if candidate.binary is not None]
        if futures and not any(candidate.binary is None for candidate in self.under_way[:1]):
            wait(futures, return_when=FIRST_COMPLETED)
        for position, candidate in enumerate(self.under_way):
            twins = {other.source.hash for other in self.under_way[:position]}
            if candidate.binary is None and candidate.source.hash not in twins:
                return self.under_way.pop(position)
            if candidate.binary is not None and candidate.binary.done():
                return self.under_way.pop(position)
        raise AssertionError("a candidate without a binary always follows its twin")

    def _finish(self, candidate: _Candidate) -> None:
        """Measure a candidate or take over what is known of it; store it; tell the search."""
        known = self.store.known(self.scope, candidate.source.hash)
        if known is not None:
            trial = self.store.reuse_trial(self.scope, candidate.number, candidate.config, known)
            self.history.reused += 1
        else:
            trial = self._evaluate(candidate)
            self.new += 1
        self.history.add(trial)
        self.search.tell(trial)
        self._report()

    def _evaluate(self, candidate: _Candidate) -> Trial:
        source = candidate.source
        trial = Trial(
            number=candidate.number,
            config=candidate.config,
            outcome=Outcome.RUNNING,
            source_hash=source.hash,
            accuracy=source.accuracy,
            deterministic=source.deterministic,
            phases=Phases(render_us=candidate.render_us),
        )
        key = self.store.begin_trial(self.scope, candidate.number, candidate.config, source)
        try:
            binary = (candidate.binary or self.evaluator.compile(source)).result()
            trial = replace(
                trial,
                phases=replace(trial.phases, compile_us=binary.compile_us),
                resources=binary.resources,
                smem_bytes=binary.resources.static_smem_bytes + max(stage.smem_bytes for stage in source.stages),
            )
            trial = replace(trial, occupancy=self._occupancy(source, binary))
            best = self.history.best
            measured = self.evaluator.evaluate(
                source, binary, cache=self.study.measure.cache, best_us=best.median_us if best else None
            )
        except Rejected as rejected:
            trial = replace(trial, outcome=Outcome(rejected.outcome), reason=rejected.reason, message=rejected.message)
        else:
            trial = replace(
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
        self.store.end_trial(key, trial)
        return trial

    def _occupancy(self, source: KernelSource, binary: Binary) -> float | None:
        """Theoretical, of the least occupied stage; None off the GPU. Raises Rejected when no block fits."""
        info, resources = self.evaluator.info, binary.resources
        if info.kind != "cuda":
            return None
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

    def _report(self, *, ended: bool = False) -> None:
        self.observe(
            Progress(
                layer=self.scope.name,
                done=len(self.history.evaluated),
                budget=self.study.trials,
                best=self.history.best,
                failures=dict(self.history.failures),
                elapsed_s=self.clock() - self.started,
                reused=self.history.reused,
                ended=ended,
            )
        )
