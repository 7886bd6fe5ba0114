"""best -> why: explain why a layer's best kernel is the fastest, from the recorded trials and the family's rules.

No model is involved: each ratio compares measured times. If no recorded trial answers a question, the answer says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.errors import Rejected
from autotune.family.space import BoundTemplate
from autotune.trial import Config, Outcome, Value

if TYPE_CHECKING:
    from autotune.store import BestRow, FinalsRow, TrialRow


@dataclass(frozen=True, slots=True)
class WhyRow:
    """A fact about one best kernel. Fields that don't apply are None."""

    best: BestRow
    about: str
    """what the row is about: winner, default, step, refused, family or failure"""
    template: str
    parameter: str | None = None
    value: Value | None = None
    time_us: float | None = None
    over_winner: float | None = None
    """the trial's time divided by the winner's time"""
    verdict: str | None = None
    """whether the trial is slower or faster than the winner beyond noise; for a failed trial, its outcome"""
    trial: int | None = None
    trials: int | None = None
    correct: int | None = None
    outcome: str | None = None
    note: str | None = None
    config: Config | None = None

    @property
    def instead(self) -> str:
        """The value or family that the row compares with the winner's, such as `tile_m=64`."""
        return self.template if self.parameter is None else f"{self.parameter}={self.value}"


@dataclass(frozen=True, slots=True)
class _Winner:
    """A best kernel with which other trials are compared."""

    best: BestRow
    noise: float
    """the largest relative difference at which two times count as the same"""
    finals_us: Mapping[int, float]
    """trial id to the median in the finals that the kernel won"""

    def row(self, about: str, row: TrialRow, *, parameter: str | None = None, value: Value | None = None) -> WhyRow:
        """Describe one recorded trial in a row.

        If both trials took part in the finals, their times there are compared, and otherwise those in the search. If
        the trial was faster there, the verdict says so, because the finals didn't confirm that order.
        """
        trial, own = row.trial, self.best.row
        time_us, winner_us, where = row.median_us, own.median_us, " in the search"
        if {row.id, own.id} <= self.finals_us.keys():
            time_us, winner_us, where = self.finals_us[row.id], self.finals_us[own.id], ""
        ratio = None if time_us is None else time_us / (winner_us or time_us)
        verdict = f"{trial.outcome} {trial.reason}".strip() if ratio is None else _verdict(ratio, self.noise)
        return WhyRow(
            *(self.best, about, trial.config.template, parameter, value),
            time_us=self.best.median_us if row.id == own.id else time_us,
            over_winner=ratio,
            verdict=f"{verdict}{where}" if verdict == "faster" else verdict,
            trial=trial.number,
            outcome=trial.outcome.value,
            config=trial.config,
        )


def explain(
    best: BestRow,
    rows: Sequence[TrialRow],
    *,
    noise: float | None = None,
    bound: BoundTemplate | None = None,
    finals: FinalsRow | None = None,
) -> Iterator[WhyRow]:
    """Yield rows that explain why a best kernel is the fastest.

    `rows` are the comparable trials, including the winner, as listed by `trials.like`. `noise` is the largest relative
    difference at which two times count as the same. `bound` is the kernel's family, whose rules may reject values.
    `finals` are those that made the kernel the best.
    """
    finals_us = {trial_id: timing.median_us for trial_id, timing in finals.timings} if finals else {}
    winner = _Winner(best, noise or 0.0, finals_us)
    yield winner.row("winner", best.row)
    default = _default(rows, best.row)
    if default is not None:
        yield winner.row("default", default)
    yield from _steps(winner, [row for row in rows if row.template_hash == best.row.template_hash])
    if bound is not None:
        yield from _refusals(best, bound)
    yield from _families(winner, rows)
    yield from _failures(best, rows)


def _verdict(ratio: float, noise: float) -> str:
    if abs(ratio - 1) <= noise:
        return "same within noise" if noise else "same"
    return "slower" if ratio > 1 else "faster"


def _by_config(rows: Sequence[TrialRow], winner: TrialRow) -> dict[Config, TrialRow]:
    """Choose a row for each config: preferably from the winner's study, then measured, not reused, then the latest."""
    ranked = sorted(rows, key=lambda row: (_study(row) == _study(winner), not row.reused, row.id))
    return {row.trial.config: row for row in ranked} | {winner.trial.config: winner}


