"""How many trials there are of what is asked for, those that no list of them reads included."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, func, or_, select, tuple_

from autotune.store.layers import subjects
from autotune.store.reading import reading
from autotune.store.sqlite.database import Database
from autotune.store.studies import called, find, studies, study_layers
from autotune.store.trials import trials


@dataclass(frozen=True, slots=True)
class TrialCounts:
    """Counts of the trials that `TrialStore.list` and `SpaceStore.list` give."""

    database: Database

    @reading
    def of(self, what: str | None = None, *, outcome: str | None = None, generations: str = "newest") -> int:
        """Trials by a study's name, study.layer, a layer's or an imported kernel's name; in all where it is None.

        Raises StoreError for an unknown name.
        """
        with self.database.read() as connection:
            places = find(connection, what, self.database.shown, generations)
            if generations == "newest":
                places = tuple(place for place in places if place.current) or places
            pairs = [(place.study_id, place.subject_id) for place in places]
            spaces = (
                select(study_layers.c.study_id, study_layers.c.subject_id)
                .join(subjects, and_(subjects.c.id == study_layers.c.subject_id, subjects.c.kind == "space"))
                .join(studies, studies.c.id == study_layers.c.study_id)
            )
            if what is not None:
                spaces = spaces.where(called(what))
            place = tuple_(trials.c.study_id, trials.c.subject_id)
            statement = select(func.count()).select_from(trials).where(or_(place.in_(pairs), place.in_(spaces)))
            if outcome is not None:
                statement = statement.where(trials.c.outcome == outcome)
            return int(connection.execute(statement).scalar_one())
