"""store -> dispatch: build a dispatcher from a tuned study, verify it on every layer, evaluate it and store it.

The builder completes the matrix of layers and configs, derives a portfolio and rules from it, and tries the rules. It
then compares the dispatcher on each layer with other ways to choose a kernel.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.dispatch.cells import Run
from autotune.dispatch.dispatcher import DEFAULT, Dispatcher, Rule, Split, ends
from autotune.dispatch.header import render_dispatch, template_record
from autotune.dispatch.matrix import Matrix, build_matrix, served, technique_configs, tuned_rows
from autotune.dispatch.plan import (
    Plan,
    chosen,
    ends_of,
    interpolated_layers,
    left_out,
    make,
    nearest,
    noise_us,
    others,
    regrets,
    single_best,
    times_of,
    with_default_first,
)
from autotune.dispatch.rule_trials import RuleTrials, Tried
from autotune.errors import StudyError
from autotune.problem import Layer, as_conv2d
from autotune.search.threads import single_threaded
from autotune.store import DispatchedLayer
from autotune.study import Study, distinct_layers
from autotune.trial import Outcome
from autotune.tuning.layer_finals import LEAST_NOISE

HELD_OUT = 4
"""One in this many layers is held out."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The time that one way to choose a kernel loses over the layers with one role."""

    layers: str
    """the role of the layers: tuned or held out"""
    way: str
    median_fraction: float
    worst_fraction: float
    worst_layer: str
    weighted_mean_fraction: float
    """total time lost divided by the total time of the layers' best kernels, each layer weighted by its count"""


@dataclass(frozen=True, slots=True)
class Built:
    """A dispatcher and a record of how it was built."""

    dispatcher: Dispatcher
    layers: tuple[DispatchedLayer, ...]
    tried: tuple[Tried, ...]
    """the rules that were tried, fastest first"""
    text: str
    """the dispatcher's C++ header"""
    compiled: bool
    """whether the compiled C++ ran on the device"""
    within_us: float
    """weighted time difference in microseconds within which two rules count as equal"""
    configs: int
    interpolated: tuple[Layer, ...]
    """layers interpolated between the study's layers; kernels were measured on these too"""
    measured: int
    """number of cells of the matrix that this run measured"""
    evaluated: int
    """number of rules that this run tried"""


@single_threaded()
def build(
    run: Run,
    *,
    kernels: int,
    explore: bool = True,
    holdout: int | None = None,
) -> Built:
    """Build a dispatcher from a study's layers, and verify, evaluate and store it.

    With the seed `holdout`, a quarter of the layers is held out, and the dispatcher is built from the others. With
    `explore`, kernels are also measured on layers interpolated between the study's. Raises StudyError if there are too
    few layers, and StoreError if a layer has no correct kernel.
    """
    study = run.study
    layers = distinct_layers(study.layers)
    for layer in layers:
        as_conv2d(layer.problem, "a dispatcher")
    held = held_out(len(layers), holdout)
    if len(layers) - len(held) < 2 or (holdout is not None and not held):
        raise StudyError(
            f"{study.shown}: {len(layers)} layer(s) are too few for a dispatcher"
            + (" with a quarter of them held out" if holdout is not None else "; name at least 2")
        )
    rows = [row for row in range(len(layers)) if row not in held]
    tuned = tuned_rows(run, layers)
    named = dict(technique_configs(study, [tuned[row] for row in rows]))
    key = run.store.studies.begin(study)  # the first write, after every check that may refuse the study
    interpolated = interpolated_layers([layers[row] for row in rows], but=layers) if explore else ()
    info, environment = run.evaluator.info, run.evaluator.environment
    scope = run.store.scopes.open_set(
        key, [layers[row] for row in rows], info, environment, study.measurement_mode, template_record()
    )
    matrix, measured = build_matrix(run, key, tuned, held=held, interpolated=interpolated, named=named)
    floor = run.store.noise_floors.latest(run.evaluator.info, study.measurement_mode)
    noise = max(LEAST_NOISE, floor.noise_fraction if floor else 0.0)
    left_out_configs = left_out(matrix, rows, kernels)
    full = make(matrix, rows, kernels, tuple(matrix.techniques.values()))
    plan = with_default_first(matrix, rows, full, left_out_configs)
    rules = RuleTrials(run, matrix, rows, plan, scope, sorted(held))
    tried = rules.run(named_rules(study, matrix, plan))
    within_us = noise_us(matrix, rows, noise)
    final = rules.decide(tried, within_us)
    decided = replace(plan, rule=final.rule)
    dispatcher = rules.dispatcher(final.rule)
    dispatched = (
        *_dispatched(matrix, decided, rows, rows, left_out_configs),
        *_dispatched(matrix, decided, rows, sorted(held), None),
    )
    run.store.dispatchers.add(scope, final.number, dispatcher.to_json(), dispatched)
    return Built(
        dispatcher=dispatcher,
        layers=dispatched,
        tried=tuple(sorted(tried, key=lambda one: (one.outcome != Outcome.CORRECT, one.total_us, len(ends(one.rule))))),
        text=render_dispatch(dispatcher),
        compiled=rules.compiles,
        within_us=within_us,
        configs=len(matrix.configs),
        interpolated=matrix.layers[len(layers) :],
        measured=measured,
        evaluated=rules.evaluated,
    )


