"""results -> page: a layer's section, ready for the template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from markupsafe import Markup, escape

from autotune.escape import printable
from autotune.measurement.traffic import minimal_bytes
from autotune.report.chart import Chart
from autotune.report.contenders import Contest, contest
from autotune.report.convergence import Family, by_second, by_trial, families, rows_of, steps
from autotune.report.results import LayerResults
from autotune.report.roofline_chart import RooflinePoint, roofline
from autotune.report.words import digits
from autotune.store import TrialRow, Verdict
from autotune.trial import Outcome, Value

_MESSAGE_CHARACTERS = 160
"""characters of a failed trial's message; `autotune show` prints all of it"""
_FAMILIES_BELOW_ROOF = 4
"""number of families, in addition to the winner's, whose best kernel is in the roofline"""


@dataclass(frozen=True, slots=True)
class TrialLine:
    """A row of the table of trials."""

    row: TrialRow
    id: str
    """id of the row if something links to it; empty otherwise"""
    cells: tuple[str, ...]
    """second, the parameters that differ within the family, remark; no cell contains a tab or a line break"""


@dataclass(frozen=True, slots=True)
class TrialTable:
    """A family's trials."""

    family: Family
    rows: str
    """prefix of the ids of its rows"""
    shared: tuple[tuple[str, Value], ...]
    """parameters that have the same value in all of its trials"""
    params: tuple[str, ...]
    lines: tuple[TrialLine, ...]


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
    """A layer's section."""

    id: str
    results: LayerResults
    rows: Mapping[int, str]
    """trial id to the id of its row in the page"""
    families: tuple[Family, ...]
    charts: tuple[Chart, ...]
    """charts by trial and by second; None if no trial has a time"""
    steps: tuple[TrialRow, ...]
    """the trials that improved the best so far"""
    roofline: Chart | None
    contests: tuple[Contest, ...]
    tables: tuple[TrialTable, ...]
    outcomes: tuple[OutcomeCount, ...]
    phases: tuple[PhaseTime, ...]
    rival: Verdict | None
    """the fastest baseline of the winner's class"""
    default: Verdict | None
    source: Markup | None
    kinds: Mapping[str, str]
    """each family's colour in the whole page"""

    def kind(self, template: str) -> str:
        """The colour of a family."""
        return self.kinds.get(template, "f7")

    def row_id(self, trial_id: int) -> str:
        """The id of a trial's row in the page; empty if it has none."""
        return self.rows.get(trial_id, "")

    @property
    def seconds(self) -> float:
        """Seconds from the first trial's start to the last one's end."""
        begun = min(row.started_at for row in self.results.trials)
        return max(((row.ended_at - begun).total_seconds() for row in self.results.trials if row.ended_at), default=0.0)

    @property
    def why_none(self) -> str:
        """The message if there is no winner."""
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
    *,
    sources: bool,
) -> LayerPage:
    """Everything in a layer's section, in the families' colours; the winner's source only with `sources`."""
    winner, trials = found.winner, found.trials
    floor_us = winner.floor_us if winner else None
    rows = _row_ids(id, trials)
    by_id = {row.id: row for row in trials}
    won = [row for row in found.finals if winner and row.winner.id == winner.best.row.id]
    held = [contest(row, by_id, floor_us if row in won else None) for row in reversed(found.finals)]
    charts = (by_trial(id, trials, floor_us, kinds), by_second(id, trials, floor_us, kinds))
    said = [verdict for row in won for verdict in row.verdicts]
    fell = steps(trials)
    named = [winner.best.row] if winner else []
    named += [*fell, *(step.best for step in found.ladder_steps if step.best)]
    named += [one.row for contest in held if contest for one in contest.contenders if one.row]
    linked = {row.id for row in named} | {event["trial_id"] for event in found.events}
    return LayerPage(
        id=id,
        results=found,
        rows=rows,
        families=families(trials, kinds),
        charts=tuple(chart for chart in charts if chart is not None),
        steps=fell,
        roofline=roofline(f"{id}-roofline", _points(found, rows, kinds), found.rates),
        contests=tuple(one for one in held if one is not None),
        tables=tuple(_tables(id, trials, kinds, {rows[trial_id] for trial_id in linked & rows.keys()})),
        outcomes=_outcomes(trials),
        phases=_phases(trials),
        rival=found.rival,
        default=next((verdict for verdict in reversed(said) if verdict.against == "default"), None),
        source=highlighted(found.source) if sources and found.source is not None else None,
        kinds=kinds,
    )


def _row_ids(section: str, trials: Sequence[TrialRow]) -> dict[int, str]:
    """By the trials' ids, because numbers start again in each environment."""
    return {
        row.id: f"{rows_of(section, place)}{line}"
        for place, family in enumerate(families(trials))
        for line, row in enumerate(family.trials)
    }


