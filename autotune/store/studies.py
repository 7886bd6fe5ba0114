"""Studies by generation, with their layers, and the layers that a name refers to."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, func, or_, select, update

from autotune.errors import StoreError
from autotune.escape import one_line
from autotune.problem import Layer
from autotune.store.layers import problem_of, store_layer
from autotune.store.rows import insert, record_of, rows_of
from autotune.store.schema.column_kinds import Values
from autotune.store.schema.tables import layers, studies, study_layers, trials, tuning_targets
from autotune.store.sqlite.database import Database
from autotune.study import Study
from autotune.trial import Outcome

GENERATIONS = ("newest", "all")

_NAMED = 10  # number of names that an error message lists


@dataclass(frozen=True, slots=True)
class StudyKey:
    """The key of a stored study's generation."""

    id: int
    name: str
    generation: int
    """the number of the generation, from 1; every fresh start begins another generation"""
    fresh_after: int | None = None
    """the id of the last trial before the study's fresh start; only later trials are reused"""


@dataclass(frozen=True, slots=True)
class StudyRow:
    """One generation of a study."""

    name: str
    generation: int
    seed: int
    text: str
    created_at: datetime
    layers: int
    trials: int
    imported_from: str | None = None
    """the file that the study was copied from; None if the study was started in this database"""


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A layer in a generation of a study, with the ids that its trials refer to."""

    study: str
    generation: int
    layer: Layer
    study_id: int
    tuning_target_id: int
    current: bool
    """False if the study file no longer has the layer"""
    admitted: tuple[str, ...]
    """the accuracy classes that may win the layer in the study"""
    trials: int = 0
    """number of finished trials on all devices, if they were counted"""

    @property
    def name(self) -> str:
        """`study.layer`."""
        return f"{self.study}.{self.layer.name}"


def layer_of(row: RowMapping) -> Layer:
    """Make the layer of a row with the columns of `layers` and `study_layers`. If its name is unknown, it is empty."""
    return Layer(row[study_layers.c.name] or "", problem_of(row), row[study_layers.c.count] or 1)


def find(connection: Connection, what: str | None, where: str, generations: str = "newest") -> tuple[LayerRow, ...]:
    """Return the layers that `what` refers to.

    `what` is a study, `study.layer` or the bare name of a layer. None means all layers.

    With `generations="newest"`, this includes only the newest generation started in this database, and every imported
    study. Raises StoreError if there is no such study or layer; the message begins with `where`.
    """
    one_of("generations", generations, GENERATIONS)
    statement = (
        select(studies, study_layers, layers)
        .join(study_layers, study_layers.c.study_id == studies.c.id)
        .join(tuning_targets, tuning_targets.c.id == study_layers.c.tuning_target_id)
        .join(layers, layers.c.id == tuning_targets.c.layer_id)
        .order_by(studies.c.id, study_layers.c.position.is_(None), study_layers.c.position)
    )
    if generations == "newest":
        same = studies.alias("same")
        own = and_(same.c.name == studies.c.name, same.c.imported_from.is_(None))
        newest = select(func.max(same.c.generation)).where(own).scalar_subquery()
        statement = statement.where(or_(studies.c.generation == newest, studies.c.imported_from.is_not(None)))
    if what is not None:
        statement = statement.where(called(what))
    places = tuple(_place_of(row) for row in rows_of(connection, statement))
    if what is None:
        return places
    found = (
        tuple(place for place in places if place.study == what)
        or tuple(place for place in places if place.name == what)
        or places
    )
    if not found:
        raise StoreError(
            f"{where}: no study or layer {one_line(what)!r}; {_did_you_mean(what, find(connection, None, where))}"
        )
    return found


def _place_of(row: RowMapping) -> LayerRow:
    return LayerRow(
        study=row[studies.c.name],
        generation=row[studies.c.generation],
        layer=layer_of(row),
        study_id=row[studies.c.id],
        tuning_target_id=row[study_layers.c.tuning_target_id],
        current=row[study_layers.c.position] is not None,
        admitted=row[study_layers.c.admitted],
    )


def called(what: str) -> ColumnElement[bool]:
    """Return the condition that a study, `study.layer` or a layer has this name."""
    full_name = studies.c.name + "." + study_layers.c.name
    return or_(studies.c.name == what, full_name == what, study_layers.c.name == what)


def _did_you_mean(what: str, places: Sequence[LayerRow]) -> str:
    """List the names most similar to a wrong one, or else the layers of the study that it mentions, or else studies."""
    known = sorted({place.study for place in places})
    if not known:
        return "the database has none yet"
    current = [place for place in places if place.current]
    layers_of_study = [place.name for place in current if place.study == what.rpartition(".")[0]]
    names = {*known, *(place.name for place in current), *(place.layer.name for place in current)}
    folded = {name.casefold(): name for name in sorted(names)}
    near = sorted(folded[name] for name in difflib.get_close_matches(what.casefold(), folded, n=3, cutoff=0.7))
    near = near or layers_of_study[:_NAMED]
    more = "" if near or len(known) <= _NAMED else f" and {len(known) - _NAMED} more: `autotune studies`"
    return f"it has {', '.join(one_line(name) for name in near or known[:_NAMED])}{more}"


def one_of(what: str, word: str, allowed: Iterable[str]) -> None:
    """Raise StoreError for a word that isn't allowed."""
    if word not in allowed:
        raise StoreError(f"{what} {one_line(word)!r}: expected one of {', '.join(allowed)}")


