"""The configs that a layer's search starts with: those that the cost model predicts to be fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.devices.device import DeviceInfo
from autotune.family.space import SearchSpace
from autotune.problem import Layer
from autotune.resources import cost_model_file
from autotune.search.cost_model import read_cost_model
from autotune.search.warm_start import MOST, WarmStart, warm_start
from autotune.store import TopTrial
from autotune.study import Study
from autotune.tuning.layer_store import LayerStore


def initial_designs(
    study: Study,
    layer: Layer,
    spaces: Sequence[SearchSpace],
    info: DeviceInfo,
    tuned: Sequence[TopTrial],
    rates: Mapping[str, float],
) -> tuple[WarmStart, ...]:
    """The initial design of a layer, from the cost model and the trials of similar layers and devices."""
    if not study.warm_start:
        return ()
    model = read_cost_model(cost_model_file())
    return (warm_start(layer.problem, info, tuned, spaces, min(MOST, study.trials), model, rates),)


def tuned_before(study: Study, layer: Layer, store: LayerStore, info: DeviceInfo) -> tuple[TopTrial, ...]:
    """The stored trials of layers and devices from which a search of this layer may start."""
    if not study.warm_start:
        return ()
    kinds = ("cuda", "replay") if info.kind == "replay" else (info.kind,)
    return store.top_trials(kinds, study.informative(layer.problem))
