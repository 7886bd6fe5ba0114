"""What the store answers: which layers there are, their trials, the best of each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, and_, func, or_, select, tuple_

from autotune.devices.device import DeviceInfo
from autotune.errors import StoreError
from autotune.problem import Conv2dProblem, Layer
from autotune.store import spaces
from autotune.store.columns import date_of
from autotune.store.records import BestRow, LayerRow, ProfileRow, RetimeRow, SpanRow, StudyRow, TrialRow
from autotune.store.rows import TrialRows, environment_of, layer_of, problem_values, profile_of, span_of, timing_of
from autotune.store.sqlite.database import one_line
from autotune.store.tables import (
    best_trials,
    devices,
    environments,
    layers,
    measurements,
    profiles,
    retimes,
    runs,
    sources,
    spans,
    studies,
    study_layers,
    subjects,
    templates,
    trials,
)
from autotune.trial import Outcome

SORTS = ("number", "median", "registers", "error", "started")
"""Orders of a list of trials; those without the value come last."""
GENERATIONS = ("newest", "all")
CIRCUMSTANCES = ("subject_id", "device_id", "environment_id", "policy", "origin")
"""what two trials have in common whose times compare"""
CHUNK = 500
"""trial ids in one IN list; SQLite's least limit for bound values is 999"""


@dataclass(frozen=True, slots=True)
class Place:
    """A layer of a study's generation, with the ids that its trials carry."""

    study: str
    generation: int
    layer: Layer
    study_id: int
    subject_id: int
    current: bool
    """False: the study file no longer has it"""

    @property
    def name(self) -> str:
        """`study.layer`."""
        return f"{self.study}.{self.layer.name}"


Where = Sequence[Place] | Conv2dProblem | None
"""What is asked about: layers as studies name them, a shape whatever its names, or everything."""


def find(connection: Connection, what: str | None, where: str, generations: str = "newest") -> tuple[Place, ...]:
    """The layers that a name stands for: a study, study.layer or a layer's bare name; None stands for all.

    An imported space has no layers, so its name stands for none of them. The newest generation is the newest of those
    begun here; every imported study stands beside it.

    Raises StoreError when there is no such study or layer; `where` begins its message.
    """
    _one_of("generations", generations, GENERATIONS)
    full_name = studies.c.name + "." + study_layers.c.name
    statement = (
        select(studies, study_layers, layers)
        .join(study_layers, study_layers.c.study_id == studies.c.id)
        .join(subjects, subjects.c.id == study_layers.c.subject_id)
        .join(layers, layers.c.id == subjects.c.layer_id)
        .order_by(studies.c.id, study_layers.c.position.is_(None), study_layers.c.position)
    )
    if generations == "newest":
        same = studies.alias("same")
        own = and_(same.c.name == studies.c.name, same.c.imported_from.is_(None))
        newest = select(func.max(same.c.generation)).where(own).scalar_subquery()
        statement = statement.where(or_(studies.c.generation == newest, studies.c.imported_from.is_not(None)))
    if what is not None:
        statement = statement.where(or_(studies.c.name == what, full_name == what, study_layers.c.name == what))
    places = tuple(_place_of(row) for row in connection.execute(statement).mappings())
    if what is None:
        return places
    found = (
        tuple(place for place in places if place.study == what)
        or tuple(place for place in places if place.name == what)
        or places
    )
    if not found and not spaces.named(connection, what):
        raise StoreError(
            f"{where}: no study or layer {one_line(what)!r}; "
            f"{_offer(what, find(connection, None, where), spaces.names(connection))}"
        )
    return found


def _place_of(row: RowMapping) -> Place:
    return Place(
        study=row[studies.c.name],
        generation=row[studies.c.generation],
        layer=layer_of(row),
        study_id=row[studies.c.id],
        subject_id=row[study_layers.c.subject_id],
        current=row[study_layers.c.position] is not None,
    )


