"""store -> dispatch: the times of configs on layers, which are the cells of the matrix.

If the database lacks a time, it is measured as a trial of the layer and stored, so that nothing is measured twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.errors import Rejected
from autotune.evaluation.evaluator import Evaluator
from autotune.family.space import Admission, BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.store import Store, StudyKey, TrialRow
from autotune.study import Study
from autotune.trial import Config, Outcome, Trial
from autotune.tuning.layer_store import StoredLayer, quarantine_suspects, template_records
from autotune.tuning.pipeline import LayerQueue, Pipeline
from autotune.tuning.trial_log import Progress, TrialLog

DISPATCH = "dispatch"
"""`proposed_by` of the trials that measure a cell."""
SAFE = "implicit_gemm"
"""The family whose default config supports every problem."""


@dataclass(frozen=True, slots=True)
class Run:
    """The study, device and database that a dispatcher is built from."""

    study: Study
    templates: Mapping[str, KernelTemplate]
    evaluator: Evaluator
    store: Store
    observe: Callable[[Progress], None] = lambda _: None
    stopping: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.perf_counter

    @property
    def families(self) -> tuple[str, ...]:
        """The families used by the study and its techniques, and the safe default's."""
        techniques = (technique.template for technique in self.study.techniques)
        return tuple(dict.fromkeys([*(self.study.templates or self.templates), *techniques, SAFE]))


@dataclass(slots=True)
class Row:
    """A row of the matrix: a layer and each config's known time on it."""

    name: str
    """`study.layer`"""
    layer: Layer
    bounds: Mapping[str, BoundTemplate]
    times_us: dict[Config, float | None] = field(default_factory=dict)
    """config to its time on the layer; None if the config failed"""
    own: Mapping[Config, float] = field(default_factory=dict)
    """correct configs of the layer's own tuning with their times, fastest first; if the layer was not tuned, all
    correct configs
    """

    @property
    def best_us(self) -> float | None:
        """The time of the layer's own best kernel or, if it wasn't tuned, its best known time."""
        return min(self.own.values() or filter(None, self.times_us.values()), default=None)

    def evaluable(self, config: Config) -> bool:
        """Return whether the device can evaluate a config. A replay device can only evaluate recorded ones."""
        listed = self.bounds[config.template].listed
        return listed is None or config in listed

    def padded_outputs(self, config: Config) -> int:
        """Return the number of outputs that the device could compute in a config's time, or 0 if the config breaks a
        rule.
        """
        bound = self.bounds[config.template]
        if not bound.supported:
            return 0
        try:
            names = bound.check(config)
        except Rejected:
            return 0
        return bound.bind(bound.template.padded_work).integer(names)


def read_row(run: Run, layer: Layer) -> Row:
    """Read the stored times for one of the study's layers on this device, without writing anything."""
    study, evaluator = run.study, run.evaluator
    listed = evaluator.listed(layer.problem, cache=study.measurement_mode)
    admission = Admission(study.admitted(layer.problem), study.workspace_limit_bytes, listed, study.prune)
    bounds = {
        name: BoundTemplate(run.templates[name], layer.problem, evaluator.info, admission) for name in run.families
    }
    row = Row(f"{study.name}.{layer.name}", layer, bounds)
    own: dict[Config, float] = {}
    for trial_row in _here(run, layer):
        trial = trial_row.trial
        config = run.templates[trial.config.template].current_config(trial.config)
        if config is None:
            continue
        # An edited family may render another kernel. In that case the trial is repeated; otherwise it is copied.
        current = trial_row.template_hash == run.templates[config.template].hash
        time_us = trial_row.ranking_median_us or trial.median_us
        if time_us is not None and trial.accuracy in study.admitted(layer.problem):
            if current:
                row.times_us[config] = time_us
            if trial_row.proposed_by != DISPATCH:
                own[config] = time_us
        elif trial.compiled and current:
            row.times_us.setdefault(config, None)
    own = own or {config: time_us for config, time_us in row.times_us.items() if time_us is not None}
    row.own = dict(sorted(own.items(), key=lambda one: (one[1], str(one[0]))))
    return row


def _here(run: Run, layer: Layer) -> Iterable[TrialRow]:
    """Return the layer's finished trials on this device in this environment.

    They are in increasing order of precedence, so trials that are ranked come last.
    """
    rows = [
        row
        for row in run.store.trials.list(layer.problem, kind=run.evaluator.info.kind)
        if row.device.identity == run.evaluator.info.identity
        and row.environment.identity == run.evaluator.environment.identity
        and row.measurement_mode == run.study.measurement_mode
        and row.trial.outcome != Outcome.RUNNING
        and row.trial.config.template in run.families
        and (row.origin == "measured" or row.ranking_median_us is not None)
    ]
    return sorted(rows, key=lambda row: row.ranking_median_us is not None)


def measure(
    run: Run,
    key: StudyKey,
    wanted: Sequence[tuple[Row, Sequence[Config]]],
    observe: Callable[[Progress], None] = lambda _: None,
) -> int:
    """Evaluate configs on layers, as trials of these layers, until the run is stopped.

    Returns the number of measured configs, not counting reused results.
    """
    with Pipeline(run.evaluator, clock=run.clock) as pipeline:
        queues = [
            _start(run, key, pipeline, row, configs, observe)
            for row, configs in wanted
            if configs and not run.stopping()
        ]
        pipeline.drain()
    for _, log in queues:
        log.report(len(log.trials), ended=True)
    return sum(queue.evaluated for queue, _ in queues)


def _start(
    run: Run,
    key: StudyKey,
    pipeline: Pipeline,
    row: Row,
    wanted: Sequence[Config],
    observe: Callable[[Progress], None],
) -> tuple[LayerQueue, TrialLog]:
    """Start configs on a layer, beginning with a killed run's suspects, each of which runs alone."""
    info, environment = run.evaluator.info, run.evaluator.environment
    records, mode = template_records(run.templates), run.study.measurement_mode
    stored = StoredLayer.open(run.store, key, row.layer, info, environment, mode, records)
    state = stored.state()
    log = TrialLog(state, label=f"{row.name} as others", budget=len(wanted), observe=observe, clock=run.clock)

    def ended(trial: Trial, *, known: bool) -> None:
        row.times_us[trial.config] = trial.median_us
        log.add(trial, known=known)
        log.report(len(log.trials))

    suspects = log.suspects(set(wanted).__contains__)
    state = quarantine_suspects(state, suspects, stored, info)
    problem = row.layer.problem
    queue = pipeline.open(run.study, problem, state, stored, row.bounds, best_us=lambda: row.best_us, ended=ended)
    for suspect in suspects:
        pipeline.drain()
        pipeline.start(queue, suspect.number, suspect.config, DISPATCH)
        pipeline.drain()
    for config in wanted:
        if config in row.times_us or run.stopping():
            continue
        while not pipeline.can_start:
            pipeline.advance()
        pipeline.start(queue, log.take_number(), config, DISPATCH)
    return queue, log
