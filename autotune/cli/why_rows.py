"""The answer of `why` as rows: one for each thing that the trials show about a best kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.columns import Column, field_columns
from autotune.trial import Config, Value

if TYPE_CHECKING:
    from autotune.analysis.rooflines import BestWithRoofline
    from autotune.analysis.why import Refusal, Why
    from autotune.store import BestRow, KernelProfile, TrialRow


@dataclass(frozen=True, slots=True)
class Explained:
    """A best kernel, why it is the fastest, and the values that its family's rules forbid."""

    kernel: BestWithRoofline
    why: Why
    noise: float | None
    """fraction; None if no finals recorded one"""
    refusals: tuple[Refusal, ...]
    """one step from the winner"""
    rules: str
    """a remark about the rules, for example that the family has changed since; may be empty"""
    profiles: tuple[KernelProfile, ...]
    """the latest profile of its launches"""

    def verdict(self, ratio: float | None) -> str | None:
        """Whether a kernel with this ratio to the winner's time is slower or faster beyond noise."""
        if ratio is None:
            return None
        if abs(ratio - 1) <= (self.noise or 0.0):
            return "same within noise" if self.noise else "same"
        return "slower" if ratio > 1 else "faster"


@dataclass(frozen=True, slots=True)
class WhyRow:
    """A row of the answer in JSON and CSV; fields that do not apply are None."""

    best: BestRow
    about: str
    """winner, default, step, refused, family or failure"""
    template: str
    parameter: str | None = None
    value: Value | None = None
    time_us: float | None = None
    over_winner: float | None = None
    """relative to the winner's time"""
    verdict: str | None = None
    trial: int | None = None
    trials: int | None = None
    correct: int | None = None
    outcome: str | None = None
    note: str | None = None
    config: Config | None = None

    @property
    def instead(self) -> str:
        """The value or the family that takes the place of the winner's."""
        return self.template if self.parameter is None else f"{self.parameter}={self.value}"


def why_rows(explained: Explained) -> Iterator[WhyRow]:
    why_it, best = explained.why, explained.kernel.best
    family = best.row.trial.config.template
    yield _trial_row(explained, "winner", why_it.winner, time_us=best.median_us)
    if why_it.default is not None:
        yield _trial_row(explained, "default", why_it.default)
    for step in why_it.steps:
        yield _trial_row(explained, "step", step.row, parameter=step.param, value=step.value)
    for one in explained.refusals:
        yield WhyRow(best, "refused", family, one.param, value=one.value, note=one.rules)
    for row in why_it.families:
        if row.best is None:
            note = f"no correct trial of class {best.row.trial.accuracy}"
            family_row = WhyRow(best, "family", row.template, note=note)
        else:
            family_row = _trial_row(explained, "family", row.best)
        yield replace(family_row, trials=row.evaluated, correct=row.correct)
    for failures in why_it.failures:
        yield WhyRow(
            *(best, "failure", failures.template),
            trials=failures.trials,
            outcome=f"{failures.outcome} {failures.reason}".strip(),
            note=failures.message,
            config=failures.example,
        )


def _trial_row(
    explained: Explained,
    about: str,
    row: TrialRow,
    *,
    parameter: str | None = None,
    value: Value | None = None,
    time_us: float | None = None,
) -> WhyRow:
    """A row about one recorded trial."""
    best, trial = explained.kernel.best, row.trial
    ratio = None if row.median_us is None else row.median_us / (best.row.median_us or row.median_us)
    return WhyRow(
        *(best, about, trial.config.template, parameter, value),
        time_us=row.median_us if time_us is None else time_us,
        over_winner=ratio,
        verdict=explained.verdict(ratio) or f"{trial.outcome} {trial.reason}".strip(),
        trial=trial.number,
        outcome=trial.outcome.value,
        config=trial.config,
    )


WHY_COLUMNS = (
    Column[WhyRow]("layer", lambda row: row.best.name),
    Column[WhyRow]("device", lambda row: row.best.row.device.name),
    Column[WhyRow]("accuracy", lambda row: row.best.row.trial.accuracy),
    *field_columns(WhyRow, below=("note",))[1:],
)
