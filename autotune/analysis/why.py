"""best -> why: why a layer's best kernel is the fastest, from the recorded trials and the family's rules.

There is no model: each ratio is between measured times, and if no recorded trial answers a question, the answer says
so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.errors import Rejected
from autotune.family.space import BoundTemplate
from autotune.trial import Config, Outcome, Value

if TYPE_CHECKING:
    from autotune.store import BestRow, TrialRow


@dataclass(frozen=True, slots=True)
class WhyRow:
    """A fact about one best kernel; fields that do not apply are None."""

    best: BestRow
    about: str
    """winner, default, step, refused, family or failure"""
    template: str
    parameter: str | None = None
    value: Value | None = None
    time_us: float | None = None
    over_winner: float | None = None
    """its time divided by the winner's"""
    verdict: str | None = None
    """whether it is slower or faster beyond noise; of a failed trial, its outcome"""
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


def explain(
    best: BestRow, rows: Sequence[TrialRow], *, noise: float | None = None, bound: BoundTemplate | None = None
) -> Iterator[WhyRow]:
    """Explain a best kernel.

    `rows` are the comparable trials, including its own, as `trials.like` lists them. `noise` is the fraction within
    which two times are the same. `bound` is the kernel's family, whose rules may refuse values.
    """
    winner = best.row
    yield _trial_row(best, "winner", winner, noise, time_us=best.median_us)
    default = _default(rows, winner)
    if default is not None:
        yield _trial_row(best, "default", default, noise)
    yield from _steps(best, [row for row in rows if row.template_hash == winner.template_hash], noise)
    if bound is not None:
        yield from _refusals(best, bound)
    yield from _families(best, rows, noise)
    yield from _failures(best, rows)


def _trial_row(
    best: BestRow,
    about: str,
    row: TrialRow,
    noise: float | None,
    *,
    parameter: str | None = None,
    value: Value | None = None,
    time_us: float | None = None,
) -> WhyRow:
    """A row about one recorded trial."""
    trial = row.trial
    ratio = None if row.median_us is None else row.median_us / (best.row.median_us or row.median_us)
    return WhyRow(
        *(best, about, trial.config.template, parameter, value),
        time_us=row.median_us if time_us is None else time_us,
        over_winner=ratio,
        verdict=f"{trial.outcome} {trial.reason}".strip() if ratio is None else _verdict(ratio, noise or 0.0),
        trial=trial.number,
        outcome=trial.outcome.value,
        config=trial.config,
    )


def _verdict(ratio: float, noise: float) -> str:
    if abs(ratio - 1) <= noise:
        return "same within noise" if noise else "same"
    return "slower" if ratio > 1 else "faster"


def _by_config(rows: Sequence[TrialRow], winner: TrialRow) -> dict[Config, TrialRow]:
    """A row for each config: from the winner's own study if possible, measured rather than reused, the latest."""
    ranked = sorted(rows, key=lambda row: (_study(row) == _study(winner), not row.reused, row.id))
    return {row.trial.config: row for row in ranked} | {winner.trial.config: winner}


def _study(row: TrialRow) -> tuple[str, int]:
    """A trial's generation of a study."""
    return row.study, row.generation


def _rendered(row: TrialRow) -> bool:
    """Whether a trial used an evaluation of the budget; otherwise its config was rejected before rendering."""
    return row.trial.source_hash is not None


def _default(rows: Sequence[TrialRow], winner: TrialRow) -> TrialRow | None:
    """The first config of the winner's family that the search tried in its study, which is the default."""
    of_winner = (_study(winner), winner.template_hash)
    ours = [row for row in rows if _rendered(row) and (_study(row), row.template_hash) == of_winner]
    return min(ours, key=lambda row: row.trial.number, default=None)


def _steps(best: BestRow, rows: Sequence[TrialRow], noise: float | None) -> list[WhyRow]:
    """Recorded trials that differ from the winner in one parameter, in the parameters' order, fastest first."""
    own = best.row.trial.config.params
    found = []
    for config, row in _by_config(rows, best.row).items():
        values = config.params
        differing = [name for name, value in own.items() if values[name] != value]
        if len(differing) == 1:
            found.append(_trial_row(best, "step", row, noise, parameter=differing[0], value=values[differing[0]]))
    order = list(own)
    return sorted(found, key=lambda step: (order.index(step.parameter or ""), *_by_ratio(step)))


def _refusals(best: BestRow, bound: BoundTemplate) -> Iterator[WhyRow]:
    """Every value that the rules refuse with the winner's other values; none if the family no longer has its
    parameters.
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


def _families(best: BestRow, rows: Sequence[TrialRow], noise: float | None) -> list[WhyRow]:
    """The best trial of each family in the winner's accuracy class, fastest first; families without one come last."""
    winner = best.row
    by_family: dict[str, list[TrialRow]] = {}
    for row in rows:
        by_family.setdefault(row.trial.config.template, []).append(row)
    found = []
    for template, of_family in by_family.items():
        ours = [row for row in of_family if _rendered(row) and not row.reused]
        timed = [row for row in ours if row.median_us is not None and row.trial.accuracy == winner.trial.accuracy]
        fastest = min(timed, key=lambda row: row.median_us or 0.0, default=None)
        if template == winner.trial.config.template:
            fastest = winner  # the finals may have preferred it to a smaller median of the search
        if fastest is None:
            family = WhyRow(best, "family", template, note=f"no correct trial of class {winner.trial.accuracy}")
        else:
            family = _trial_row(best, "family", fastest, noise)
        correct = sum(row.trial.outcome == Outcome.CORRECT for row in ours)
        found.append(replace(family, trials=len(ours), correct=correct))
    return sorted(found, key=_by_ratio)


def _by_ratio(row: WhyRow) -> tuple[bool, float]:
    """Fastest first, failed trials last."""
    return row.over_winner is None, row.over_winner or 0.0


def _failures(best: BestRow, rows: Sequence[TrialRow]) -> Iterator[WhyRow]:
    """Trials of a family that failed with the same message, the most frequent first."""
    counted: Counter[tuple[str, str, str]] = Counter()
    examples: dict[tuple[str, str, str], Config] = {}
    for row in rows:
        trial = row.trial
        if trial.outcome == Outcome.CORRECT or row.reused:
            continue
        outcome = f"{trial.outcome} {trial.reason}".strip()
        words = (trial.config.template, outcome, " ".join(trial.message.split()))
        counted[words] += 1
        examples.setdefault(words, trial.config)
    for (template, outcome, message), trials in counted.most_common():
        example = examples[template, outcome, message]
        yield WhyRow(best, "failure", template, trials=trials, outcome=outcome, note=message, config=example)