def _points(found: LayerResults, rows: Mapping[int, str], kinds: Mapping[str, str]) -> list[RooflinePoint]:
    """The winner, the best of the other fast families, the rival and the floor."""
    winner, rival, problem = found.winner, found.rival, found.layer.problem
    if winner is None:
        return []
    own = winner.best.row

    def point(name: str, row: TrialRow, time_us: float, kind: str) -> RooflinePoint:
        return RooflinePoint(name, problem, time_us, kind, row.trial.accuracy, rows.get(row.id, ""))

    placed = [point(f"winner, {own.trial.config.template}", own, winner.best.median_us, "winner")]
    for family in families(found.trials, kinds)[: _FAMILIES_BELOW_ROOF + 1]:
        timed = [row for row in family.trials if row.median_us is not None]
        best = min(timed, key=lambda row: row.median_us or 0.0, default=None)
        if best is not None and best.median_us and family.name != own.trial.config.template:
            placed.append(point(family.name, best, best.median_us, family.kind))
    if rival is not None:
        placed.append(RooflinePoint(rival.against, problem, rival.against_us, "rival", own.trial.accuracy))
    if winner.floor_us:
        placed.append(RooflinePoint("floor", problem, winner.floor_us, "bound", own.trial.accuracy))
    return placed


def _tables(
    section: str, trials: Sequence[TrialRow], kinds: Mapping[str, str], linked: Set[str]
) -> Iterator[TrialTable]:
    """A table for each family; rows that something links to have an id."""
    begun = min(row.started_at for row in trials)
    for place, family in enumerate(families(trials, kinds)):
        configs = [row.trial.config.params for row in family.trials]
        names = list(dict.fromkeys(name for values in configs for name in values))
        seen = {name: {str(values.get(name, "")) for values in configs} for name in names}
        alike = [name for name in names if len(seen[name]) == 1 and len(configs) > 1]
        params = tuple(name for name in names if name not in alike)
        rows = rows_of(section, place)
        lines = tuple(
            TrialLine(row, own if (own := f"{rows}{line}") in linked else "", tuple(_cells(row, begun, params)))
            for line, row in enumerate(family.trials)
        )
        yield TrialTable(family, rows, tuple((name, configs[0][name]) for name in alike), params, lines)


def _cells(row: TrialRow, begun: datetime, params: Sequence[str]) -> Iterator[str]:
    values = row.trial.config.params
    yield digits((row.ended_at - begun).total_seconds(), 3) if row.ended_at else ""
    for words in (*(values.get(name, "") for name in params), _remark(row)):
        yield " ".join(str(words).split())


def _remark(row: TrialRow) -> str:
    """The details of a trial without its time."""
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
    counted = Counter((row.trial.outcome, row.trial.reason) for row in trials)
    found = sorted(counted.items(), key=lambda one: (one[0][0] != Outcome.CORRECT, -one[1], one[0]))
    return tuple(OutcomeCount(outcome.value, why, number, number / len(trials)) for (outcome, why), number in found)


def _phases(trials: Sequence[TrialRow]) -> tuple[PhaseTime, ...]:
    names = ("render", "compile", "load", "verify", "measure")
    own = [row.trial.phases for row in trials if not row.reused]
    spent = {name: sum(getattr(phases, f"{name}_us") for phases in own) for name in names}
    whole = sum(spent.values())
    return tuple(PhaseTime(name, us, us / whole) for name, us in spent.items()) if whole else ()


_KINDS = (
    ("Comment.Preproc", "p"),
    ("Comment", "c"),
    ("Keyword", "k"),
    ("Name.Builtin", "k"),
    ("Literal.String", "s"),
    ("Literal.Number", "n"),
)
"""Prefixes of Pygments' token names to classes of the style sheet; all other tokens are plain."""


def highlighted(text: str) -> Markup:
    """CUDA as HTML, every character of it escaped."""
    from pygments.lexers import CudaLexer

    tokens = ((_kind(str(token)), part) for token, part in CudaLexer(ensurenl=False).get_tokens(printable(text)))
    pieces = []
    for kind, parts in groupby(tokens, key=lambda one: one[0]):
        joined = escape("".join(part for _, part in parts))
        pieces.append(Markup("<i class={}>{}</i>").format(kind, joined) if kind else joined)
    return Markup("").join(pieces)


def _kind(token: str) -> str:
    """The class of a token, which is written `Token.Comment.Single`."""
    name = token.removeprefix("Token.")
    return next((kind for begin, kind in _KINDS if name.startswith(begin)), "")
