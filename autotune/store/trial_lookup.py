"""Single trials by what names them, and how many there are, without reading them all."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, and_, func, or_, select, tuple_

from autotune.store.schema.tables import studies, study_layers, trials, tuning_targets
from autotune.store.sqlite.database import Database
from autotune.store.studies import called, find
from autotune.store.trials import TrialRow, TrialRows, select_trials, trials_by_id


@dataclass(frozen=True, slots=True)
class TrialLookup:
    """Single trials, and counts of those that `TrialStore.list` and `SpaceStore.list` give."""

    database: Database

    def by_id(self, trial_id: int) -> TrialRow | None:
        """The trial of an id; None where there is none, or it is of an imported space."""
        with self.database.read() as connection:
            return trials_by_id(connection, [trial_id]).get(trial_id)

    def numbered(self, what: str, number: int) -> tuple[TrialRow, ...]:
        """A layer's trials of this number: one for each device, environment and measurement mode.

        Raises StoreError for an unknown name.
        """
        with self.database.read() as connection:
            place = tuple_(trials.c.study_id, trials.c.tuning_target_id).in_(self._places(connection, what, "newest"))
            statement = select_trials().where(trials.c.number == number, place).order_by(trials.c.id)
            return TrialRows(connection).all(statement)

    def count(self, what: str | None = None, *, outcome: str | None = None, generations: str = "newest") -> int:
        """Trials by a study's name, study.layer, a layer's or an imported kernel's name; in all where it is None.

        Raises StoreError for an unknown name.
        """
        with self.database.read() as connection:
            pairs = self._places(connection, what, generations)
            spaces = (
                select(study_layers.c.study_id, study_layers.c.tuning_target_id)
                .join(
                    tuning_targets,
                    and_(tuning_targets.c.id == study_layers.c.tuning_target_id, tuning_targets.c.kind == "space"),
                )
                .join(studies, studies.c.id == study_layers.c.study_id)
            )
            if what is not None:
                spaces = spaces.where(called(what))
            place = tuple_(trials.c.study_id, trials.c.tuning_target_id)
            statement = select(func.count()).select_from(trials).where(or_(place.in_(pairs), place.in_(spaces)))
            if outcome is not None:
                statement = statement.where(trials.c.outcome == outcome)
            return int(connection.execute(statement).scalar_one())

    def _places(self, connection: Connection, what: str | None, generations: str) -> list[tuple[int, int]]:
        """Study and subject of each layer that a name stands for."""
        places = find(connection, what, self.database.shown, generations)
        if generations == "newest":
            places = tuple(place for place in places if place.current) or places
        return [(place.study_id, place.tuning_target_id) for place in places]
