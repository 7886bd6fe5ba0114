"""results -> page: a layer's section, ready for the template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from autotune.measurement.traffic import minimal_bytes
from autotune.report.chart import Chart
from autotune.report.contenders import Contest, contest
from autotune.report.convergence import Family, by_trial, families, row_id, steps
from autotune.report.results import LayerResults
from autotune.report.roofline_chart import RooflinePoint, roofline
from autotune.report.words import digits
from autotune.store import TrialRow, Verdict
from autotune.trial import Outcome, Value

_MESSAGE_CHARACTERS = 160
"""maximum length of a failed trial's message; `autotune show` prints the whole message"""
_FAMILIES_BELOW_ROOF = 4
"""number of families besides the winner's whose best kernels are shown in the roofline"""


@dataclass(frozen=True, slots=True)
class TrialTable:
    """The table of one family's trials."""

    family: Family
    shared: tuple[tuple[str, Value], ...]
    """parameters with the same value in all trials of the family"""
    params: tuple[str, ...]
    lines: tuple[tuple[TrialRow, tuple[str, ...]], ...]
    """each trial with the cells that follow its time: second, the parameters that differ within the family, remark"""


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    """The number of trials with this outcome."""

    outcome: str
    reason: str
    trials: int
    share: float


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """The time that the trials spent in each phase."""

    name: str
    time_us: float
    share: float


@dataclass(frozen=True, slots=True)
class LayerPage:
    """The section of a layer."""

    id: str
    results: LayerResults
    here: frozenset[int]
    """the ids of the layer's trials"""
    families: tuple[Family, ...]
    chart: Chart | None
    """the time of every trial and the best time so far; None if no trial has a time"""
    steps: tuple[TrialRow, ...]
    """the trials that improved on the best time so far"""
    roofline: Chart | None
    contests: tuple[Contest, ...]
    tables: tuple[TrialTable, ...]
    outcomes: tuple[OutcomeCount, ...]
    phases: tuple[PhaseTime, ...]
    rival: Verdict | None
    """the fastest baseline in the accuracy class of the winner"""
    default: Verdict | None
    kinds: Mapping[str, str]
    """the colour of each family in the whole page"""

    def kind(self, template: str) -> str:
        """Return the colour of a family."""
        return self.kinds.get(template, "f7")

    def row_id(self, trial_id: int) -> str:
        """Return the id of a trial's row in the page, or an empty string if it has none."""
        return row_id(self.id, trial_id) if trial_id in self.here else ""

    @property
    def seconds(self) -> float:
        """Seconds from the start of the first trial to the end of the last."""
        begun = min(row.started_at for row in self.results.trials)
        return max(((row.ended_at - begun).total_seconds() for row in self.results.trials if row.ended_at), default=0.0)

    @property
    def why_none(self) -> str:
        """The message to show if there is no winner."""
        correct = [row for row in self.results.trials if row.trial.outcome == Outcome.CORRECT]
        if any(row.origin == "imported" for row in correct):
            return "imported: counts once measured here, by autotune retime"
        return "no correct kernel here"

    @property
    def intensity(self) -> float:
        """FLOPs per byte that any kernel must move."""
        return self.results.layer.problem.flops / minimal_bytes(self.results.layer.problem)


def layer_page(
    id: str,  # noqa: A002  # of the element
    found: LayerResults,
    kinds: Mapping[str, str],
) -> LayerPage:
    """Compute everything in a layer's section, using the families' colours."""
    winner, trials = found.winner, found.trials
    floor_us = winner.floor_us if winner else None
    by_id = {row.id: row for row in trials}
    won = [row for row in found.finals if winner and row.winner.id == winner.best.row.id]
    held = [contest(row, by_id) for row in reversed(found.finals)]
    own_verdicts = [verdict for row in won for verdict in row.verdicts]
    return LayerPage(
        id=id,
        results=found,
        here=frozenset(by_id),
        families=families(trials, kinds),
        chart=by_trial(id, trials, floor_us, kinds),
        steps=steps(trials),
        roofline=roofline(f"{id}-roofline", _points(id, found, kinds), found.rates),
        contests=tuple(one for one in held if one is not None),
        tables=tuple(_tables(trials, kinds)),
        outcomes=_outcomes(trials),
        phases=_phases(trials),
        rival=found.rival,
        default=next((verdict for verdict in reversed(own_verdicts) if verdict.against == "default"), None),
        kinds=kinds,
    )


