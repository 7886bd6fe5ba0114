"""Another database's trials brought into this one. They are marked as imported: seen, but best only once re-timed here.

A row that is here already is found by what identifies it, so merging the same file again adds nothing, and merging
two copies of one database that went different ways adds what each lacks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from sqlalchemy import Connection, Table, select, update

from autotune.errors import StoreError
from autotune.second_process import SecondProcess, second_process
from autotune.store import row_checks
from autotune.store.column_types import Values
from autotune.store.device_rates import rates
from autotune.store.devices import DEVICE_COLUMNS, devices, environments, runs
from autotune.store.dispatchers import dispatched_layers, dispatchers
from autotune.store.finals import finals, verdicts
from autotune.store.foreign_rows import ForeignRows
from autotune.store.layers import IDENTITY, layers, layers_of_sets, subject_layers, subjects
from autotune.store.measurements import measurements
from autotune.store.merged_kernels import MergedKernels
from autotune.store.merged_trials import bring_trials, make_placing
from autotune.store.moved_rows import MovedIds, attach, batches, know
from autotune.store.noise_floors import noise_floors
from autotune.store.profiles import profiles
from autotune.store.quarantine import quarantine
from autotune.store.retimes import retimes
from autotune.store.row_checks import FaultyRows, repeated_rows
from autotune.store.row_ids import RowIds, id_of, parents_of
from autotune.store.scopes import SCOPE
from autotune.store.sources import sources
from autotune.store.sqlite.database import LOCK_TIMEOUT_S, Clock, Database, path_of, utc_now
from autotune.store.sqlite.open_database import is_large, open_copy, open_for_writing, refresh_statistics
from autotune.store.sqlite.schema import migrate, newest_schema, unenforcing
from autotune.store.statements import identify, insert, next_id
from autotune.store.studies import next_generation, studies, study_layers
from autotune.store.templates import templates
from autotune.store.trial_places import Key, TrialPlaces
from autotune.store.trials import trials
from autotune.trial import Outcome
from autotune.writing import file_beside, take_name

BUSY_S = 0.5
"""how long the lock may be taken again and again"""
REST_S = 0.12
"""how long it is then left to others: SQLite waits for a lock by looking every 0.1 s (sqliteDefaultBusyCallback)"""


@dataclass(frozen=True, slots=True)
class Merged:
    """What merging another database brought."""

    trials: int
    known: int
    """trials that were here already"""
    running: int
    """trials that were left out, since they had not ended"""
    studies: int
    """studies that were not here"""


def merge(other: str | Path, url: str | Path, *, clock: Clock = utc_now) -> Merged:
    """Bring everything of the database `other` that `url` lacks into it.

    It comes in many transactions, between which others may write; each leaves a whole database, and a merge that was
    killed goes on when it is called again. Very many rows for a file that is not there are written to one beside, which
    takes its name at the end. Trials that are still running are left out. Raises StoreError, before anything is
    written, when a row cannot be understood or the two have different kernels of one hash.
    """
    with (
        second_process(row_checks.__name__) if is_large(other) else nullcontext() as helper,
        closing(open_copy(other, timeout_s=LOCK_TIMEOUT_S, clock=clock)) as source,
    ):
        if helper:
            helper.inherit(source.file.parent)
        if _same_file(source.path, url):
            raise StoreError(f"{source.shown}: is the database to merge into; give another file")
        with closing(open_for_writing(url, timeout_s=LOCK_TIMEOUT_S, clock=clock)) as target, source.read() as reading:
            _refuse_faults(reading, source, helper)
            rows = ForeignRows(source, reading)
            merged = _merge_beside(rows, target, helper) if helper and not target.path.exists() else None
            return merged or _merge_between_others(rows, target)


def _merge_between_others(rows: ForeignRows, target: Database) -> Merged:
    merging = _Merge(rows, target)
    merging.refuse_other_kernels()
    merged = merging.run()
    refresh_statistics(target)
    return merged


def _merge_beside(rows: ForeignRows, target: Database, helper: SecondProcess) -> Merged | None:
    """Merge into a new file, which nobody else can see, and let it take the name; None where that cannot be had.

    The file enforces no references: those there have been checked, and nobody removes what they refer to.
    """
    with file_beside(target.path) as begun:
        helper.inherit(begun)
        with closing(unenforcing(target.path, begun, target.timeout_s, target.clock)) as new:
            with new.write() as connection:
                migrate(connection, target.path, newest_schema(), target.clock)
            merged = _Merge(rows, new, alone=True).run()
            refresh_statistics(new)
        if not take_name(begun, target.path):
            return None
    with target.write():  # as the first to write to it, which makes it keep a log
        return merged


def _refuse_faults(connection: Connection, source: Database, helper: SecondProcess | None) -> None:
    """Raise StoreError for the first row that cannot be understood, before anything is written."""
    faults = FaultyRows(connection, texts=False, still=source, other=helper)
    for fault in chain(repeated_rows(connection), faults):
        advice = f"`autotune dump --check --db {source.shown}` lists such rows"
        raise StoreError(f"{source.shown}: {fault}; nothing was merged, {advice}")


class _Merge:
    """One merge: the ids that the other database's rows have here."""

    def __init__(self, source: ForeignRows, target: Database, *, alone: bool = False) -> None:
        self._from = source
        self._alone = alone  # nobody waits for the target's lock
        self._target = target
        self._to = source.connection  # until there is a transaction that writes
        self._kernels = MergedKernels(source.shown)
        self._ids: dict[Table, RowIds] = {}
        self._moved: dict[Table, MovedIds] = {}
        self._rested = time.monotonic()

    def run(self) -> Merged:
        """Bring the tables, parents first; with each trial what was measured of it."""
        with self._writing():
            self._bring(layers, IDENTITY)
            self._subjects()
            self._bring(devices, DEVICE_COLUMNS[:5])
            self._bring(environments, ("driver", "toolkit", "flags"))
            self._bring(runs, ("device_id", "environment_id", "attributes", "started_at"))
            self._bring(templates, ("family", "hash"))
        with self._writing():
            self._studies()
        with self._writing():
            self._prepare()
        self._sources()
        running = self._trials()
        with self._writing():
            self._what_came_of_trials()
        ids = self._moved[trials]
        return Merged(ids.new_count, ids.size - ids.new_count, running, self._ids[studies].new_count)

    def _prepare(self) -> None:
        """Let SQLite know the other file, and which ids its rows have here."""
        # A fifth of the time that trials take; `FaultyRows` has the same rules.
        self._to.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
        attach(self._to, self._from.database.file)
        for table in (layers, subjects, devices, environments, runs, templates, studies):
            know(self._to, table, self._ids[table])
        for table in (sources, trials):
            know(self._to, table)
        make_placing(self._to)

    def _what_came_of_trials(self) -> None:
        imported: Values = {"origin": "imported"}
        self._bring(finals, (*SCOPE, "ended_at"), imported)
        self._bring(verdicts, (), only=(finals, "finals_id"))
        self._bring(retimes, ("trial_id", "run_id", "ended_at"))
        self._bring(measurements, (), only=(finals, "finals_id"))
        self._bring(measurements, (), only=(retimes, "retime_id"))
        self._bring(profiles, ("trial_id", "run_id", "position", "profiled_at"))
        self._bring(quarantine, ("device_id", "environment_id", "source_id"))
        self._bring(noise_floors, ("device_id", "environment_id", "policy", "measured_at"), imported)
        self._bring(rates, ("device_id", "environment_id", "name", "method", "measured_at"), imported)
        self._bring(dispatchers, ("trial_id", "built_at"))
        self._bring(dispatched_layers, (), only=(dispatchers, "dispatcher_id"))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction here; before it, others get the lock for once if this process has had it for long."""
        if not self._alone and time.monotonic() - self._rested > BUSY_S:
            time.sleep(REST_S)
            self._rested = time.monotonic()
        with self._target.write() as self._to:
            yield

    def _bring(
        self,
        table: Table,
        identity: Sequence[str],
        changed: Values | None = None,
        *,
        only: tuple[Table, str] | None = None,
    ) -> None:
        """Bring the rows that have no match here; without an identity, those of a new row of another table."""
        ids = self._ids[table] = RowIds()
        known = self._known(table, identity) if identity else {}
        free_id = next_id(self._to, table) if "id" in table.c else 0
        for rows in self._from.batches(table, "1" if only is None else f"{only[1]} IS NOT NULL"):
            waiting = []
            for row in rows:
                if not self._refers_to_known(table, row):
                    continue
                if only is not None and not self._ids_of(only[0]).is_new(id_of(row[only[1]])):
                    continue
                values = {**self._referring(table, row), **(changed or {})}
                key = tuple(values[name] for name in identity)
                found = known.get(key)
                if "id" in row:
                    ids.add(id_of(row["id"]), free_id if found is None else found, new=found is None)
                    values["id"] = free_id
                if found is None:
                    waiting.append(values)
                    if identity:
                        known[key] = free_id
                    free_id += 1
            self._write(table, waiting)

    def _known(self, table: Table, identity: Sequence[str]) -> dict[Key, int]:
        sql = f"SELECT id, {', '.join(identity)} FROM {table.name}"  # noqa: S608
        return {tuple(row[1:]): row[0] for row in self._to.exec_driver_sql(sql)}

    def _refers_to_known(self, table: Table, row: Values) -> bool:
        """False for what belongs to a trial that was left out."""
        return all(
            row[name] is None or id_of(row[name]) in self._ids_of(parent)
            for name, parent in parents_of(table)
            if parent in (trials, finals, retimes)
        )

    def _referring(self, table: Table, row: Values) -> Values:
        """The row with the ids that its parents have here."""
        values = dict(row)
        for name, parent in parents_of(table):
            there = row[name]
            if there is not None:
                values[name] = self._ids_of(parent)[id_of(there)]
        return values

    def _ids_of(self, table: Table) -> RowIds | MovedIds:
        return self._moved.get(table) or self._ids[table]

    def _write(self, table: Table, rows: Sequence[Values]) -> None:
        names = table.c.keys()
        self._write_tuples(table, [tuple(row[name] for name in names) for row in rows])

    def _write_tuples(self, table: Table, rows: Sequence[Key]) -> None:
        if rows:
            # As they came: what the other database holds has been through this package's types once.
            sql = f"INSERT INTO {table.name} ({', '.join(table.c.keys())}) VALUES ({', '.join('?' * len(rows[0]))})"  # noqa: S608
            self._to.exec_driver_sql(sql, rows)

    def _subjects(self) -> None:
        """Bring layers, sets of layers by their members, and spaces by their kernel and parameters."""
        ids = self._ids[subjects] = RowIds()
        members = layers_of_sets(self._from.connection)
        here = {layers_of: subject_id for subject_id, layers_of in layers_of_sets(self._to).items()}
        layer_ids = self._ids[layers]
        for row in chain.from_iterable(self._from.batches(subjects)):
            there = id_of(row["id"])
            values = self._referring(subjects, row)
            del values["id"]
            if values["kind"] != "layers":
                ids.add(there, identify(self._to, subjects, values, {}), new=False)
                continue
            of_layers = frozenset(layer_ids[layer_id] for layer_id in members.get(there, ()))
            new = of_layers not in here
            if new:
                here[of_layers] = insert(self._to, subjects, values)
                for layer_id in of_layers:
                    self._to.execute(subject_layers.insert(), {"subject_id": here[of_layers], "layer_id": layer_id})
            ids.add(there, here[of_layers], new=new)

    def refuse_other_kernels(self) -> None:
        """Raise StoreError for two kernels of one hash, before anything is written."""
        with self._target.read() as self._to:
            known = self._known(layers, IDENTITY)
            there = chain.from_iterable(self._from.batches(layers))
            ids = {id_of(row["id"]): known.get(tuple(row[name] for name in IDENTITY)) for row in there}
            self._kernels.refuse_others(self._to, self._from.database.file, ids)

    def _sources(self) -> None:
        """Bring kernels."""
        for first, last in batches(self._from.connection, sources):
            with self._writing():
                self._kernels.bring(self._to, first, last, self._ids[layers])
        with self._writing():
            self._moved[sources] = MovedIds(self._to, sources)

    def _studies(self) -> None:
        """Bring studies by name and date of beginning, each new one as a generation of its own, with their layers."""
        ids = self._ids[studies] = RowIds()
        known = self._known(studies, ("name", "created_at"))
        for row in chain.from_iterable(self._from.batches(studies)):
            found = known.get((row["name"], row["created_at"]))
            content = {"seed": row["seed"], "text": row["text"]}
            new = found is None
            if found is None:
                identity: Values = {
                    **{name: row[name] for name in ("name", "fresh", "created_at")},
                    "generation": next_generation(self._to, str(row["name"])),
                    "imported_from": row["imported_from"] or self._from.path.name,
                }
                found = insert(self._to, studies, {**identity, **content})
            else:
                foreign = studies.c.id == found, studies.c.imported_from.is_not(None)
                self._to.execute(update(studies).where(*foreign).values(content))
            ids.add(id_of(row["id"]), found, new=new)
            self._forget_positions(found)
        for row in chain.from_iterable(self._from.batches(study_layers)):
            self._study_layer(self._referring(study_layers, row))

    def _forget_positions(self, study_id: int) -> None:
        """An imported study's layers stand where its file has them now; a study of our own keeps its order."""
        imported = select(studies.c.id).where(studies.c.id == study_id, studies.c.imported_from.is_not(None))
        self._to.execute(update(study_layers).where(study_layers.c.study_id.in_(imported)).values(position=None))

    def _study_layer(self, values: Values) -> None:
        ours = select(studies.c.imported_from.is_(None)).where(studies.c.id == values["study_id"])
        same = [study_layers.c[name] == values[name] for name in ("study_id", "name", "subject_id")]
        if self._to.execute(ours).scalar_one():
            values["position"] = None
            if self._to.execute(select(study_layers).where(*same)).first() is None:
                self._to.execute(study_layers.insert(), values)
        elif self._to.execute(update(study_layers).where(*same).values(values)).rowcount == 0:
            self._to.execute(study_layers.insert(), values)

    def _trials(self) -> int:
        """Bring finished trials; the number of those that are still running and were left out."""
        own = {here for _, here, new in self._ids[studies].rows() if new}
        with closing(TrialPlaces()) as places:
            for first, last in batches(self._from.connection, trials):
                with self._writing():
                    bring_trials(self._to, first, last, places, own)
        with self._writing():
            self._moved[trials] = MovedIds(self._to, trials)
            running = "SELECT count(*) FROM other.trials WHERE outcome = ?"
            return int(self._to.exec_driver_sql(running, (str(Outcome.RUNNING),)).scalar_one())


def _same_file(path: Path, url: str | Path) -> bool:
    other = path_of(url)
    return path.exists() and other.exists() and path.samefile(other)
