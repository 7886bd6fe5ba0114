"""store -> dispatch: the times of every layer's best few kernels on every layer that they may serve.

What the database has is taken; what it lacks is measured as trials of the layer, so that nothing is measured twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.dispatch.dispatcher import Property
from autotune.dispatch.portfolio import Matrix
from autotune.errors import Rejected, StoreError, StudyError
from autotune.evaluation.evaluator import Evaluator
from autotune.family.space import Admission, BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.similarity import SAME, config_similarity, property_similarity
from autotune.store import Scope, Store, StudyKey, TemplateRecord, TrialRow
from autotune.study import Study
from autotune.trial import Config, Outcome, Trial
from autotune.tuning.layer_store import StoredLayer
from autotune.tuning.pipeline import Pipeline
from autotune.tuning.trial_log import Progress, TrialLog
from autotune.tuning.tune import policy

DISPATCH = "dispatch"
"""What asked for the trials of a matrix."""
SAFE = "implicit_gemm"
"""The family whose default config suits any problem."""
FEW = 4
"""Of each layer, its fastest configs that are tried on the others."""
WIDE = 4
"""Of each layer, the configs tried that may serve the most layers, of those not far behind its best."""
NEAR = 1.15
"""How many times its layer's best time such a config may take."""


@dataclass(frozen=True, slots=True)
class Run:
    """What building a matrix is asked for."""

    study: Study
    templates: Mapping[str, KernelTemplate]
    evaluator: Evaluator
    store: Store
    observe: Callable[[Progress], None] = lambda _: None
    stopping: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.perf_counter

    @property
    def families(self) -> tuple[str, ...]:
        """Those that the study searches or names, and that of the safe default."""
        named = (technique.template for technique in self.study.techniques)
        return tuple(dict.fromkeys([*(self.study.templates or self.templates), *named, SAFE]))


@dataclass(slots=True)
class _Row:
    """One layer of the matrix: the store's place for it, and what is known of each config there."""

    layer: Layer
    scope: Scope
    bounds: Mapping[str, BoundTemplate]
    times_us: dict[Config, float | None] = field(default_factory=dict)
    """None: it failed"""
    own: Mapping[Config, float] = field(default_factory=dict)
    """correct configs of the layer's own tuning to their times, fastest first"""

    @property
    def best_us(self) -> float | None:
        """The time of the layer's own best kernel; of an interpolated layer, the best so far."""
        return min(self.own.values() or filter(None, self.times_us.values()), default=None)

    def evaluable(self, config: Config) -> bool:
        """Whether the device can evaluate a config: one that replays only what was recorded."""
        listed = self.bounds[config.template].listed
        return listed is None or config in listed

    def padded_outputs(self, config: Config) -> int:
        """The padded outputs of a config, those that the device could compute in its time; 0 where it breaks a rule."""
        bound = self.bounds[config.template]
        try:
            names = bound.check(config)
        except Rejected:
            return 0
        return bound.bind(bound.template.padded_work).integer(names) if bound.supported else 0


def default_config(template: KernelTemplate) -> Config:
    """The first value of every parameter."""
    return Config(template.name, tuple((param.name, param.values[0]) for param in template.params))


