"""Results databases -> the records that a cost model is fitted to and evaluated on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.devices.device import DeviceInfo
from autotune.errors import TemplateError
from autotune.family.space import BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.problem import Problem
from autotune.replay.recorded_trials import measured_rows
from autotune.search.cost_model import CostModel, Observed, fit, log_times
from autotune.search.cost_terms import NEEDED_RATES, config_columns, cost_terms
from autotune.search.warm_start import FEWEST, positions_of
from autotune.store import Store, TrialRow
from autotune.trial import Config

FOLDS = 10
"""Number of parts into which the layers are divided. Each part is predicted from the records of the others."""

Shape = tuple[str, tuple[tuple[str, int], ...]]
"""An operation and a problem's sizes except for run-time sizes: the same for all of a layer's types and batch sizes."""


@dataclass(frozen=True, slots=True)
class FamilyRecords:
    """One family's correct configs on one layer and device."""

    family: str
    configs: tuple[Config, ...]
    accuracies: tuple[str, ...]
    observed: Observed


@dataclass(frozen=True, slots=True)
class LayerRecords:
    """All families' correct configs on one layer and device."""

    problem: Problem
    device: DeviceInfo
    rates: Mapping[str, float]
    families: tuple[FamilyRecords, ...]

    @property
    def shape(self) -> Shape:
        """The operation and the sizes that are the same for the layer's other types and batch sizes."""
        return shape_of(self.problem)


def shape_of(problem: Problem) -> Shape:
    """Return an operation's name and a problem's sizes, except the run-time sizes."""
    operation = problem.operation
    sizes = ((name, size) for name, size in problem.values.items() if isinstance(size, int))
    return operation.name, tuple(sorted((name, size) for name, size in sizes if name not in operation.runtime))


def layer_records(files: Iterable[Path], templates: Mapping[str, KernelTemplate]) -> list[LayerRecords]:
    """Read some databases' layers on calibrated GPUs, with the configs that the families still have.

    Layers with fewer than FEWEST such configs are left out.
    """
    found = []
    for file in files:
        with Store(file, create=False) as store:
            for (problem, *_), rows in measured_rows(store).items():
                device = rows[0].device
                rates = store.rates.best(device)
                if device.can.gpu and all(unit in rates for unit in NEEDED_RATES):
                    families = tuple(_of_families(rows, templates, rates))
                    if sum(len(family.configs) for family in families) >= FEWEST:
                        found.append(LayerRecords(problem, device, rates, families))
    return found


def _of_families(
    rows: Sequence[TrialRow], templates: Mapping[str, KernelTemplate], rates: Mapping[str, float]
) -> Iterable[FamilyRecords]:
    """Yield a layer's correct configs, by family."""
    layer = (rows[0].problem, rows[0].device.identity)
    for name in dict.fromkeys(row.trial.config.template for row in rows):
        template = templates.get(name)
        if template is None or template.operation.name != rows[0].problem.operation.name:
            continue
        now = [
            (config, row.trial.accuracy, row.trial.median_us)
            for row in rows
            if row.trial.median_us and (config := template.current_config(row.trial.config))
        ]
        if not now:
            continue
        bound = BoundTemplate(template, rows[0].problem, rows[0].device)
        positions = np.stack([positions_of(template, config) for config, _, _ in now])
        try:
            terms = cost_terms(bound, config_columns(bound, positions), rates)
        except TemplateError:  # the trials belong to a version of the family that allowed other configs
            continue
        times_us = np.array([median_us for _, _, median_us in now])
        configs, accuracies = tuple(config for config, _, _ in now), tuple(accuracy for _, accuracy, _ in now)
        yield FamilyRecords(name, configs, accuracies, Observed(layer, template.base, terms, times_us))


def observed_in(records: Iterable[LayerRecords]) -> list[Observed]:
    """Return the records in the form expected by `fit`."""
    return [family.observed for layer in records for family in layer.families]


def fit_model(records: Sequence[LayerRecords], fitted_at: str, error: Mapping[str, float]) -> CostModel:
    """Fit a cost model to some records. Raises StudyError if there are none."""
    weights = fit(observed_in(records))
    devices = {layer.device.name: layer for layer in records}
    rates = {name: dict(layer.rates) for name, layer in devices.items()}
    return CostModel(fitted_at, error, rates, tuple(layer.device for layer in devices.values()), weights)


def held_out_error(records: Sequence[LayerRecords]) -> dict[str, float]:
    """Predict each fold's layers from the others, and return quantiles of the ratio of two times.

    The first is the time of the config predicted to be fastest, the second the time of the fastest config for the same
    layer and accuracy class. If there is only one shape, the result is empty.
    """
    shapes = sorted({layer.shape for layer in records})
    ratios: list[float] = []
    for fold in range(min(FOLDS, len(shapes))):
        held_out = set(shapes[fold::FOLDS])
        known = observed_in(layer for layer in records if layer.shape not in held_out)
        if not known:
            return {}
        weights = fit(known)
        for layer in records:
            if layer.shape in held_out:
                ratios += _first_over_best(layer, weights)
    if not ratios:
        return {}
    return {name: round(float(np.quantile(ratios, level)), 4) for name, level in (("median", 0.5), ("p95", 0.95))}


def _first_over_best(layer: LayerRecords, weights: Mapping[str, np.ndarray]) -> Iterable[float]:
    """Yield the ratio used by `held_out_error` for each accuracy class with several configs of a layer."""
    predicted = np.concatenate(
        [log_times(each.observed.terms, weights.get(each.observed.family, weights[""]))[0] for each in layer.families]
    )
    times_us = np.concatenate([each.observed.times_us for each in layer.families])
    accuracies = np.array([accuracy for each in layer.families for accuracy in each.accuracies])
    for accuracy in np.unique(accuracies):
        of = np.flatnonzero(accuracies == accuracy)
        if len(of) > 1:
            yield float(times_us[of[predicted[of].argmin()]] / times_us[of].min())
