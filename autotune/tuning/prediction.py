"""A layer without results -> the config that is predicted to be fastest, without any evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.devices.device import DeviceInfo
from autotune.family.space import BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.store import TopTrial
from autotune.study import Study
from autotune.trial import Config
from autotune.tuning.initial_designs import initial_designs
from autotune.tuning.open_spaces import open_spaces


@dataclass(frozen=True, slots=True)
class Predicted:
    """The first config that a search of a layer would evaluate."""

    layer: Layer
    bound: BoundTemplate
    """its family, for the layer and the device"""
    config: Config
    predicted_us: float | None
    """None on a device of which the cost model knows nothing: the config is a family's default"""
    near: tuple[tuple[str, float], ...]
    """`study.layer on DEVICE` of the tuned layers that corrected the prediction, with their distance, nearest first"""

    @property
    def accuracy(self) -> str:
        """The config's accuracy class."""
        return self.bound.bind(self.bound.template.accuracy).word(self.bound.names(self.config))


def predict(
    study: Study,
    layer: Layer,
    templates: Mapping[str, KernelTemplate],
    info: DeviceInfo,
    tuned: Sequence[TopTrial],
    rates: Mapping[str, float],
) -> Predicted:
    """The config of a layer that is predicted to be fastest on a device, with its calibrated rates.

    `tuned` are trials of other layers and devices that correct the prediction. Raises StudyError as `open_spaces`.
    """
    spaces = open_spaces(study, layer, templates, info)
    for design in initial_designs(study, layer, spaces, info, tuned, rates):
        if (proposal := design.proposal()) is not None:
            log_us, config = proposal
            bound = next(space.bound for space in spaces if space.template == config.template)
            return Predicted(layer, bound, config, math.exp(log_us), tuple(design.layers))
    space, config = next((space, space.default) for space in spaces if space.default)
    return Predicted(layer, space.bound, config, None, ())
