"""best -> why: why a layer's best kernel is the fastest, from the recorded trials and the family's rules.

There is no model: each ratio is between measured times, and if no recorded trial answers a question, the answer says
so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.errors import Rejected
from autotune.family.space import BoundTemplate
from autotune.store import BestRow, TrialRow
from autotune.trial import Config, Outcome, Value


@dataclass(frozen=True, slots=True)
class Step:
    """A recorded trial that differs from the winner in one parameter alone."""

    param: str
    value: Value
    row: TrialRow
    ratio: float | None
    """its time divided by the winner's; None if it is not correct"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A value that the family's rules forbid together with the other values of the winner."""

    param: str
    value: Value
    rules: str


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """A family's trials on the layer, and its best relative to the winner."""

    template: str
    evaluated: int
    correct: int
    best: TrialRow | None
    """of the winner's accuracy class"""
    ratio: float | None
    """its time divided by the winner's"""


@dataclass(frozen=True, slots=True)
class Failures:
    """Trials of a family that failed with the same message."""

    template: str
    outcome: str
    reason: str
    message: str
    trials: int
    example: Config


@dataclass(frozen=True, slots=True)
class Why:
    """The explanation of one best kernel."""

    best: BestRow
    default: TrialRow | None
    """the family's default in the winner's study; None if no search recorded one"""
    default_ratio: float | None
    """its time divided by the winner's; None if it is not correct"""
    steps: tuple[Step, ...]
    families: tuple[FamilyRow, ...]
    """fastest first, including the winner's own; those without a correct trial last"""
    failures: tuple[Failures, ...]
    """most frequent first"""

    @property
    def winner(self) -> TrialRow:
        """Its trial."""
        return self.best.row


def explain(best: BestRow, rows: Sequence[TrialRow]) -> Why:
    """Explain a best kernel; `rows` are the comparable trials, including its own, as `trials.like` lists them."""
    winner = best.row
    default = _default(rows, winner)
    return Why(
        best=best,
        default=default,
        default_ratio=None if default is None else _ratio(default, winner),
        steps=_steps([row for row in rows if row.template_hash == winner.template_hash], winner),
        families=_families(rows, winner),
        failures=_failures(rows),
    )


def refusals(bound: BoundTemplate, winner: Config) -> tuple[Refusal, ...]:
    """Every refused value one step from the winner; () if the family no longer has its parameters."""
    winner_today = bound.template.current_config(winner)
    if winner_today is None:
        return ()
    values = winner_today.params
    found = []
    for param in bound.template.params:
        for value in (value for value in param.values if value != values[param.name]):
            try:
                bound.check(Config.of(winner.template, {**values, param.name: value}))
            except Rejected as rejected:
                found.append(Refusal(param.name, value, rejected.message))
    return tuple(found)


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


def _ratio(row: TrialRow, winner: TrialRow) -> float | None:
    if row.median_us is None or not winner.median_us:
        return None
    return row.median_us / winner.median_us


def _steps(rows: Sequence[TrialRow], winner: TrialRow) -> tuple[Step, ...]:
    """Recorded trials one parameter away from the winner, in the parameters' order, fastest first."""
    best = winner.trial.config.params
    found = []
    for config, row in _by_config(rows, winner).items():
        values = config.params
        differing = [name for name, value in best.items() if values[name] != value]
        if len(differing) == 1:
            found.append(Step(differing[0], values[differing[0]], row, _ratio(row, winner)))
    order = list(best)
    return tuple(sorted(found, key=lambda step: (order.index(step.param), step.ratio is None, step.ratio or 0.0)))


def _families(rows: Sequence[TrialRow], winner: TrialRow) -> tuple[FamilyRow, ...]:
    by_family: dict[str, list[TrialRow]] = {}
    for row in rows:
        by_family.setdefault(row.trial.config.template, []).append(row)
    found = []
    for template, of_family in by_family.items():
        ours = [row for row in of_family if _rendered(row) and not row.reused]
        timed = [row for row in ours if row.median_us is not None and row.trial.accuracy == winner.trial.accuracy]
        best = min(timed, key=lambda row: row.median_us or 0.0, default=None)
        if template == winner.trial.config.template:
            best = winner  # the finals may have preferred it to a smaller median of the search
        ratio = None if best is None else _ratio(best, winner)
        correct = sum(row.trial.outcome == Outcome.CORRECT for row in ours)
        found.append(FamilyRow(template, len(ours), correct, best, ratio))
    return tuple(sorted(found, key=lambda family: (family.ratio is None, family.ratio or 0.0)))


def _failures(rows: Sequence[TrialRow]) -> tuple[Failures, ...]:
    counted: Counter[tuple[str, str, str, str]] = Counter()
    examples: dict[tuple[str, str, str, str], Config] = {}
    for row in rows:
        trial = row.trial
        if trial.outcome == Outcome.CORRECT or row.reused:
            continue
        words = (trial.config.template, trial.outcome.value, trial.reason, " ".join(trial.message.split()))
        counted[words] += 1
        examples.setdefault(words, trial.config)
    return tuple(Failures(*words, trials, examples[words]) for words, trials in counted.most_common())
