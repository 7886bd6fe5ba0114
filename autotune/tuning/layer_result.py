"""What tuning a layer came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.problem import Layer
from autotune.trial import Outcome, Trial
from autotune.tuning.layer_finals import FinalsResult
from autotune.tuning.trial_log import Seen

INTERRUPTED = "interrupted"
"""why a layer stopped that was to go on"""
PAUSED = "paused"
"""why a layer stopped whose next part follows"""
NO_CONFIG = "no feasible config"
"""why a layer stopped that had nothing to try"""


@dataclass(frozen=True, slots=True)
class DesignResult:
    """What came of the configs of an initial design."""

    by: str
    """what proposed them"""
    used: int
    layers: tuple[tuple[str, float], ...]
    """where they come from, with the distance of each"""
    best: Trial | None
    """the fastest of them; None when none is correct"""


@dataclass(frozen=True, slots=True)
class LayerResult:
    """What tuning one layer came to."""

    layer: Layer
    """the layer"""
    name: str
    """`study.layer`"""
    best: Trial | None
    """the fastest correct trial; None if no kernel is correct"""
    evaluated: int
    """evaluations in the study's history, this run's included"""
    new: int
    """evaluations of this run"""
    failures: Mapping[str, int]
    """outcome to number of trials, correct ones left out"""
    messages: Mapping[str, Seen]
    """by message"""
    stopped: str
    """why it ended: budget, time, exhausted, interrupted or what gain was expected"""
    designs: tuple[DesignResult, ...]
    """none: the search started from nothing"""
    finals: FinalsResult | None
    """what the finals decided; None if none were held"""

    def of(self, study: str, layer: Layer) -> LayerResult:
        """The same for a layer of this shape, which another one was tuned for if it has another name."""
        if layer.name == self.layer.name:
            return replace(self, layer=layer)
        return replace(self, layer=layer, name=f"{study}.{layer.name}", new=0, finals=None)

    @property
    def cut_short(self) -> bool:
        """Whether a wish to stop came before its end."""
        return self.stopped == INTERRUPTED

    @property
    def all_wrong(self) -> bool:
        """Whether every kernel of it ran and gave another result than the reference."""
        return self.evaluated > 0 and self.failures.get(Outcome.WRONG_RESULT, 0) == self.evaluated

    @property
    def why_not(self) -> str:
        """Why it has no correct kernel: how it stopped and its commonest failure, a rule's where no config was left."""
        found = list(self.messages.values())
        if self.stopped != NO_CONFIG:
            found = [seen for seen in found if seen.outcome != Outcome.INVALID_CONFIG]
        commonest = max(found, key=lambda seen: seen.count, default=None)
        return f"{self.stopped}: {commonest.message}" if commonest else self.stopped
