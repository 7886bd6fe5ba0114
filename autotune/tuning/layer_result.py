"""The result of tuning a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.problem import Layer
from autotune.trial import Outcome, Trial
from autotune.tuning.layer_finals import FinalsResult
from autotune.tuning.trial_log import Seen

INTERRUPTED = "interrupted"
"""reason of a layer that stopped and will be continued"""
PAUSED = "paused"
"""reason of a layer that stopped and whose next part follows"""


@dataclass(frozen=True, slots=True)
class DesignResult:
    """The result of the configs that a search began with."""

    by: str
    """`warm_start`, or `cost_model` if no similar layer was tuned"""
    used: int
    layers: tuple[tuple[str, float], ...]
    """the layers that they come from, with their distances"""
    best: Trial | None
    """the fastest of them; None if no config is correct"""


@dataclass(frozen=True, slots=True)
class LayerResult:
    """The result of tuning one layer."""

    layer: Layer
    """the layer"""
    name: str
    """`study.layer`"""
    best: Trial | None
    """the fastest correct trial; None if there is none"""
    evaluated: int
    """evaluations in the study's history, including this run's"""
    new: int
    """evaluations of this run"""
    failures: Mapping[str, int]
    """outcome to number of trials, correct ones left out"""
    messages: Mapping[str, Seen]
    """kinds of failures by their messages"""
    stopped: str
    """the reason why it ended: budget, time, exhausted, interrupted or expected gain"""
    design: DesignResult | None
    """the result of the configs that the search began with; None if there were none"""
    finals: FinalsResult | None
    """the result of the finals; None if there were none"""

    def of(self, study: str, layer: Layer) -> LayerResult:
        """The same result for a layer of this shape under another name."""
        if layer.name == self.layer.name:
            return replace(self, layer=layer)
        return replace(self, layer=layer, name=f"{study}.{layer.name}", new=0, finals=None)

    @property
    def cut_short(self) -> bool:
        """Whether a request to stop came before its end."""
        return self.stopped == INTERRUPTED

    @property
    def all_wrong(self) -> bool:
        """Whether every kernel of it ran and gave a result that differs from the reference."""
        return self.evaluated > 0 and self.failures.get(Outcome.WRONG_RESULT, 0) == self.evaluated

    @property
    def why_not(self) -> str:
        """Why it has no correct kernel: why it stopped, and its most frequent failure."""
        commonest = max(self.messages.values(), key=lambda seen: seen.count, default=None)
        return f"{self.stopped}: {commonest.message}" if commonest else self.stopped
