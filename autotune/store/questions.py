"""What an open results database answers. `Store` is one that can also be written to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from sqlalchemy import and_, select

from autotune.devices.device import DeviceInfo, Environment
from autotune.family.source import KernelSource
from autotune.problem import Conv2dProblem
from autotune.store import answers, dispatching, past, spaces
from autotune.store.columns import date_text
from autotune.store.records import (
    BestRow,
    DispatcherRow,
    FinalsRow,
    LayerRow,
    ProfileRow,
    RetimeRow,
    SpaceTrial,
    SpanRow,
    StudyRow,
    TrialRow,
)
from autotune.store.rows import config_of, source_of
from autotune.store.sqlite.database import Database, one_line
from autotune.store.sqlite.query import QueryResult, run_query
from autotune.store.tables import layers, sources, templates, trials
from autotune.trial import END_TO_END, Timing


class Questions:
    """The questions, each one transaction. `what` is a study, study.layer or a layer's bare name; None: everything."""

    _database: Database

    @property
    def path(self) -> Path:
        """The file."""
        return self._database.path

    def best(
        self,
        what: str | Conv2dProblem | None = None,
        device: DeviceInfo | None = None,
        *,
        kind: str | None = None,
        accuracy: str | None = None,
    ) -> tuple[BestRow, ...]:
        """The best kernel of each layer, device, accuracy class, determinism and policy.

        A problem is asked about whatever studies call it. With a device only its rows come, or for a layer that has
        none, those of devices of its class; `match` says which. No row: there is no answer.
        """
        with self._database.read() as connection:
            where = answers.find(connection, what, self._shown) if isinstance(what, str) else what
            rows = answers.list_best(connection, where, kind=kind, accuracy=accuracy)
        return rows if device is None else answers.matching(rows, device)

    def trials(
        self,
        what: str | Conv2dProblem | None = None,
        *,
        outcome: str | None = None,
        sort: str = "number",
        limit: int | None = None,
        kind: str | None = None,
        generations: str = "newest",
    ) -> tuple[TrialRow, ...]:
        """Trials in an order of SORTS; of a problem, those of every study and generation.

        `generations` "newest" leaves out earlier generations of a study and what its layers were before its file
        changed, unless nothing else is left of what is asked for; "all" has them too.
        """
        with self._database.read() as connection:
            where: answers.Where
            if isinstance(what, Conv2dProblem) or (what is None and generations == "all"):
                where = what
            else:
                where = answers.find(connection, what, self._shown, generations)
                if generations == "newest":
                    where = [place for place in where if place.current] or where
            return answers.list_trials(connection, where, outcome=outcome, sort=sort, limit=limit, kind=kind)

    def like(self, row: TrialRow) -> tuple[TrialRow, ...]:
        """Finished trials that compare with one: of its shape, device, environment, policy and origin in any study."""
        with self._database.read() as connection:
            return answers.list_like(connection, row.id)

    def space_trials(
        self,
        what: str | None = None,
        *,
        outcome: str | None = None,
        sort: str = "number",
        limit: int | None = None,
    ) -> tuple[SpaceTrial, ...]:
        """Trials of recorded spaces that were imported from files: by the study's, the kernel's or both names."""
        with self._database.read() as connection:
            return spaces.list_space_trials(connection, what, outcome=outcome, sort=sort, limit=limit)

    def best_of(self, study: str, generation: int, what: str | None = None) -> tuple[BestRow, ...]:
        """The best kernels of one generation of a study, from its own trials and finals, imported ones included."""
        with self._database.read() as connection:
            places = tuple(
                place
                for place in answers.find(connection, what or study, self._shown, "all")
                if (place.study, place.generation) == (study, generation)
            )
            part = past.Slice(study_id=places[0].study_id) if places else past.Slice()
            return past.list_best_within(connection, places, part)

    def best_at(self, moment: datetime, what: str | None = None) -> tuple[BestRow, ...]:
        """The best kernels as they stood at a moment."""
        with self._database.read() as connection:
            places = None if what is None else answers.find(connection, what, self._shown)
            return past.list_best_within(connection, places, past.Slice(until=date_text(moment)))

    def improvements(self, what: str | None = None) -> tuple[TrialRow, ...]:
        """Trials that were the fastest of their layer, device, class and policy when they ended, in any study."""
        with self._database.read() as connection:
            return past.list_improvements(connection, answers.find(connection, what, self._shown))

    def finals(self, what: str | None = None) -> tuple[FinalsRow, ...]:
        """The finals that were held on the layers' shapes in any study, oldest first."""
        with self._database.read() as connection:
            return past.list_finals(connection, answers.find(connection, what, self._shown))

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Every recorded device, in the order first seen."""
        with self._database.read() as connection:
            return past.list_devices(connection)

    def environments(self) -> tuple[tuple[DeviceInfo, Environment], ...]:
        """Each device that ran something, with the environment of its newest run."""
        with self._database.read() as connection:
            return past.list_environments(connection)

    def spans(self, what: str | None = None) -> tuple[SpanRow, ...]:
        """End-to-end trials of the newest generation of each study, with the parts of their times."""
        with self._database.read() as connection:
            return answers.list_spans(connection, answers.find(connection, what, self._shown))

    def profiles(self, what: str | None = None) -> tuple[ProfileRow, ...]:
        """What a profiler saw of the layers' kernels, oldest first."""
        with self._database.read() as connection:
            return answers.list_profiles(connection, answers.find(connection, what, self._shown))

    def retimes(self, what: str | None = None) -> tuple[RetimeRow, ...]:
        """Trials that were measured again, of the layers' shapes in whichever study, oldest first."""
        with self._database.read() as connection:
            return answers.list_retimes(connection, answers.find(connection, what, self._shown))

    def latest_timings(self, trial_ids: Sequence[int]) -> Mapping[int, Timing]:
        """The latest measurement of each trial that has one, be it of tuning, of finals or of a retime."""
        with self._database.read() as connection:
            return past.latest_timings(connection, trial_ids)

    def dispatchers(self, study: str | None = None) -> tuple[DispatcherRow, ...]:
        """The dispatchers that were built of a study's newest generation, the latest first.

        Those that were built to be judged by layers held out are among them; `held_out` says which.
        """
        with self._database.read() as connection:
            return dispatching.list_dispatchers(connection, answers.find(connection, study, self._shown))

    def layers(self, what: str | None = None) -> tuple[LayerRow, ...]:
        """The layers of the newest generation of each study, in its order."""
        with self._database.read() as connection:
            return answers.list_layers(connection, answers.find(connection, what, self._shown))

    def studies(self) -> tuple[StudyRow, ...]:
        """Every generation of every study, oldest first."""
        with self._database.read() as connection:
            return answers.list_studies(connection)

    def source(self, source_hash: str) -> KernelSource | None:
        """A rendered kernel, whole, with the config of the first trial that used it; None where no text is kept."""
        statement = (
            select(sources, layers, trials.c.config, templates.c.family)
            .join(layers, layers.c.id == sources.c.layer_id)
            .join(trials, trials.c.source_id == sources.c.id)
            .join(templates, templates.c.id == trials.c.template_id)
            .where(sources.c.hash == source_hash)
            .order_by(trials.c.policy == END_TO_END, trials.c.id)
            .limit(1)
        )
        with self._database.read() as connection:
            row = connection.execute(statement).mappings().one_or_none()
            return None if row is None or not row[sources.c.text_bytes] else source_of(row, config_of(row))

    def header(self, family: str, template_hash: str) -> str:
        """The header of a family as it was when trials were made with it; empty for one that is not stored."""
        same = and_(templates.c.family == family, templates.c.hash == template_hash)
        with self._database.read() as connection:
            return connection.execute(select(templates.c.header).where(same)).scalar_one_or_none() or ""

    def query(self, sql: str) -> QueryResult:
        """What a user's SELECT yields; it cannot write."""
        return run_query(self._database, sql)

    @property
    def _shown(self) -> str:
        return one_line(str(self.path))
