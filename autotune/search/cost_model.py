"""space -> search: predict how long a config takes on a layer that was never tuned, from the weighted terms of its
cost.

The time is the sum of the fixed terms plus the 2-norm of the others. A family's weights are the common ones times its
own factors, which stay close to 1 if it has few trials. `fit` chooses weights and factors that minimise the squared
errors of the log times; fast configs count most.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.devices.device import DeviceInfo
from autotune.distance import device_distance
from autotune.errors import StudyError
from autotune.expressions.vectorized import Columns
from autotune.family.space import BoundTemplate
from autotune.measurement.roofline import ARITHMETIC_RATE
from autotune.search.cost_terms import FIXED, NEEDED_RATES, TERMS, Floats, cost_terms
from autotune.text_file import read_text

POWER = 2.0
"""Exponent of the norm. 1 would add up work that overlaps; infinity would take only the largest term."""
START = {"launch": 1.0, "start": 1.5}
"""Weights of the fixed terms before the fit, in microseconds: an empty kernel takes 2.5. All other terms begin at 1."""
SPREAD, FIXED_SPREAD = 2.0, 0.3
"""Standard deviations of the logs of the common weights, and of the weights of the fixed terms."""
OWN_SPREAD, OWN_FIXED_SPREAD = 0.5, 0.02
"""Standard deviations of the logs of a family's own factors. A launch costs the same in every family, so the factors of
the fixed terms hardly differ.
"""
ERROR = 0.15
"""Standard deviation of the part of a log time that the model doesn't explain."""
STEPS = 50
"""Levenberg-Marquardt steps of a fit."""
DAMPING = 1.0
"""Fraction of the curvature's diagonal that the first step adds to the curvature to keep the step small."""
EASING = 3.0
"""Factor by which the damping falls after a step that lowers the loss, and rises after any other step, which is undone.
"""
MOST_OF_FAMILY = 20
"""Maximum number of a family's trials on one layer that a fit uses, evenly spread over the times."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Measured configs of one family on one layer and device."""

    layer: object
    """equal for all configs of one layer and device"""
    family: str
    """`KernelTemplate.base`"""
    terms: Floats
    """terms of the configs, microseconds [configs, TERMS]"""
    times_us: Floats


@dataclass(frozen=True, slots=True)
class CostModel:
    """Weights of the terms, and the rates of the devices that they were fitted to."""

    fitted_at: str
    """ISO 8601, UTC"""
    error: Mapping[str, float]
    """`median` and `p95` of the first config's time over the best config's, on layers that were left out of the fit"""
    rates: Mapping[str, Mapping[str, float]]
    """device to unit to rate, work per second"""
    devices: tuple[DeviceInfo, ...]
    weights: Mapping[str, Floats]
    """family to weights [TERMS]; the key "" is for families without trials"""

    def log_us(self, bound: BoundTemplate, columns: Columns, rates: Mapping[str, float]) -> Floats:
        """Predict the logs of the configs' times in microseconds from their parameters and derived values."""
        own = self.weights.get(bound.template.base, self.weights[""])
        return log_times(cost_terms(bound, columns, rates), own)[0]

    def rates_of(self, device: DeviceInfo, calibrated: Mapping[str, float]) -> Mapping[str, float]:
        """Return a device's own rates if it was calibrated, or else the rates of the most similar device.

        In that case, arithmetic rates are scaled by the number of multiprocessors.
        """
        if all(unit in calibrated for unit in NEEDED_RATES):
            return calibrated
        like = min(self.devices, key=lambda each: _apart(each, device))
        arithmetic = {unit for unit, _ in ARITHMETIC_RATE.values()}
        share = max(1, device.sm_count) / like.sm_count
        return {unit: rate * share if unit in arithmetic else rate for unit, rate in self.rates[like.name].items()}


def _apart(one: DeviceInfo, device: DeviceInfo) -> tuple[float, bool]:
    """Return a sort key: the distance between two devices, then whether their names differ.

    A replayed device's name ends with the original's, so these two count as equal.
    """
    return device_distance(one, device), not device.name.endswith(one.name)


