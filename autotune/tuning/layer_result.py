"""The result of tuning a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.problem import Layer
from autotune.trial import Outcome, Trial
from autotune.tuning.layer_finals import FinalsResult
from autotune.tuning.trial_log import Seen

INTERRUPTED = "interrupted"
"""reason for stopping a layer: the run was interrupted, and a later run can continue the layer"""
PAUSED = "paused"
"""reason for stopping a layer: this part of a cluster run is done, and the next part follows"""


@dataclass(frozen=True, slots=True)
class DesignResult:
    """The results of the configs that a search began with."""

    by: str
    """`warm_start`, or `cost_model` if no similar layer was tuned"""
    used: int
    layers: tuple[tuple[str, float], ...]
    """the layers that the configs come from, with their distances"""
    best: Trial | None
    """the fastest trial of these configs; None if no config is correct"""


@dataclass(frozen=True, slots=True)
class LayerResult:
    """The result of tuning one layer."""

    layer: Layer
    """the tuned layer"""
    name: str
    """name in the form `study.layer`"""
    best: Trial | None
    """the fastest correct trial; None if no trial is correct"""
    evaluated: int
    """number of evaluations in the study's history, including this run"""
    new: int
    """number of evaluations in this run"""
    failures: Mapping[str, int]
    """number of failed trials by outcome"""
    messages: Mapping[str, Seen]
    """failed trials by message"""
    stopped: str
    """the reason why tuning ended, such as budget, time, exhausted, interrupted or expected gain"""
    design: DesignResult | None
    """the result of the configs that the search began with; None if there were none"""
    finals: FinalsResult | None
    """the result of the finals; None if no finals ran"""

    def of(self, study: str, layer: Layer) -> LayerResult:
        """Return the result for a layer with the same shape and possibly another name."""
        if layer.name == self.layer.name:
            return replace(self, layer=layer)
        return replace(self, layer=layer, name=f"{study}.{layer.name}", new=0, finals=None)

    @property
    def cut_short(self) -> bool:
        """Whether the run was interrupted before it was done with the layer."""
        return self.stopped == INTERRUPTED

    @property
    def all_wrong(self) -> bool:
        """Whether every evaluated kernel ran and gave a wrong result."""
        return self.evaluated > 0 and self.failures.get(Outcome.WRONG_RESULT, 0) == self.evaluated

    @property
    def why_not(self) -> str:
        """Why there is no correct kernel: what stopped the tuning, and the most frequent failure."""
        commonest = max(self.messages.values(), key=lambda seen: seen.count, default=None)
        return f"{self.stopped}: {commonest.message}" if commonest else self.stopped