def _points(section: str, found: LayerResults, kinds: Mapping[str, str]) -> list[RooflinePoint]:
    """Return the roofline points of the winner, the best of the other fast families, the rival and the floor."""
    winner, rival, problem = found.winner, found.rival, found.layer.problem
    if winner is None:
        return []
    own = winner.best.row

    here = {row.id for row in found.trials}

    def point(name: str, row: TrialRow, time_us: float, kind: str, *, labelled: bool) -> RooflinePoint:
        link = row_id(section, row.id) if row.id in here else ""
        return RooflinePoint(name, problem, time_us, kind, row.trial.accuracy, link, labelled)

    placed = [point("winner", own, winner.best.median_us, "winner", labelled=True)]
    for family in families(found.trials, kinds)[: _FAMILIES_BELOW_ROOF + 1]:
        timed = [row for row in family.trials if row.median_us is not None]
        best = min(timed, key=lambda row: row.median_us or 0.0, default=None)
        if best is not None and best.median_us and family.name != own.trial.config.template:
            placed.append(point(family.name, best, best.median_us, family.kind, labelled=False))
    if rival is not None:
        placed.append(RooflinePoint(rival.against, problem, rival.against_us, "rival", own.trial.accuracy))
    if winner.floor_us:
        placed.append(RooflinePoint("floor", problem, winner.floor_us, "bound", own.trial.accuracy))
    return placed


def _tables(trials: Sequence[TrialRow], kinds: Mapping[str, str]) -> Iterator[TrialTable]:
    """Yield a table for each family."""
    begun = min(row.started_at for row in trials)
    for family in families(trials, kinds):
        configs = [row.trial.config.params for row in family.trials]
        names = list(dict.fromkeys(name for values in configs for name in values))
        seen = {name: {str(values.get(name, "")) for values in configs} for name in names}
        alike = [name for name in names if len(seen[name]) == 1 and len(configs) > 1]
        params = tuple(name for name in names if name not in alike)
        lines = tuple((row, tuple(_cells(row, begun, params))) for row in family.trials)
        yield TrialTable(family, tuple((name, configs[0][name]) for name in alike), params, lines)


def _cells(row: TrialRow, begun: datetime, params: Sequence[str]) -> Iterator[str]:
    values = row.trial.config.params
    yield digits((row.ended_at - begun).total_seconds(), 3) if row.ended_at else ""
    yield from (str(values.get(name, "")) for name in params)
    yield _remark(row)


def _remark(row: TrialRow) -> str:
    """Describe a trial in words, without its time."""
    words = [row.proposed_by] if row.proposed_by != "search" else []
    words += ["reused"] if row.reused else []
    words += [row.origin] if row.origin != "measured" else []
    if row.median_us is None:
        message = " ".join(row.trial.message.split())
        cut = "\N{HORIZONTAL ELLIPSIS}" if len(message) > _MESSAGE_CHARACTERS else ""
        short = message[:_MESSAGE_CHARACTERS] + cut
        words += [word for word in (row.trial.outcome.value, row.trial.reason, short) if word]
    return ", ".join(words)


def _outcomes(trials: Sequence[TrialRow]) -> tuple[OutcomeCount, ...]:
    counts = Counter((row.trial.outcome, row.trial.reason) for row in trials)
    found = sorted(counts.items(), key=lambda one: (one[0][0] != Outcome.CORRECT, -one[1], one[0]))
    return tuple(OutcomeCount(outcome.value, why, number, number / len(trials)) for (outcome, why), number in found)


def _phases(trials: Sequence[TrialRow]) -> tuple[PhaseTime, ...]:
    names = ("render", "compile", "load", "verify", "measure")
    own = [row.trial.phases for row in trials if not row.reused]
    spent = {name: sum(getattr(phases, f"{name}_us") for phases in own) for name in names}
    whole = sum(spent.values())
    return tuple(PhaseTime(name, us, us / whole) for name, us in spent.items()) if whole else ()