def log_times(terms: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Return the logs of the times, and their derivatives with respect to the log weights [configs, TERMS]."""
    fixed = len(FIXED)
    weighted = terms * weights
    powers = weighted[:, fixed:] ** POWER
    total = np.maximum(powers.sum(axis=1), 1e-300)
    norm = total ** (1 / POWER)
    time_us = weighted[:, :fixed].sum(axis=1) + norm
    shares = np.concatenate(
        [weighted[:, :fixed] / time_us[:, None], powers / total[:, None] * (norm / time_us)[:, None]], axis=1
    )
    return np.log(time_us), shares


def fit(observed: Sequence[Observed]) -> dict[str, Floats]:
    """Fit each family's weights; the key "" stands for all other families.

    All layers have the same weight, however many trials they have. Raises StudyError if nothing was observed.
    """
    if not observed:
        raise StudyError("no correct trial on a calibrated GPU to fit a cost model to")
    families = sorted({each.family for each in observed})
    best_us: dict[object, float] = {}
    for each in observed:
        best_us[each.layer] = min(best_us.get(each.layer, np.inf), float(each.times_us.min()))
    kept = [_spread(each) for each in observed]
    counts: dict[object, int] = {}
    for each in kept:
        counts[each.layer] = counts.get(each.layer, 0) + len(each.times_us)
    terms = np.concatenate([each.terms for each in kept])
    times = np.log(np.concatenate([each.times_us for each in kept]))
    importance = np.concatenate([best_us[each.layer] / each.times_us / np.sqrt(counts[each.layer]) for each in kept])
    importance /= importance.mean()
    family = np.repeat([families.index(each.family) for each in kept], [len(each.times_us) for each in kept])
    begin = np.log([START.get(term, 1.0) for term in TERMS])
    is_fixed = np.array([term in FIXED for term in TERMS])
    pull = (ERROR / np.where(is_fixed, FIXED_SPREAD, SPREAD)) ** 2
    own_pull = (ERROR / np.where(is_fixed, OWN_FIXED_SPREAD, OWN_SPREAD)) ** 2
    rows = [np.flatnonzero(family == index) for index in range(len(families))]

    def loss_of(common: Floats, own: Floats) -> tuple[float, Floats, Floats]:
        predicted, slopes = log_times(terms, np.exp(common + own[family]))
        residual = predicted - times
        pulled = (pull * (common - begin) ** 2).sum() + (own_pull * own**2).sum()
        return float((importance * residual**2).sum() + pulled), residual, slopes

    common, own, damping = begin, np.zeros((len(families), len(TERMS))), DAMPING
    loss, residual, slopes = loss_of(common, own)
    for _ in range(STEPS):
        weighted = slopes * importance[:, None]
        curvature = slopes.T @ weighted
        left = curvature + np.diag(pull + damping * np.diag(curvature))
        right = weighted.T @ residual + pull * (common - begin)
        solved = []
        for index, row in enumerate(rows):  # only the common weights connect the factors of two families
            block = slopes[row].T @ weighted[row]
            slope = weighted[row].T @ residual[row] + own_pull * own[index]
            both = np.linalg.solve(
                block + np.diag(own_pull + damping * np.diag(block)), np.column_stack([block, slope])
            )
            solved.append(both)
            left -= block @ both[:, :-1]
            right -= block @ both[:, -1]
        step = np.linalg.solve(left, right)
        own_step = np.stack([both[:, -1] - both[:, :-1] @ step for both in solved])
        nearer = loss_of(common - step, own - own_step)
        if nearer[0] < loss:
            common, own, damping = common - step, own - own_step, damping / EASING
            loss, residual, slopes = nearer
        else:
            damping *= EASING
    return {"": np.exp(common), **{name: np.exp(common + own[index]) for index, name in enumerate(families)}}


def _spread(each: Observed) -> Observed:
    """Select at most MOST_OF_FAMILY configs, evenly spread from the fastest to the slowest."""
    order = np.argsort(each.times_us, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(len(order), MOST_OF_FAMILY)).astype(np.intp))]
    return Observed(each.layer, each.family, each.terms[chosen], each.times_us[chosen])


def write_cost_model(model: CostModel) -> str:
    """Return the text of a cost model file."""
    families = ",\n".join(
        f"    {json.dumps(name)}: [{', '.join(f'{weight:.4g}' for weight in own)}]"
        for name, own in sorted(model.weights.items())
    )
    devices = {
        device.name: {"arch": device.arch, "sm_count": device.sm_count, "rates": dict(model.rates[device.name])}
        for device in model.devices
    }
    head = {"fitted_at": model.fitted_at, "error": dict(model.error), "devices": devices, "terms": list(TERMS)}
    text = json.dumps(head, indent=1).removesuffix("\n}")
    return f'{text},\n "weights": {{\n{families}\n }}\n}}\n'


def read_cost_model(path: Path) -> CostModel:
    """Read a cost model file. Raises StudyError if it can't be read, or was fitted to terms other than TERMS."""
    try:
        content = json.loads(read_text(path, StudyError))
        if tuple(content["terms"]) != TERMS:
            raise StudyError(f"{path}: a cost model of another version; run `autotune fit-model` again")
        devices = content["devices"]
        return CostModel(
            content["fitted_at"],
            content["error"],
            {name: device["rates"] for name, device in devices.items()},
            tuple(
                DeviceInfo(kind="cuda", name=name, arch=device["arch"], sm_count=device["sm_count"], memory_bytes=0)
                for name, device in devices.items()
            ),
            {name: np.array(own, dtype=np.float64) for name, own in content["weights"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StudyError(f"{path}: is not a cost model: {error}") from None
