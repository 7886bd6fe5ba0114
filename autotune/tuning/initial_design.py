"""layer -> the configs that a search starts with, or the config predicted to be fastest without a search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.devices.device import DeviceInfo
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.resources import cost_model_file
from autotune.search.cost_model import read_cost_model
from autotune.search.warm_start import MOST, WarmStart, warm_start
from autotune.store import TopTrial
from autotune.study import Study
from autotune.trial import Config
from autotune.tuning.layer_store import StoredLayer
from autotune.tuning.open_spaces import open_spaces


def initial_design(
    study: Study,
    layer: Layer,
    spaces: Sequence[SearchSpace],
    info: DeviceInfo,
    tuned: Sequence[TopTrial],
    rates: Mapping[str, float],
) -> WarmStart | None:
    """Return a layer's initial design, based on the cost model and on trials of similar layers and devices.

    Returns None if the study turns off `warm_start`.
    """
    if not study.warm_start:
        return None
    model = read_cost_model(cost_model_file())
    return warm_start(layer.problem, info, tuned, spaces, min(MOST, study.trials), model, rates)


def tuned_before(study: Study, layer: Layer, stored: StoredLayer) -> tuple[TopTrial, ...]:
    """Return the stored trials of other layers and devices that can warm-start a search of this layer."""
    if not study.warm_start:
        return ()
    kinds = ("cuda", "replay") if stored.info.kind == "replay" else (stored.info.kind,)
    classes = study.informative(layer.problem)
    return stored.store.top_trials.list(stored.scope, kinds=kinds, accuracies=classes)


def stored_design(
    study: Study, layer: Layer, spaces: Sequence[SearchSpace], stored: StoredLayer, rates: Mapping[str, float]
) -> WarmStart | None:
    """Return a layer's initial design, based on the trials stored so far."""
    return initial_design(study, layer, spaces, stored.info, tuned_before(study, layer, stored), rates)


@dataclass(frozen=True, slots=True)
class Predicted:
    """The config that a search of a layer would evaluate first."""

    layer: Layer
    bound: BoundTemplate
    """the config's family, bound to the layer and the device"""
    config: Config
    predicted_us: float | None
    """predicted time; None on a device that the cost model does not cover, where the config is a family's default"""


def predict(
    study: Study,
    layer: Layer,
    templates: Mapping[str, KernelTemplate],
    info: DeviceInfo,
    tuned: Sequence[TopTrial],
    rates: Mapping[str, float],
) -> Predicted:
    """Return the config predicted to be fastest for a layer on a device.

    `rates` are the device's calibrated rates. `tuned` are trials of other layers and devices, which correct the
    prediction. Raises the same errors as `open_spaces`.
    """
    spaces = open_spaces(study, layer, templates, info)
    design = initial_design(study, layer, spaces, info, tuned, rates)
    proposal = design.proposal() if design is not None else None
    if design is None or proposal is None:
        space, config = next((space, space.default) for space in spaces if space.default)
        return Predicted(layer, space.bound, config, None)
    log_us, config = proposal
    bound = next(space.bound for space in spaces if space.template == config.template)
    return Predicted(layer, bound, config, math.exp(log_us))