def build_matrix(
    run: Run,
    key: StudyKey,
    layers: Sequence[Layer],
    properties: Sequence[Property],
    *,
    held: Set[int] = frozenset(),
    interpolated: Sequence[Layer] = (),
) -> tuple[Matrix, int]:
    """The matrix of a study's layers and those interpolated between them, and how many of its cells were measured now.

    Layers that are held out suggest no config. Interpolated layers that nothing serves are left out. When stopped, it
    has what there is. Raises StoreError for a layer of the study without a correct kernel on this device.
    """
    records = [TemplateRecord(one.name, one.hash, one.header) for one in run.templates.values()]
    tuned = [_row(run, key, layer, records) for layer in layers]
    for row in tuned:
        if not row.own:
            tune = f"run `autotune tune {run.study.path or run.study.name}` first"
            raise StoreError(
                f"{run.store.path}: {row.scope.name} has no correct kernel on {run.evaluator.info.name}; "
                + run.store.best.advice(row.scope.name, run.evaluator.info, tune)
            )
    rows = [*tuned, *(replace(_row(run, key, layer, records), own={}) for layer in interpolated)]
    default = default_config(run.templates[SAFE])
    outputs_of: dict[Config, tuple[int, ...]] = {}

    def padded_outputs(config: Config) -> tuple[int, ...]:
        if config not in outputs_of:
            outputs_of[config] = tuple(row.padded_outputs(config) for row in rows)
        return outputs_of[config]

    seen = [number for number in range(len(tuned)) if number not in held]
    top_configs = [
        _top_configs(row, lambda config: sum(padded_outputs(config)[number] > 0 for number in seen))
        if number in seen
        else ()
        for number, row in enumerate(tuned)
    ]
    techniques = _techniques(run.study, [tuned[number] for number in seen])
    configs = tuple(dict.fromkeys([default, *(config for few in top_configs for config in few), *techniques.values()]))
    measured = 0
    for number, row in enumerate(rows):
        if run.stopping():
            break
        lacking = [config for config in configs if config not in row.times_us and padded_outputs(config)[number]]
        wanted = [config for config in lacking if row.evaluable(config)]
        measured += _measure(run, row, wanted)
    kept = [number for number, row in enumerate(rows) if number < len(tuned) or row.best_us is not None]
    rows = [rows[number] for number in kept]
    fits = np.array([padded_outputs(config) for config in configs], dtype=np.int64).T[kept]
    times = np.array([[row.times_us.get(config) or np.inf for config in configs] for row in rows])
    # What was not evaluated, where a run was stopped or the device could not, counts as failed on a layer of the study.
    due = [[number < len(tuned) or config in row.times_us for config in configs] for number, row in enumerate(rows)]
    values = np.array([[item.of(row.layer.problem) for item in properties] for row in rows], dtype=np.int64)
    positions = {config: position for position, config in enumerate(configs)}
    matrix = Matrix(
        layers=tuple(row.layer for row in rows),
        configs=configs,
        times_us=np.where(fits > 0, times, np.inf),
        failed=(fits > 0) & ~np.isfinite(times) & np.array(due),
        padded_outputs=fits,
        best_us=np.array([row.best_us for row in rows]),
        top_configs=tuple(tuple(positions[config] for config in few) for few in top_configs),
        default=0,
        config_similarity=config_similarity({name: one.params for name, one in run.templates.items()}, configs),
        layer_similarity=property_similarity([item.power for item in properties], values, values) / SAME,
        values=values,
        techniques={name: positions[config] for name, config in techniques.items()},
    )
    return matrix, measured


def _row(run: Run, key: StudyKey, layer: Layer, records: Sequence[TemplateRecord]) -> _Row:
    study, evaluator, store = run.study, run.evaluator, run.store
    scope = store.scopes.open(key, layer, evaluator.info, evaluator.environment, policy(study), records)
    listed = evaluator.listed(layer.problem, cache=policy(study))
    admission = Admission(study.admitted(layer.problem), study.workspace_limit_bytes, listed, study.prune)
    bounds = {
        name: BoundTemplate(run.templates[name], layer.problem, evaluator.info, admission) for name in run.families
    }
    row = _Row(layer, scope, bounds)
    own: dict[Config, float] = {}
    for trial_row in _here(run, layer):
        trial = trial_row.trial
        config = run.templates[trial.config.template].today(trial.config)
        if config is None:
            continue
        # The kernel of an edited family may be another: its trial is made again, or copied if it is the same.
        current = trial_row.template_hash == run.templates[config.template].hash
        time_us = trial_row.ranked_us or trial.median_us
        if time_us is not None and trial.accuracy in study.admitted(layer.problem):
            if current:
                row.times_us[config] = time_us
            if trial_row.proposed_by != DISPATCH:
                own[config] = time_us
        elif trial.compiled and current:
            row.times_us.setdefault(config, None)
    row.own = dict(sorted(own.items(), key=lambda one: (one[1], str(one[0]))))
    return row