def _offer(what: str, places: Sequence[Place], others: Sequence[str]) -> str:
    """The names nearest to a wrong one, else the studies."""
    known = sorted({place.study for place in places} | set(others))
    if not known:
        return "the database has none yet"
    near = sorted(difflib.get_close_matches(what, {*known, *(place.name for place in places)}, n=3, cutoff=0.7))
    return f"it has {', '.join(one_line(name) for name in near or known[:10])}"


def _one_of(what: str, word: str, allowed: Iterable[str]) -> None:
    if word not in allowed:
        raise StoreError(f"{what} {one_line(word)!r}: expected one of {', '.join(allowed)}")


def select_trials() -> Select[*tuple[object, ...]]:
    """Everything that a TrialRow needs, without a WHERE."""
    # Outer joins where there is always a match: SQLite reads the trials first then, and does not try every device
    # with every environment, run, template and study.
    names = study_layers.alias("names")
    name = (
        select(names.c.name)
        .where(names.c.study_id == trials.c.study_id, names.c.subject_id == trials.c.subject_id)
        .order_by(names.c.position.is_(None), names.c.position)
        .limit(1)
        .scalar_subquery()
    )
    return (
        select(
            *(trials, studies, layers, devices, environments, runs, templates),
            *(sources.c.hash, sources.c.launches, study_layers, measurements),
        )
        .outerjoin(studies, studies.c.id == trials.c.study_id)
        .join(subjects, subjects.c.id == trials.c.subject_id)
        .join(layers, layers.c.id == subjects.c.layer_id)
        .outerjoin(devices, devices.c.id == trials.c.device_id)
        .outerjoin(environments, environments.c.id == trials.c.environment_id)
        .outerjoin(runs, runs.c.id == trials.c.run_id)
        .outerjoin(templates, templates.c.id == trials.c.template_id)
        .outerjoin(sources, sources.c.id == trials.c.source_id)
        .outerjoin(
            study_layers,
            and_(
                study_layers.c.study_id == trials.c.study_id,
                study_layers.c.subject_id == trials.c.subject_id,
                study_layers.c.name == name,
            ),
        )
        .outerjoin(
            measurements,
            and_(
                measurements.c.trial_id == trials.c.id,
                measurements.c.finals_id.is_(None),
                measurements.c.retime_id.is_(None),
            ),
        )
    )


def list_trials(
    connection: Connection,
    where: Where,
    *,
    outcome: str | None,
    sort: str,
    limit: int | None,
    kind: str | None,
) -> tuple[TrialRow, ...]:
    """The trials of these layers, or of a problem in every study (None: all), in an order of SORTS.

    Raises StoreError for an unknown word.
    """
    _one_of("sort", sort, SORTS)
    statement = select_trials()
    column = {
        "median": trials.c.median_us,
        "registers": trials.c.registers,
        "error": trials.c.error_over_bound,
        "started": trials.c.started_at,
    }.get(sort)
    if column is not None:
        statement = statement.order_by(column.is_(None), column)
    statement = statement.order_by(
        trials.c.study_id, study_layers.c.position, trials.c.device_id, trials.c.number, trials.c.id
    )
    if isinstance(where, Conv2dProblem):
        statement = statement.where(*_of_problem(where))
    elif where is not None:
        pairs = [(place.study_id, place.subject_id) for place in where]
        statement = statement.where(tuple_(trials.c.study_id, trials.c.subject_id).in_(pairs))
    if outcome is not None:
        _one_of("outcome", outcome, tuple(Outcome))
        statement = statement.where(trials.c.outcome == outcome)
    if kind is not None:
        statement = statement.where(devices.c.kind == kind)
    if limit is not None:
        statement = statement.limit(limit)
    made = TrialRows()
    return tuple(made.of(row) for row in connection.execute(statement).mappings())


def list_like(connection: Connection, trial_id: int) -> tuple[TrialRow, ...]:
    """Finished trials of a trial's shape that were measured under the same circumstances, in the order stored."""
    winner = trials.alias("winner")
    same = [trials.c[name] == winner.c[name] for name in CIRCUMSTANCES]
    statement = (
        select_trials()
        .join(winner, and_(winner.c.id == trial_id, *same))
        .where(trials.c.outcome != str(Outcome.RUNNING))
        .order_by(trials.c.id)
    )
    made = TrialRows()
    return tuple(made.of(row) for row in connection.execute(statement).mappings())


