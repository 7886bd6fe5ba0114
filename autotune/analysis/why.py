"""best -> why: why a layer's best kernel wins, told from the recorded trials and the family's rules alone.

Nothing is modelled: each ratio is between times that were measured, and where no recorded trial tells, it says so.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.errors import Rejected
from autotune.family.space import BoundTemplate
from autotune.store import BestRow, TrialRow
from autotune.trial import Config, Outcome, Value


@dataclass(frozen=True, slots=True)
class Nearby:
    """The recorded trial most like the winner that has the default's value of a parameter."""

    row: TrialRow
    ratio: float
    """its time over the winner's"""
    also: tuple[str, ...]
    """the other parameters in which it differs from the winner"""


@dataclass(frozen=True, slots=True)
class Effect:
    """One parameter in which the winner differs from its family's default, and what the trials say of it.

    A pair is two trials that differ in this parameter alone, one with the default's value, one with the winner's. Its
    ratio is the first one's time over the second one's: above 1 the winner's value is the faster.
    """

    param: str
    default: Value
    winner: Value
    ratio: float | None
    """median of the nearest pairs; None without a pair"""
    distance: int | None
    """parameters in which the nearest pairs differ from the winner otherwise; 0: the winner is one of the pair"""
    nearest: int
    """pairs at that distance"""
    pairs: int
    """at any distance"""
    low: float | None
    high: float | None
    """the least and the largest ratio of all pairs"""
    nearby: Nearby | None
    """the recorded trial most like the winner with the default's value, unless the two are a pair themselves"""


@dataclass(frozen=True, slots=True)
class Step:
    """A recorded trial that differs from the winner in one parameter alone."""

    param: str
    value: Value
    row: TrialRow
    ratio: float | None
    """its time over the winner's; None when it is not correct"""


@dataclass(frozen=True, slots=True)
class Between:
    """A recorded trial on the way from the default to the winner: each parameter has the value of one of the two."""

    changed: tuple[str, ...]
    """the parameters that have the winner's value already, of those in which the two differ"""
    row: TrialRow
    ratio: float
    """its time over the winner's"""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A value that the family offers in the place of the winner's, all others kept."""

    param: str
    value: Value
    refusal: str
    """the rules that forbid it; empty when it is allowed"""


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """A family's trials on the layer, and the best of them against the winner."""

    template: str
    evaluated: int
    correct: int
    best: TrialRow | None
    """of the winner's accuracy class"""
    ratio: float | None
    """its time over the winner's"""


@dataclass(frozen=True, slots=True)
class Failures:
    """Trials of a family that failed in the same words."""

    template: str
    outcome: str
    reason: str
    message: str
    trials: int
    example: Config


@dataclass(frozen=True, slots=True)
class Why:
    """What the records say of one best kernel."""

    best: BestRow
    default: TrialRow | None
    """the family's default in the winner's study; None where no search recorded one"""
    default_ratio: float | None
    """its time over the winner's; None when it is not correct"""
    effects: tuple[Effect, ...]
    between: tuple[Between, ...]
    """correct trials on the way from the default to the winner, both left out, fewest changes first"""
    steps: tuple[Step, ...]
    families: tuple[FamilyRow, ...]
    """fastest first, the winner's own among them; those without a correct trial last"""
    failures: tuple[Failures, ...]
    """most frequent first"""


def explain(best: BestRow, rows: Sequence[TrialRow]) -> Why:
    """Why a best kernel wins; `rows` are the trials that compare with it, of any study, as `Store.like` lists them."""
    winner = best.row
    family = [row for row in rows if row.template_hash == winner.template_hash]
    known = _by_config(family, winner)
    known[winner.trial.config] = winner
    default = _default(family, winner)
    return Why(
        best=best,
        default=default,
        default_ratio=None if default is None else _ratio(default, winner),
        effects=() if default is None else _effects(known, default.trial.config, winner),
        between=() if default is None else _between(known, default.trial.config, winner),
        steps=_steps(known, winner),
        families=_families(rows, winner),
        failures=_failures(rows),
    )


def neighbours(bound: BoundTemplate, winner: Config) -> tuple[Neighbour, ...]:
    """Every value that a family offers one step from the winner; () when the family no longer has its parameters."""
    winner_today = bound.template.today(winner)
    if winner_today is None:
        return ()
    values = winner_today.values()
    found = []
    for param in bound.template.params:
        for value in param.values:
            if value == values[param.name]:
                continue
            try:
                bound.check(Config.of(winner.template, {**values, param.name: value}))
            except Rejected as rejected:
                found.append(Neighbour(param.name, value, rejected.message))
            else:
                found.append(Neighbour(param.name, value, ""))
    return tuple(found)


