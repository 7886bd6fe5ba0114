"""The configs that a layer's search starts with: the best of similar layers and devices, or those of the prior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.devices.device import DeviceInfo
from autotune.errors import DeviceError
from autotune.family.space import SearchSpace
from autotune.problem import Layer
from autotune.search import InitialDesign
from autotune.search.prior import prior
from autotune.search.warm_start import MOST, warm_start
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
) -> tuple[InitialDesign, ...]:
    """The initial design of a layer: the best configs of similar layers and devices, or else that of the prior."""
    most = min(MOST, study.trials)
    if study.warm_start:
        design = warm_start(layer.problem, info, tuned, spaces, most)
        if design.layers:
            return (design,)
    if study.prior:
        return (prior(spaces, info, check_calibrated(info, rates), most=most, seed=study.seed),)
    return ()


def tuned_before(study: Study, layer: Layer, store: LayerStore, info: DeviceInfo) -> tuple[TopTrial, ...]:
    """The stored trials of layers and devices from which a search of this layer may start."""
    if not study.warm_start:
        return ()
    kinds = ("cuda", "replay") if info.kind == "replay" else (info.kind,)
    return store.top_trials(kinds, study.informative(layer.problem))


def check_calibrated(info: DeviceInfo, rates: Mapping[str, float]) -> Mapping[str, float]:
    """The rates of a device. Raises DeviceError if it lacks one that a prior needs."""
    if not {"copy", "fp32"} <= rates.keys():
        advice = (
            "leave the prior out"
            if info.kind == "replay"
            else "run `autotune devices --calibrate` with this database first"
        )
        raise DeviceError(f"prior: {info.name} was never calibrated; {advice}")
    return rates