def list_best(connection: Connection, where: Where, *, kind: str | None, accuracy: str | None) -> tuple[BestRow, ...]:
    """The best of these layers in their order, or of a problem (None: of every layer), devices apart."""
    statement = (
        select(best_trials, measurements)
        .join(measurements, measurements.c.id == best_trials.c.measurement_id)
        .join(devices, devices.c.id == best_trials.c.device_id)
        .order_by(
            best_trials.c.subject_id,
            devices.c.kind,
            devices.c.name,
            devices.c.id,
            best_trials.c.accuracy,
            best_trials.c.deterministic.desc(),
            best_trials.c.policy,
        )
    )
    if isinstance(where, Conv2dProblem):
        subject = select(subjects.c.id).join(layers).where(*_of_problem(where))
        statement = statement.where(best_trials.c.subject_id == subject.scalar_subquery())
    elif where is not None:
        statement = statement.where(best_trials.c.subject_id.in_({place.subject_id for place in where}))
    if kind is not None:
        statement = statement.where(devices.c.kind == kind)
    if accuracy is not None:
        statement = statement.where(best_trials.c.accuracy == accuracy)
    rows = connection.execute(statement).mappings().all()
    winners = trials_by_id(connection, [row[best_trials.c.trial_id] for row in rows])
    if where is None or isinstance(where, Conv2dProblem):
        return tuple(_best_row(row, winners[row[best_trials.c.trial_id]], None) for row in rows)
    of_subject: dict[int, list[RowMapping]] = {}
    for row in rows:
        of_subject.setdefault(row[best_trials.c.subject_id], []).append(row)
    return tuple(
        _best_row(row, winners[row[best_trials.c.trial_id]], place)
        for place in current_places(where)
        for row in of_subject.get(place.subject_id, ())
    )


def current_places(places: Iterable[Place]) -> tuple[Place, ...]:
    """The layers that their study files have, each once where an imported study has it too."""
    found: dict[tuple[str, int], Place] = {}
    for place in places:
        if place.current:
            found.setdefault((place.name, place.subject_id), place)
    return tuple(found.values())


def _best_row(row: RowMapping, winner: TrialRow, place: Place | None) -> BestRow:
    return BestRow(
        study=winner.study if place is None else place.study,
        layer=winner.layer if place is None else place.layer,
        timing=timing_of(row),
        basis=row[best_trials.c.basis],
        row=winner,
    )


def matching(rows: Sequence[BestRow], device: DeviceInfo) -> tuple[BestRow, ...]:
    """Of each layer the rows of this device; where it has none, those of devices of its class, marked so."""
    exact = {row.layer.problem for row in rows if row.row.device.identity == device.identity}
    found = []
    for row in rows:
        other = row.row.device
        if other.identity == device.identity:
            found.append(row)
        elif row.layer.problem not in exact and other.is_like(device):
            found.append(replace(row, match="device class"))
    return tuple(found)


def _of_problem(problem: Conv2dProblem) -> list[ColumnElement[bool]]:
    return [layers.c[name] == value for name, value in problem_values(problem).items()]


def trials_by_id(connection: Connection, ids: Sequence[int]) -> dict[int, TrialRow]:
    """The trials with these ids."""
    found: dict[int, TrialRow] = {}
    made = TrialRows()
    for start in range(0, len(ids), CHUNK):
        statement = select_trials().where(trials.c.id.in_(ids[start : start + CHUNK]))
        for row in connection.execute(statement).mappings():
            found[row[trials.c.id]] = made.of(row)
    return found