def target_ids(places: Iterable[LayerRow]) -> set[int]:
    """Return the ids of these layers' shapes, for queries across all studies."""
    return {place.tuning_target_id for place in places}


def current_places(places: Iterable[LayerRow]) -> tuple[LayerRow, ...]:
    """Return the layers that are still in their study files. If an imported study has the same layer, it is listed
    once.
    """
    found: dict[tuple[str, int], LayerRow] = {}
    for place in places:
        if place.current:
            found.setdefault((place.name, place.tuning_target_id), place)
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class StudyStore:
    """Writes and lists studies, generation by generation."""

    database: Database

    def begin(self, study: Study, *, fresh: bool = False) -> StudyKey:
        """Update the text, seed and layers of the study's newest generation or, if `fresh`, begin a new one.

        Raises StoreError if the name belongs to a study that has trials but no problem in common with this one.
        """
        newest = (
            select(studies.c.id, studies.c.generation, studies.c.fresh_after_trial_id)
            .where(studies.c.name == study.name, studies.c.imported_from.is_(None))
            .order_by(studies.c.generation.desc())
            .limit(1)
        )
        content: Values = {"seed": study.seed, "text": study.text}
        with self.database.write() as connection:
            row = connection.execute(newest).one_or_none()
            if row is None or fresh:
                last = select(func.max(studies.c.generation)).where(studies.c.name == study.name)  # also imported ones
                generation = (connection.execute(last).scalar_one() or 0) + 1
                last_trial = select(func.coalesce(func.max(trials.c.id), 0))
                fresh_after = connection.execute(last_trial).scalar_one() if fresh else None
                beginning: Values = {"name": study.name, "generation": generation, "fresh": fresh}
                beginning |= {"fresh_after_trial_id": fresh_after, "created_at": self.database.now()}
                study_id = insert(connection, studies, {**beginning, **content})
            else:
                study_id, generation, fresh_after = row
                _check_same_study(connection, study_id, study, self.database.shown)
                connection.execute(update(studies).where(studies.c.id == study_id), content)
            _place_layers(connection, study_id, study)
        return StudyKey(study_id, study.name, generation, fresh_after)

    def list(self) -> tuple[StudyRow, ...]:
        """List every generation of every study, oldest first."""
        in_file = (study_layers.c.study_id == studies.c.id, study_layers.c.position.is_not(None))
        layer_count = select(func.count()).where(*in_file).scalar_subquery()
        trial_count = select(func.count()).where(trials.c.study_id == studies.c.id).scalar_subquery()
        statement = select(studies, layer_count.label("layer_count"), trial_count.label("trial_count"))
        with self.database.read() as connection:
            return tuple(
                record_of(StudyRow, row, studies, layers=row["layer_count"], trials=row["trial_count"])
                for row in rows_of(connection, statement.order_by(studies.c.id))
            )

    def layer_names(self) -> frozenset[str]:
        """Return `study.layer` for every layer that a study has or had."""
        statement = select(studies.c.name, study_layers.c.name).join(studies, studies.c.id == study_layers.c.study_id)
        with self.database.read() as connection:
            return frozenset(f"{study}.{layer}" for study, layer in connection.execute(statement))

    def layers(self, what: str | None = None) -> tuple[LayerRow, ...]:
        """List the layers in each study's newest generation, in the study's order, with the number of finished trials.

        A layer that merged studies of this name contain as well is listed once, with the trials of all these studies.
        Raises StoreError for a layer that the study no longer has.
        """
        ended = (
            select(trials.c.study_id, trials.c.tuning_target_id, func.count())
            .where(trials.c.outcome != str(Outcome.RUNNING))
            .group_by(trials.c.study_id, trials.c.tuning_target_id)
        )
        with self.database.read() as connection:
            places = find(connection, what, self.database.shown)
            current = current_places(places)
            if what is not None and places and not current:
                raise StoreError(_gone(connection, what, places[-1], self.database.shown))
            counts = {(study_id, target_id): count for study_id, target_id, count in connection.execute(ended)}
        finished: Counter[tuple[str, int]] = Counter()
        for place in places:
            finished[place.name, place.tuning_target_id] += counts.get((place.study_id, place.tuning_target_id), 0)
        return tuple(replace(place, trials=finished[place.name, place.tuning_target_id]) for place in current)