def named_rules(study: Study, matrix: Matrix, plan: Plan) -> Mapping[Rule, str]:
    """Return the study's own rules with their names. Raises StudyError for a threshold on an unknown property."""
    kernels = dict(zip((*plan.kernels, matrix.default), plan.names, strict=True))
    rules: dict[Rule, str] = {}
    for rule in study.rules:
        if rule.property not in {item.name for item in plan.properties}:
            raise StudyError(
                f"{study.shown}: rule {rule.name!r}: property {rule.property!r}: expected one of "
                f"{', '.join(item.name for item in plan.properties)}"
            )
        below, above = (kernels[matrix.techniques[side]] for side in (rule.below, rule.above))
        rules[Split(rule.property, rule.threshold, below, above)] = rule.name
    return rules


def held_out(layers: int, seed: int | None) -> frozenset[int]:
    """Return the positions of the layers held out by a seed."""
    return frozenset() if seed is None else frozenset(random.Random(seed).sample(range(layers), layers // HELD_OUT))


def _dispatched(
    matrix: Matrix, plan: Plan, made_of: Sequence[int], rows: Sequence[int], without: Sequence[int] | None
) -> tuple[DispatchedLayer, ...]:
    """Return, for each layer, the kernel that a plan chooses and the times of the other ways to choose.

    The other ways haven't seen the layer. `without` is each layer's choice when the layer was left out, or None for
    layers that the plan has never seen.
    """
    serving = chosen(matrix, rows, plan)
    names = dict(zip((*plan.kernels, matrix.default), plan.names, strict=True))
    ends = ends_of(matrix, rows, plan)
    seen = [others(made_of, row) for row in rows]
    singles = [served(matrix, (single_best(matrix, known), matrix.default)) for known in seen]
    columns = (
        serving,
        serving if without is None else without,
        [matrix.default] * len(rows),
        [int(single[row]) for single, row in zip(singles, rows, strict=True)],
        [nearest(matrix, known, row) for known, row in zip(seen, rows, strict=True)],
    )
    times = [times_of(matrix, rows, column) for column in columns]
    return tuple(
        DispatchedLayer(
            layer=matrix.layers[row],
            role="held out" if without is None else "tuned",
            kernel=names.get(serving[at]),
            default_first=ends[at] == DEFAULT,
            time_us=times[0][at],
            best_us=float(matrix.best_us[row]),
            left_out_us=times[1][at],
            default_us=times[2][at],
            single_us=times[3][at],
            nearest_us=times[4][at],
        )
        for at, row in enumerate(rows)
    )


WAYS = (
    ("dispatcher", "time_us"),
    ("dispatcher made without the layer", "left_out_us"),
    ("always the default", "default_us"),
    ("single best kernel", "single_us"),
    ("nearest layer", "nearest_us"),
)
"""The ways to choose a kernel that are compared, and the fields with their times."""


def compare(layers: Sequence[DispatchedLayer]) -> tuple[Comparison, ...]:
    """Compute the loss of each way to choose over the layers with each role."""
    comparisons = []
    for role in dict.fromkeys(layer.role for layer in layers):
        own = [layer for layer in layers if layer.role == role]
        best_us = [layer.best_us for layer in own]
        weights = np.array([layer.layer.count for layer in own], dtype=np.float64)
        for way, column in WAYS:
            regret = regrets([getattr(layer, column) for layer in own], best_us)
            worst = int(np.argmax(regret))
            mean = float(weights @ (regret * best_us) / (weights @ np.array(best_us)))
            comparisons.append(
                Comparison(role, way, float(np.median(regret)), float(regret[worst]), own[worst].layer.name, mean)
            )
    return tuple(comparisons)