def list_spans(connection: Connection, places: Sequence[Place]) -> tuple[SpanRow, ...]:
    """The end-to-end trials of these layers with the parts of their times, in the order they were made."""
    pairs = [(place.study_id, place.subject_id) for place in places]
    statement = (
        select(spans)
        .join(trials, trials.c.id == spans.c.trial_id)
        .where(tuple_(trials.c.study_id, trials.c.subject_id).in_(pairs))
        .order_by(trials.c.study_id, trials.c.id)
    )
    rows = connection.execute(statement).mappings().all()
    whole = trials_by_id(connection, [row[spans.c.trial_id] for row in rows])
    return tuple(SpanRow(whole[row[spans.c.trial_id]], span_of(row)) for row in rows)


def list_profiles(connection: Connection, places: Sequence[Place]) -> tuple[ProfileRow, ...]:
    """What a profiler saw of these layers' kernels, oldest first."""
    statement = (
        select(profiles)
        .join(trials, trials.c.id == profiles.c.trial_id)
        .where(trials.c.subject_id.in_({place.subject_id for place in places}))
        .order_by(profiles.c.profiled_at, profiles.c.id)
    )
    rows = connection.execute(statement).mappings().all()
    whole = trials_by_id(connection, sorted({row[profiles.c.trial_id] for row in rows}))
    return tuple(
        ProfileRow(whole[row[profiles.c.trial_id]], profile_of(row), date_of(row[profiles.c.profiled_at]))
        for row in rows
    )


def list_retimes(connection: Connection, places: Sequence[Place]) -> tuple[RetimeRow, ...]:
    """What was measured again of these layers' shapes, oldest first."""
    statement = (
        select(retimes, runs, environments, measurements)
        .join(trials, trials.c.id == retimes.c.trial_id)
        .join(runs, runs.c.id == retimes.c.run_id)
        .join(environments, environments.c.id == runs.c.environment_id)
        .outerjoin(measurements, measurements.c.retime_id == retimes.c.id)
        .where(trials.c.subject_id.in_({place.subject_id for place in places}))
        .order_by(retimes.c.ended_at, retimes.c.id)
    )
    rows = connection.execute(statement).mappings().all()
    whole = trials_by_id(connection, sorted({row[retimes.c.trial_id] for row in rows}))
    return tuple(
        RetimeRow(
            row=whole[row[retimes.c.trial_id]],
            environment=environment_of(row),
            label=row[retimes.c.label],
            before_us=row[retimes.c.before_us],
            timing=None if row[measurements.c.id] is None else timing_of(row),
            message=row[retimes.c.message],
            ended_at=date_of(row[retimes.c.ended_at]),
        )
        for row in rows
    )


def list_layers(connection: Connection, places: Sequence[Place]) -> tuple[LayerRow, ...]:
    """Every layer that is in its study's file, with the number of its finished and of its correct trials."""
    rows = []
    for place in places:
        if place.current:
            statement = select(
                func.count().filter(trials.c.outcome != str(Outcome.RUNNING)),
                func.count().filter(trials.c.outcome == str(Outcome.CORRECT)),
            ).where(trials.c.study_id == place.study_id, trials.c.subject_id == place.subject_id)
            finished, correct = connection.execute(statement).one()
            rows.append(LayerRow(place.study, place.generation, place.layer, finished, correct))
    return tuple(rows)


def list_studies(connection: Connection) -> tuple[StudyRow, ...]:
    """Every generation of every study, oldest first."""
    layer_count = (
        select(func.count())
        .where(study_layers.c.study_id == studies.c.id, study_layers.c.position.is_not(None))
        .scalar_subquery()
    )
    trial_count = select(func.count()).where(trials.c.study_id == studies.c.id).scalar_subquery()
    statement = select(studies, layer_count.label("layer_count"), trial_count.label("trial_count")).order_by(
        studies.c.id
    )
    return tuple(
        StudyRow(
            name=row[studies.c.name],
            generation=row[studies.c.generation],
            seed=row[studies.c.seed],
            text=row[studies.c.text],
            created_at=date_of(row[studies.c.created_at]),
            layers=row["layer_count"],
            trials=row["trial_count"],
            imported_from=row[studies.c.imported_from],
        )
        for row in connection.execute(statement).mappings()
    )
