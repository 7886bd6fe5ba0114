"""The initial designs of a search: the configs that it tries before those of its sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from autotune.trial import Config

WARM_START, COST_MODEL = "warm_start", "cost_model"
"""Proposes the first configs of a tuned layer."""


class InitialDesign(Protocol):
    """Configs that come first, each chosen with the results known when it is asked for."""

    @property
    def by(self) -> str:
        """The word that `Search.proposed_by` returns for its configs."""

    @property
    def layers(self) -> Sequence[tuple[str, float]]:
        """`study.layer on DEVICE` of the layers that it comes from to its distance, nearest first."""

    def next(self, told: Mapping[Config, float], pending: Sequence[Config]) -> Config | None:
        """The next config, given the log times of finished configs, infinite for failures, and the running ones; None
        if there is no further one.
        """
