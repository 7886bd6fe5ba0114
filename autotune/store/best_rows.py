"""What the best kernels are told as, and what has a best of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import RowMapping

from autotune.problem import Layer
from autotune.store.trials import TrialRow, gflops, trials
from autotune.trial import Outcome, Timing

Basis = Literal["finals", "retime", "median"]
"""Why a trial is the best: it won the latest finals, or its median is the smallest, of a retime or while tuning."""

Match = Literal["exact", "device class"]
"""How well an answer fits the device asked for: tuned on it, or on one of its compute capability and SM count."""

CORRECT = trials.c.outcome == str(Outcome.CORRECT)

KEY = ("subject_id", "device_id", "accuracy", "deterministic", "policy")
"""what has a best of its own, as in the view best_trials"""

Key = tuple[int, int, str, bool, str]


@dataclass(frozen=True, slots=True)
class BestRow:
    """The best kernel of one layer, device, accuracy class, determinism and policy."""

    study: str
    """as asked for; `row` may come from another study with the same layer shape"""
    layer: Layer
    timing: Timing
    """what decided: of the finals, or of the trial"""
    basis: Basis
    row: TrialRow
    match: Match = "exact"

    @property
    def name(self) -> str:
        """`study.layer`."""
        return f"{self.study}.{self.layer.name}"

    @property
    def median_us(self) -> float:
        """The deciding median."""
        return self.timing.median_us

    @property
    def gflops(self) -> float:
        """Direct-algorithm GFLOP/s."""
        return gflops(self.layer.problem, self.median_us)


def key_of(row: RowMapping) -> Key:
    """What the trial of a row counts for."""
    subject_id, device_id, accuracy, deterministic, policy = (row[trials.c[name]] for name in KEY)
    return (subject_id, device_id, accuracy, deterministic, policy)