def _here(run: Run, layer: Layer) -> Iterable[TrialRow]:
    """The layer's finished trials on this device in this environment, those that count last."""
    rows = [
        row
        for row in run.store.trials.list(layer.problem, kind=run.evaluator.info.kind)
        if row.device.identity == run.evaluator.info.identity
        and row.environment.identity == run.evaluator.environment.identity
        and row.policy == policy(run.study)
        and row.trial.outcome != Outcome.RUNNING
        and row.trial.config.template in run.families
        and (row.origin == "measured" or row.ranked_us is not None)
    ]
    return sorted(rows, key=lambda row: row.ranked_us is not None)


def _top_configs(row: _Row, serves: Callable[[Config], int]) -> tuple[Config, ...]:
    """A layer's fastest few configs, and of those that are nearly as fast the few that may serve the most layers."""
    near = [config for config, time_us in row.own.items() if time_us <= NEAR * min(row.own.values())]
    wide = sorted(near, key=lambda config: -serves(config))  # stable: of equals the faster
    return tuple(dict.fromkeys([*list(row.own)[:FEW], *wide[:WIDE]]))


def _techniques(study: Study, rows: Sequence[_Row]) -> dict[str, Config]:
    """Of each technique that the study's rules name, the config that serves the most layers, the fastest of equals.

    Raises StudyError for a technique of which there is no correct trial.
    """
    found: dict[str, Config] = {}
    for technique in study.techniques:
        if technique.name not in {name for rule in study.rules for name in (rule.below, rule.above)}:
            continue
        times: dict[Config, list[float]] = {}
        for row in rows:
            for config in row.own:
                values = config.values()
                if config.template == technique.template and all(
                    values.get(name) in kept for name, kept in technique.space.items()
                ):
                    times.setdefault(config, []).append(row.times_us.get(config) or np.inf)
        if not times:
            raise StudyError(
                f"{study.path or study.name}: a rule names the technique {technique.name!r}, of which there is no "
                f"correct kernel; run `autotune ladder {study.path or study.name}` first"
            )
        found[technique.name] = min(times, key=lambda config: (-len(times[config]), sum(times[config]), str(config)))
    return found


def _measure(run: Run, row: _Row, wanted: Sequence[Config]) -> int:
    """Evaluate configs on a layer as trials of it, until stopped; how many were measured and not known."""
    if not wanted:
        return 0
    label = f"{row.scope.name} as others"
    stored = StoredLayer(run.store, row.scope, run.evaluator.info, run.evaluator.environment)
    log = TrialLog(stored, label=label, budget=len(wanted), observe=run.observe, clock=run.clock)

    def ended(trial: Trial, *, known: bool) -> None:
        row.times_us[trial.config] = trial.median_us
        log.add(trial, known=known)
        log.report(len(log.trials))

    suspects = log.suspects(set(wanted).__contains__)
    log.quarantine(suspects, run.evaluator.info)
    with Pipeline(run.evaluator, clock=run.clock) as pipeline:
        problem = row.scope.layer.problem
        lane = pipeline.open(run.study, problem, stored, row.bounds, best_us=lambda: row.best_us, ended=ended)
        for suspect in suspects:
            pipeline.start(lane, suspect.key.number, suspect.trial.config, DISPATCH)
            pipeline.drain()
        for config in wanted:
            if config in row.times_us or run.stopping():
                continue
            while not pipeline.has_room:
                pipeline.advance()
            pipeline.start(lane, log.take_number(), config, DISPATCH)
        pipeline.drain()
    log.report(len(log.trials), ended=True)
    return lane.evaluated
