"""What a search begins with, before anything that its sampler proposes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from autotune.trial import Config

WARM_START, PRIOR = "warm_start", "prior"
"""What proposes a tuned layer's first configs."""


class InitialDesign(Protocol):
    """Configs that come first, each chosen by what is known when it is asked for."""

    @property
    def by(self) -> str:
        """What `Search.proposed_by` says of its configs."""

    @property
    def layers(self) -> Sequence[tuple[str, float]]:
        """`study.layer on DEVICE` of the layers that it comes from to its distance, nearest first."""

    def next(self, told: Mapping[Config, float], pending: Sequence[Config]) -> Config | None:
        """The next config, given the log times of those told, infinite where they failed, and those under way; None
        when there is no further one."""


@dataclass(frozen=True, slots=True)
class ListedDesign:
    """Configs that are known beforehand."""

    by: str
    configs: Sequence[Config]
    layers: tuple[tuple[str, float], ...] = ()

    def next(self, told: Mapping[Config, float], pending: Sequence[Config]) -> Config | None:
        """The first config that was not asked for yet."""
        return next((config for config in self.configs if config not in told and config not in pending), None)