def _by_config(rows: Sequence[TrialRow], winner: TrialRow) -> dict[Config, TrialRow]:
    """A row for each config: of the winner's own study if it has one, measured rather than taken over, the latest."""
    ours = (winner.study, winner.generation)
    ranked = sorted(rows, key=lambda row: ((row.study, row.generation) == ours, not row.reused, row.id))
    return {row.trial.config: row for row in ranked}


def _default(family: Sequence[TrialRow], winner: TrialRow) -> TrialRow | None:
    """What the search tried first of the family, which is its default."""
    ours = [
        row
        for row in family
        if (row.study, row.generation) == (winner.study, winner.generation) and row.trial.source_hash is not None
    ]
    return min(ours, key=lambda row: row.trial.number, default=None)


def _ratio(row: TrialRow, winner: TrialRow) -> float | None:
    if row.median_us is None or not winner.median_us:
        return None
    return row.median_us / winner.median_us


def _effects(known: Mapping[Config, TrialRow], default: Config, winner: TrialRow) -> tuple[Effect, ...]:
    best, plain = winner.trial.config.values(), default.values()
    return tuple(
        _effect(known, name, plain[name], winner) for name in best if name in plain and plain[name] != best[name]
    )


def _effect(known: Mapping[Config, TrialRow], name: str, default: Value, winner: TrialRow) -> Effect:
    """What the pairs of trials that differ in one parameter alone say of it."""
    best = winner.trial.config.values()
    ratios: dict[int, list[float]] = {}
    for config, row in known.items():
        values = config.values()
        if values.get(name) != best[name]:
            continue
        other = known.get(Config.of(config.template, {**values, name: default}))
        if other is not None and (ratio := _ratio(other, row)) is not None:
            ratios.setdefault(len(_differing(values, best)), []).append(ratio)
    everything = [ratio for found in ratios.values() for ratio in found]
    distance = min(ratios, default=None)
    return Effect(
        param=name,
        default=default,
        winner=best[name],
        ratio=None if distance is None else statistics.median(ratios[distance]),
        distance=distance,
        nearest=0 if distance is None else len(ratios[distance]),
        pairs=len(everything),
        low=min(everything, default=None),
        high=max(everything, default=None),
        nearby=None if distance == 0 else _nearby(known, name, default, winner),
    )


def _nearby(known: Mapping[Config, TrialRow], name: str, default: Value, winner: TrialRow) -> Nearby | None:
    """The correct trial with the default's value that differs from the winner in the fewest parameters."""
    best = winner.trial.config.values()
    found = []
    for config, row in known.items():
        values = config.values()
        ratio = _ratio(row, winner)
        if values.get(name) == default and ratio is not None:
            also = tuple(other for other in _differing(values, best) if other != name)
            found.append(Nearby(row, ratio, also))
    return min(found, key=lambda nearby: (len(nearby.also), nearby.ratio), default=None)


def _between(known: Mapping[Config, TrialRow], default: Config, winner: TrialRow) -> tuple[Between, ...]:
    best, plain = winner.trial.config.values(), default.values()
    apart = [name for name in best if plain.get(name) != best[name]]
    found = []
    for config, row in known.items():
        values = config.values()
        ratio = _ratio(row, winner)
        on_the_way = all(value in (plain.get(name), best.get(name)) for name, value in values.items())
        if ratio is not None and on_the_way and config not in (default, winner.trial.config):
            found.append(Between(tuple(name for name in apart if values.get(name) == best[name]), row, ratio))
    return tuple(sorted(found, key=lambda between: (len(between.changed), between.ratio)))


def _differing(values: Mapping[str, Value], others: Mapping[str, Value]) -> tuple[str, ...]:
    return tuple(name for name in others if values.get(name) != others[name])


def _steps(known: Mapping[Config, TrialRow], winner: TrialRow) -> tuple[Step, ...]:
    """Recorded trials one parameter away from the winner, in the parameters' order, fastest first."""
    best = winner.trial.config.values()
    found = []
    for config, row in known.items():
        values = config.values()
        differing = _differing(values, best)
        if len(differing) == 1 and values.keys() == best.keys():
            found.append(Step(differing[0], values[differing[0]], row, _ratio(row, winner)))
    order = list(best)
    return tuple(sorted(found, key=lambda step: (order.index(step.param), step.ratio is None, step.ratio or 0.0)))


def _families(rows: Sequence[TrialRow], winner: TrialRow) -> tuple[FamilyRow, ...]:
    found = []
    for template in dict.fromkeys(row.trial.config.template for row in rows):
        ours = [row for row in rows if row.trial.config.template == template and row.trial.compiled and not row.reused]
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