def _check_same_study(connection: Connection, study_id: int, study: Study, where: str) -> None:
    """Raise StoreError if a different network would take over the name of a study that already has trials."""
    if connection.execute(select(trials.c.id).where(trials.c.study_id == study_id).limit(1)).first() is None:
        return
    tuned = [place.layer for place in find(connection, None, where, "all") if place.study_id == study_id]
    if tuned and {layer.problem for layer in tuned}.isdisjoint(layer.problem for layer in study.layers):
        raise StoreError(
            f"{study.name}: {where} has trials of another study with this name, and no layer of this one has the "
            f"problem of one of its layers ({_some([layer.name for layer in tuned])}); rename this study (name = "
            "...), use another --db, or pass --fresh to replace the other study"
        )


def _gone(connection: Connection, what: str, place: LayerRow, where: str) -> str:
    """Return a message that explains why a layer tuned earlier is no longer listed."""
    current = [one.name for one in find(connection, place.study, where) if one.current]
    return (
        f"{where}: {place.study} no longer has a layer {place.layer.name!r}; it has {_some(current)}; "
        f"`autotune trials {one_line(what)}` lists the trials of the old layer"
    )


def _some(names: Sequence[str]) -> str:
    """Join the first of these names, and count the others."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(map(one_line, names[:_NAMED]))}{more}"


def _place_layers(connection: Connection, study_id: int, study: Study) -> None:
    """Give a study these layers in this order. Its other layers stay, but without a position."""
    connection.execute(update(study_layers).where(study_layers.c.study_id == study_id).values(position=None))
    for position, layer in enumerate(study.layers):
        _layer_id, tuning_target_id = store_layer(connection, layer)
        named = and_(
            study_layers.c.study_id == study_id,
            study_layers.c.name == layer.name,
            study_layers.c.tuning_target_id == tuning_target_id,
        )
        place: Values = {"count": layer.count, "position": position}
        place["admitted"] = study.admitted(layer.problem)
        if connection.execute(update(study_layers).where(named), place).rowcount == 0:
            owner: Values = {"study_id": study_id, "name": layer.name, "tuning_target_id": tuning_target_id}
            connection.execute(study_layers.insert(), {**owner, **place})