def _study(row: TrialRow) -> tuple[str, int]:
    """Return the name and generation of a trial's study."""
    return row.study, row.generation


def _rendered(row: TrialRow) -> bool:
    """Return whether a trial used up one of the budget's evaluations. Other configs were rejected before rendering."""
    return row.trial.source_hash is not None


def _default(rows: Sequence[TrialRow], winner: TrialRow) -> TrialRow | None:
    """Return the trial of the default of the winner's family in the winner's study, or None if it wasn't rendered."""
    default = (_study(winner), winner.template_hash, "default")
    ours = [row for row in rows if _rendered(row) and (_study(row), row.template_hash, row.proposed_by) == default]
    return min(ours, key=lambda row: row.trial.number, default=None)


def _steps(winner: _Winner, rows: Sequence[TrialRow]) -> list[WhyRow]:
    """Return the trials that differ from the winner in one parameter, in the parameters' order, fastest first."""
    own = winner.best.row.trial.config.params
    found = []
    for config, row in _by_config(rows, winner.best.row).items():
        values = config.params
        differing = [name for name, value in own.items() if values[name] != value]
        if len(differing) == 1:
            found.append(winner.row("step", row, parameter=differing[0], value=values[differing[0]]))
    order = list(own)
    return sorted(found, key=lambda step: (order.index(step.parameter or ""), *_by_ratio(step)))


def _refusals(best: BestRow, bound: BoundTemplate) -> Iterator[WhyRow]:
    """Yield every value that the rules reject with the winner's other values unchanged.

    If the family no longer has the winner's parameters, there are none.
    """
    winner = best.row.trial.config
    winner_today = bound.template.current_config(winner)
    if winner_today is None:
        return
    values = winner_today.params
    for param in bound.template.params:
        for value in (value for value in param.values if value != values[param.name]):
            try:
                bound.check(Config.of(winner.template, {**values, param.name: value}))
            except Rejected as rejected:
                yield WhyRow(best, "refused", winner.template, param.name, value, note=rejected.message)


def _families(winner: _Winner, rows: Sequence[TrialRow]) -> list[WhyRow]:
    """Return each family's fastest trial in the winner's accuracy class. Families without one come last."""
    own = winner.best.row
    by_family: dict[str, list[TrialRow]] = {}
    for row in rows:
        by_family.setdefault(row.trial.config.template, []).append(row)
    found = []
    for template, of_family in by_family.items():
        ours = [row for row in of_family if _rendered(row) and not row.reused]
        timed = [row for row in ours if row.median_us is not None and row.trial.accuracy == own.trial.accuracy]
        fastest = min(timed, key=lambda row: row.median_us or 0.0, default=None)
        if template == own.trial.config.template:
            fastest = own  # even if another kernel had a smaller median in the search
        if fastest is None:
            family = WhyRow(winner.best, "family", template, note=f"no correct trial of class {own.trial.accuracy}")
        else:
            family = winner.row("family", fastest)
        correct = sum(row.trial.outcome == Outcome.CORRECT for row in ours)
        found.append(replace(family, trials=len(ours), correct=correct))
    return sorted(found, key=_by_ratio)


def _by_ratio(row: WhyRow) -> tuple[bool, float]:
    """Sort key: fastest first, failed trials last."""
    return row.over_winner is None, row.over_winner or 0.0


def _failures(best: BestRow, rows: Sequence[TrialRow]) -> Iterator[WhyRow]:
    """Count each family's failed trials with the same message, the most frequent one first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    examples: dict[tuple[str, str, str], Config] = {}
    for row in rows:
        trial = row.trial
        if trial.outcome == Outcome.CORRECT or row.reused:
            continue
        outcome = f"{trial.outcome} {trial.reason}".strip()
        words = (trial.config.template, outcome, " ".join(trial.message.split()))
        counts[words] += 1
        examples.setdefault(words, trial.config)
    for (template, outcome, message), trials in counts.most_common():
        example = examples[template, outcome, message]
        yield WhyRow(best, "failure", template, trials=trials, outcome=outcome, note=message, config=example)
