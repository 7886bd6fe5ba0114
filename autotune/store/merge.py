"""Copy another database's rows into this one, in a single transaction.

Copied trials are marked as imported. They are listed, but ranked only after a retime on this machine. Dispatchers are
not copied, because imported times don't decide anything. Rows are matched by identity, so merging the same file again
adds nothing, and merging two diverged copies of a database adds the rows that each of them lacks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Table

from autotune.errors import StoreError
from autotune.escape import one_line
from autotune.store.devices import ENVIRONMENT_IDENTITY
from autotune.store.run_context import SCOPE
from autotune.store.schema.tables import (
    DEVICE_IDENTITY,
    devices,
    end_to_end_timings,
    environments,
    finals,
    layers,
    measurements,
    noise_floors,
    paragraphs,
    profiles,
    quarantine,
    rates,
    retimes,
    runs,
    sources,
    studies,
    templates,
    trials,
    tuning_targets,
    verdicts,
)
from autotune.store.sqlite.connections import (
    check_whole,
    connect_for_reading,
    connect_for_writing,
    may_write,
    translate_errors,
    uri,
)
from autotune.store.sqlite.database import LOCK_TIMEOUT_S, Clock, path_of, utc_now
from autotune.store.sqlite.open_database import open_for_reading, open_for_writing

_IMPORTED = {"origin": "'imported'"}
_HAS_TEXT = "EXISTS (SELECT 1 FROM {0}.source_paragraphs WHERE source_id = {1}.id)"


@dataclass(frozen=True, slots=True)
class Merged:
    """The numbers of rows that a merge copied and skipped."""

    trials: int
    known: int
    """number of trials that were already in this database"""
    running: int
    """number of trials that were skipped because they had not ended"""
    studies: int
    """number of studies that were new to this database"""


def merge(other: str | Path, url: str | Path, *, clock: Clock = utc_now) -> Merged:
    """Copy every row of the database `other` that the database `url` lacks, except for running trials.

    If the file is damaged, raises StoreError and merges nothing.
    """
    if not path_of(other).exists():
        raise StoreError(f"{one_line(str(path_of(other)))}: no such file")
    with closing(open_for_reading(other, timeout_s=LOCK_TIMEOUT_S, clock=clock)) as source:
        here = path_of(url)
        if here.exists() and source.path.samefile(here):
            raise StoreError(f"{source.shown}: is the database to merge into; give another file")
        with translate_errors(source.path, LOCK_TIMEOUT_S), closing(connect_for_reading(source.file, 0.0)) as raw:
            check_whole(raw, source.path)
        with (
            closing(open_for_writing(url, timeout_s=LOCK_TIMEOUT_S, clock=clock)) as target,
            translate_errors(target.path, LOCK_TIMEOUT_S),
            closing(connect_for_writing(target.path, LOCK_TIMEOUT_S)) as raw,
        ):
            how = "mode=ro" if may_write(source.file.absolute().parent) else "mode=ro&immutable=1"
            raw.execute("ATTACH ? AS other", (uri(source.file, how),))
            raw.execute("BEGIN IMMEDIATE")
            merged = _Merge(raw, source.path.name).run()
            raw.execute("COMMIT")
            return merged


class _Merge:
    """One merge. `temp.ids_TABLE` maps a row's id in the other file (`there`) to its id in this one (`here`).

    The column `new` says whether the merge inserted the row.
    """

    def __init__(self, raw: sqlite3.Connection, name: str) -> None:
        self._raw, self._name = raw, name
        self._moved: set[str] = set()
        """tables with a map `temp.ids_TABLE`"""

    def run(self) -> Merged:
        """Copy all tables, parents first."""
        self._bring(layers, ("operation", "problem"))
        self._bring(tuning_targets, ("kind", "layer_id"), where="o.kind = 'layer'")
        self._bring(devices, DEVICE_IDENTITY)
        self._bring(environments, ENVIRONMENT_IDENTITY)
        self._bring(runs, ("device_id", "environment_id", "attributes", "started_at"))
        self._bring(templates, ("family", "hash"))
        self._studies()
        self._sources()
        self._trials()
        self._bring(finals, (*SCOPE, "ended_at"), _IMPORTED)
        self._bring(verdicts, (), only_new=(finals, "finals_id"))
        self._bring(retimes, ("trial_id", "run_id", "ended_at"))
        tuning = "o.finals_id IS NULL AND o.retime_id IS NULL"
        self._bring(measurements, (), only_new=(trials, "trial_id"), where=tuning)
        self._bring(measurements, (), only_new=(finals, "finals_id"))
        self._bring(measurements, (), only_new=(retimes, "retime_id"))
        self._bring(end_to_end_timings, (), only_new=(trials, "trial_id"))
        self._bring(profiles, ("trial_id", "run_id", "position", "profiled_at"))
        self._bring(quarantine, ("device_id", "environment_id", "source_id"))
        self._bring(noise_floors, ("device_id", "environment_id", "measurement_mode", "measured_at"), _IMPORTED)
        self._bring(rates, ("device_id", "environment_id", "unit", "method", "measured_at"), _IMPORTED)
        return Merged(
            trials=self._count("temp.ids_trials WHERE new"),
            known=self._count("temp.ids_trials WHERE NOT new"),
            running=self._count("other.trials WHERE outcome = 'running'"),
            studies=self._count("temp.ids_studies WHERE new"),
        )

    def _count(self, rows: str) -> int:
        return int(self._raw.execute(f"SELECT count(*) FROM {rows}").fetchone()[0])

    def _bring(
        self,
        table: Table,
        identity: Sequence[str],
        changed: Mapping[str, str] | None = None,
        *,
        where: str = "1",
        only_new: tuple[Table, str] | None = None,
    ) -> None:
        """Copy rows whose identity is new to this file or, if a table has no identity, the rows of new parents.

        `changed` contains SQL expressions for columns that aren't simply copied. They refer to a row whose parents are
        already in this file.
        """
        self._stage(table, where, only_new)
        columns = [name for name in table.c.keys() if name != "id"]  # noqa: SIM118 - a ColumnCollection
        same = " AND ".join(f"h.{name} IS m.{name}" for name in identity)
        last = self._raw.execute(f"SELECT max(rowid) FROM {table.name}").fetchone()[0] or 0
        unknown = f"NOT EXISTS (SELECT 1 FROM main.{table.name} h WHERE {same})" if identity else "1"
        values = ", ".join((changed or {}).get(name, name) for name in columns)
        self._raw.execute(
            f"INSERT INTO main.{table.name} ({', '.join(columns)}) "
            f"SELECT {values} FROM temp.moved m WHERE {unknown} ORDER BY there"
        )
        if identity:
            self._raw.execute(f"CREATE TEMP TABLE ids_{table.name} (there INTEGER PRIMARY KEY, here, new)")
            self._raw.execute(
                f"INSERT INTO temp.ids_{table.name} SELECT there, min(h.id), min(h.id) > {last} "
                f"FROM temp.moved m JOIN main.{table.name} h ON {same} GROUP BY there"
            )
            self._moved.add(table.name)
        self._raw.execute("DROP TABLE temp.moved")

    def _stage(self, table: Table, where: str, only_new: tuple[Table, str] | None) -> None:
        """Create `temp.moved`: rows of the other file, with their parents' ids in this file."""
        parents = {key.parent.name: key.column.table.name for key in table.foreign_keys}
        shown = [f"o.{'id' if 'id' in table.c else 'rowid'} AS there"]
        conditions = [where]
        for name in table.c.keys():  # noqa: SIM118 - a ColumnCollection
            if name == "id":
                continue
            here = f"o.{name}"
            if parents.get(name) in self._moved:
                here = f"(SELECT here FROM temp.ids_{parents[name]} WHERE there = o.{name})"
                conditions.append(f"(o.{name} IS NULL OR {here} IS NOT NULL)")
            shown.append(f"{here} AS {name}")
        if only_new is not None:
            parent, name = only_new
            conditions.append(f"o.{name} IN (SELECT there FROM temp.ids_{parent.name} WHERE new)")
        self._raw.execute(
            f"CREATE TEMP TABLE moved AS SELECT {', '.join(shown)} FROM other.{table.name} o "
            f"WHERE {' AND '.join(conditions)}"
        )

    def _studies(self) -> None:
        """Copy studies with their layers. A study that is new to this file becomes a generation of its own.

        Studies are matched by name and start date. A study imported earlier is updated from the other file, whereas
        this database's own studies keep their text and the order of their layers.
        """
        following = (
            "(SELECT coalesce(max(generation), 0) FROM main.studies h WHERE h.name = m.name) "
            "+ row_number() OVER (PARTITION BY name ORDER BY there)"
        )
        name = self._name.replace("'", "''")
        changed = {
            "generation": following,
            "imported_from": f"coalesce(imported_from, '{name}')",
            "fresh_after_trial_id": "NULL",
        }
        known = "EXISTS (SELECT 1 FROM main.studies h WHERE h.name = o.name AND h.created_at = o.created_at)"
        self._raw.execute(
            "CREATE TEMP TABLE known_studies AS SELECT o.id AS there, h.id AS here FROM other.studies o "
            "JOIN main.studies h ON h.name = o.name AND h.created_at = o.created_at"
        )
        self._bring(studies, ("name", "created_at"), changed, where=f"NOT {known}")
        self._raw.execute("INSERT INTO temp.ids_studies SELECT there, here, 0 FROM temp.known_studies")
        foreign = (
            "SELECT i.here FROM temp.ids_studies i JOIN main.studies s ON s.id = i.here WHERE imported_from IS NOT NULL"
        )
        self._raw.execute(
            "UPDATE main.studies SET (seed, text) = (SELECT o.seed, o.text FROM other.studies o "
            f"JOIN temp.ids_studies i ON i.there = o.id WHERE i.here = studies.id) WHERE id IN ({foreign})"
        )
        self._raw.execute(f"UPDATE main.study_layers SET position = NULL WHERE study_id IN ({foreign})")
        self._raw.execute(
            "INSERT INTO main.study_layers (study_id, name, tuning_target_id, count, position, admitted) "
            f"SELECT s.here, o.name, t.here, o.count, iif(s.here IN ({foreign}), o.position, NULL), o.admitted "
            "FROM other.study_layers o JOIN temp.ids_studies s ON s.there = o.study_id "
            "JOIN temp.ids_tuning_targets t ON t.there = o.tuning_target_id WHERE 1 "
            "ON CONFLICT (study_id, name, tuning_target_id) DO UPDATE "
            "SET count = excluded.count, position = excluded.position, admitted = excluded.admitted "
            f"WHERE study_id IN ({foreign})"
        )

    def _sources(self) -> None:
        """Copy kernels by hash, filling in texts that this database has dropped."""
        self._bring(sources, ("hash",))
        lacking = (
            "other.sources o JOIN temp.ids_sources i ON i.there = o.id JOIN main.sources h ON h.id = i.here "
            f"WHERE {_HAS_TEXT.format('other', 'o')} AND NOT {_HAS_TEXT.format('main', 'h')}"
        )
        self._raw.execute(f"CREATE TEMP TABLE lacking AS SELECT o.id AS there, h.id AS here FROM {lacking}")
        columns = "entries, flags, launches, accuracy, deterministic"
        self._raw.execute(
            f"UPDATE main.sources SET ({columns}) = "
            f"(SELECT {columns} FROM other.sources o WHERE o.hash = sources.hash) "
            "WHERE id IN (SELECT here FROM temp.lacking)"
        )
        self._raw.execute(f"INSERT OR IGNORE INTO main.{paragraphs.name} SELECT * FROM other.{paragraphs.name}")
        self._raw.execute(
            "INSERT INTO main.source_paragraphs (source_id, position, paragraph_id) "
            "SELECT here, position, paragraph_id "
            "FROM other.source_paragraphs JOIN temp.lacking ON there = source_id"
        )

    def _trials(self) -> None:
        """Copy the trials that have ended. They are numbered after the scope's own trials in this file."""
        same_scope = " AND ".join(f"t.{name} = m.{name}" for name in SCOPE)
        last = f"(SELECT coalesce(max(number), -1) FROM main.trials t WHERE {same_scope})"
        number = f"{last} + row_number() OVER (PARTITION BY {', '.join(SCOPE)} ORDER BY number)"
        changed = {"origin": "'imported'", "ranking_median_us": "NULL", "reused_trial_id": "NULL", "number": number}
        self._bring(trials, (*SCOPE, "started_at", "config"), changed, where="o.outcome <> 'running'")
        self._raw.execute(
            "UPDATE main.trials SET reused_trial_id = original.here FROM other.trials o "
            "JOIN temp.ids_trials own ON own.there = o.id AND own.new "
            "JOIN temp.ids_trials original ON original.there = o.reused_trial_id WHERE trials.id = own.here"
        )
