"""store -> dispatch: the times of every layer's best few kernels on every layer that they support."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from autotune.dispatch.cells import SAFE, Row, Run, measure, read_row
from autotune.dispatch.dispatcher import Property
from autotune.dispatch.portfolio import Matrix
from autotune.distance import SAME, config_similarity, property_similarity
from autotune.errors import StoreError, StudyError
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.store import StudyKey
from autotune.study import Study
from autotune.trial import Config

FEW = 4
"""The number of a layer's fastest configs that are tried on other layers."""
WIDE = 4
"""The number of a layer's configs to try that support the most layers, among those close to its best."""
NEAR = 1.15
"""The largest ratio of such a config's time to its layer's best time."""


def default_config(template: KernelTemplate) -> Config:
    """The first value of every parameter."""
    return Config(template.name, tuple((param.name, param.values[0]) for param in template.params))


def tuned_rows(run: Run, layers: Sequence[Layer]) -> list[Row]:
    """The stored times of a study's layers. Raises StoreError if one has no correct kernel on this device."""
    rows = [read_row(run, layer) for layer in layers]
    for row in rows:
        if not row.own:
            tune = f"run `autotune tune {run.study.path or run.study.name}` first"
            raise StoreError(
                f"{run.store.path}: {row.name} has no correct kernel on {run.evaluator.info.name}; "
                + run.store.best.advice(row.name, run.evaluator.info, tune)
            )
    return rows


def build_matrix(
    run: Run,
    key: StudyKey,
    tuned: Sequence[Row],
    properties: Sequence[Property],
    *,
    held: Set[int] = frozenset(),
    interpolated: Sequence[Layer] = (),
    named: Mapping[str, Config] = MappingProxyType({}),
) -> tuple[Matrix, int]:
    """The matrix of a study's layers and the layers interpolated between them, and the number of cells measured now.

    The matrix includes the `named` configs. Held-out layers contribute no config, and interpolated layers that no
    kernel supports are dropped. A stopped run returns the cells it has.
    """
    rows = [*tuned, *(replace(read_row(run, layer), own={}) for layer in interpolated)]
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
    configs = tuple(dict.fromkeys([default, *(config for few in top_configs for config in few), *named.values()]))
    wanted = [
        (
            row,
            [one for one in configs if one not in row.times_us and padded_outputs(one)[number] and row.evaluable(one)],
        )
        for number, row in enumerate(rows)
    ]
    measured = measure(run, key, wanted, run.observe)
    kept = [number for number, row in enumerate(rows) if number < len(tuned) or row.best_us is not None]
    rows = [rows[number] for number in kept]
    fits = np.array([padded_outputs(config) for config in configs], dtype=np.int64).T[kept]
    times = np.array([[row.times_us.get(config) or np.inf for config in configs] for row in rows])
    # A cell that was not evaluated, because the run was stopped or the device could not, counts as failed.
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
        techniques={name: positions[config] for name, config in named.items()},
    )
    return matrix, measured


def _top_configs(row: Row, serves: Callable[[Config], int]) -> tuple[Config, ...]:
    """A layer's fastest few configs, and the few that support the most layers among those that are nearly as fast."""
    near = [config for config, time_us in row.own.items() if time_us <= NEAR * min(row.own.values())]
    wide = sorted(near, key=lambda config: -serves(config))  # stable: the faster one of equals
    return tuple(dict.fromkeys([*list(row.own)[:FEW], *wide[:WIDE]]))


def technique_configs(study: Study, rows: Sequence[Row]) -> dict[str, Config]:
    """For each technique that the study's rules name, the config that supports the most layers, the fastest of equals.

    Raises StudyError for a technique without a correct trial.
    """
    used = {name for rule in study.rules if not rule.trials for name in (*rule.below, *rule.above)}
    found: dict[str, Config] = {}
    for technique in study.techniques:
        if technique.name not in used:
            continue
        times: dict[Config, list[float]] = {}
        for row in rows:
            for config, time_us in row.times_us.items():
                if time_us is not None and technique.has(config):
                    times.setdefault(config, []).append(time_us)
        if not times:
            raise StudyError(
                f"{study.path or study.name}: a rule names the technique {technique.name!r}, of which there is no "
                f"correct kernel; run `autotune ladder {study.path or study.name}` first"
            )
        found[technique.name] = min(times, key=lambda config: (-len(times[config]), sum(times[config]), str(config)))
    return found
