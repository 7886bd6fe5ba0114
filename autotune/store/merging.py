"""Another database's trials brought into this one. They are marked as imported: seen, but best only once re-timed here.

A row that is here already is found by what identifies it, so merging the same file again adds nothing, and merging
two copies of one database that went different ways adds what each lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from sqlalchemy import Connection, Table, select, update

from autotune.errors import StoreError
from autotune.store.column_types import SqlValue, Values
from autotune.store.device_rates import rates
from autotune.store.devices import DEVICE_COLUMNS, devices, environments, runs
from autotune.store.dispatchers import dispatched_layers, dispatchers
from autotune.store.end_to_end_timings import end_to_end_timings
from autotune.store.finals import finals, verdicts
from autotune.store.layers import PROBLEM_COLUMNS, layers, subject_layers, subjects
from autotune.store.measurements import measurements
from autotune.store.noise_floors import noise_floors
from autotune.store.packed import unpacked
from autotune.store.profiles import profiles
from autotune.store.quarantine import quarantine
from autotune.store.retimes import retimes
from autotune.store.row_checks import faulty_rows, repeated_rows
from autotune.store.scopes import SCOPE
from autotune.store.sources import sources
from autotune.store.spaces import CHUNK
from autotune.store.sqlite.database import LOCK_TIMEOUT_S, Clock, one_line, path_of, utc_now
from autotune.store.sqlite.open_database import open_for_reading, open_for_writing, refresh_statistics
from autotune.store.statements import identify, insert, next_id
from autotune.store.studies import next_generation, studies, study_layers
from autotune.store.templates import templates
from autotune.store.trials import trials
from autotune.trial import Outcome

Key = tuple[SqlValue, ...]


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
    """Bring everything of the database `other` that `url` lacks into it, in one transaction.

    Trials that are still running are left out. Raises StoreError when the two have different kernels of one hash.
    """
    with closing(open_for_reading(other, timeout_s=LOCK_TIMEOUT_S, clock=clock)) as source:
        if _same_file(source.path, url):
            raise StoreError(f"{one_line(str(source.path))}: is the database to merge into; give another file")
        with closing(open_for_writing(url, timeout_s=LOCK_TIMEOUT_S, clock=clock)) as target:
            with source.read() as reading:
                _refuse_faults(reading, one_line(str(source.path)))
            with source.read() as reading, target.write() as writing:
                merged = _Merge(reading, writing, source.path.name, one_line(str(source.path))).run()
            refresh_statistics(target)
    return merged


def _refuse_faults(connection: Connection, shown: str) -> None:
    """Raise StoreError for the first row that cannot be understood, before anything is written."""
    for fault in chain(repeated_rows(connection), faulty_rows(connection, texts=False)):
        advice = f"`autotune dump --check --db {shown}` lists such rows"
        raise StoreError(f"{shown}: {fault}; nothing was merged, {advice}")


class _Merge:
    """One merge: the ids that the other database's rows have here."""

    def __init__(self, reading: Connection, writing: Connection, name: str, shown: str) -> None:
        self._from = reading
        self._to = writing
        self._name = name
        self._shown = shown
        self._ids: dict[Table, dict[int, int]] = {}
        self._new: dict[Table, set[int]] = {}
        # ids there of the rows that were not here

    def run(self) -> Merged:
        """Bring the tables, parents first."""
        self._bring(layers, PROBLEM_COLUMNS)
        self._subjects()
        self._bring(devices, DEVICE_COLUMNS[:5])
        self._bring(environments, ("driver", "toolkit", "flags"))
        self._bring(runs, ("device_id", "environment_id", "attributes", "started_at"))
        self._bring(templates, ("family", "hash"))
        self._sources()
        self._studies()
        running = self._trials()
        imported: Values = {"origin": "imported"}
        self._bring(finals, (*SCOPE, "ended_at"), imported)
        self._bring(verdicts, (), only=lambda row: row["finals_id"] in self._new[finals])
        self._bring(retimes, ("trial_id", "run_id", "ended_at"))
        self._bring(measurements, (), only=self._measurement_is_new)
        self._bring(profiles, ("trial_id", "run_id", "position", "profiled_at"))
        self._bring(quarantine, ("device_id", "environment_id", "source_id"))
        self._bring(noise_floors, ("device_id", "environment_id", "policy", "measured_at"), imported)
        self._bring(rates, ("device_id", "environment_id", "name", "method", "measured_at"), imported)
        self._end_to_end_timings()
        self._bring(dispatchers, ("trial_id", "built_at"))
        self._dispatched_layers()
        known = len(self._ids[trials]) - len(self._new[trials])
        return Merged(len(self._new[trials]), known, running, len(self._new[studies]))

    def _bring(
        self,
        table: Table,
        identity: Sequence[str],
        changed: Values | None = None,
        *,
        only: Callable[[Values], bool] | None = None,
    ) -> None:
        """Bring the rows that have no match here; without an identity, all that `only` lets through."""
        ids, new, waiting = self._begin(table)
        free_id = next_id(self._to, table)
        known = self._known(table, identity) if identity else {}
        for row in self._rows(table):
            if (only is not None and not only(row)) or not self._refers_to_known(table, row):
                continue
            values = {**self._referring(table, row), **(changed or {})}
            key = tuple(values[name] for name in identity)
            found = known.get(key) if identity else None
            there = int(row["id"] or 0)
            if found is None:
                ids[there] = free_id
                new.add(there)
                waiting.append({**values, "id": free_id})
                if identity:
                    known[key] = free_id
                free_id += 1
                self._flush(table, waiting, CHUNK)
            else:
                ids[there] = found
        self._flush(table, waiting)

    def _begin(self, table: Table) -> tuple[dict[int, int], set[int], list[Values]]:
        self._ids[table], self._new[table] = {}, set()
        return self._ids[table], self._new[table], []

    def _rows(self, table: Table) -> Iterator[Values]:
        for row in self._from.execute(select(table).order_by(*table.primary_key.columns)).mappings():
            yield dict(row)

    def _known(self, table: Table, identity: Sequence[str]) -> dict[Key, int]:
        statement = select(table.c.id, *(table.c[name] for name in identity))
        return {tuple(row[1:]): row[0] for row in self._to.execute(statement)}

    def _refers_to_known(self, table: Table, row: Values) -> bool:
        """False for what belongs to a trial that was left out."""
        return all(
            row[key.parent.name] is None or row[key.parent.name] in self._ids[key.column.table]
            for key in table.foreign_keys
            if key.column.table in (trials, finals, retimes)
        )

    def _referring(self, table: Table, row: Values) -> Values:
        """The row with the ids that its parents have here."""
        values = dict(row)
        for key in table.foreign_keys:
            there = row[key.parent.name]
            if there is not None:
                here = self._ids[key.column.table].get(int(there))
                if here is None:
                    raise StoreError(
                        f"{self._shown}: a row of {table.name} refers to a row of {key.column.table.name} that is not "
                        f"there; restore a copy"
                    )
                values[key.parent.name] = here
        return values

    def _flush(self, table: Table, waiting: list[Values], most: int = 1) -> None:
        """Write the rows that wait, once there are so many."""
        if len(waiting) >= most:
            # As they came: what the other database holds has been through this package's types once.
            names = ", ".join(f'"{name}"' for name in waiting[0])
            values = [tuple(row.values()) for row in waiting]
            sql = f"INSERT INTO {table.name} ({names}) VALUES ({', '.join('?' * len(values[0]))})"  # noqa: S608
            self._to.exec_driver_sql(sql, values)
            waiting.clear()

    def _subjects(self) -> None:
        """Bring layers, sets of layers by their members, and spaces by their kernel and parameters."""
        ids, new, _waiting = self._begin(subjects)
        members = self._members(self._from)
        here = {layers_of: subject_id for subject_id, layers_of in self._members(self._to).items()}
        layer_ids = self._ids[layers]
        for row in self._rows(subjects):
            there = int(row["id"] or 0)
            values = self._referring(subjects, row)
            del values["id"]
            if values["kind"] != "layers":
                ids[there] = identify(self._to, subjects, values, {})
                continue
            of_layers = frozenset(layer_ids[layer_id] for layer_id in members.get(there, ()))
            if of_layers not in here:
                here[of_layers] = insert(self._to, subjects, values)
                new.add(there)
                for layer_id in of_layers:
                    self._to.execute(subject_layers.insert(), {"subject_id": here[of_layers], "layer_id": layer_id})
            ids[there] = here[of_layers]

    def _members(self, connection: Connection) -> dict[int, frozenset[int]]:
        found: dict[int, set[int]] = {}
        for subject_id, layer_id in connection.execute(select(subject_layers.c.subject_id, subject_layers.c.layer_id)):
            found.setdefault(subject_id, set()).add(layer_id)
        return {subject_id: frozenset(layer_ids) for subject_id, layer_ids in found.items()}

    def _sources(self) -> None:
        """Bring kernels by their hashes; a text that was dropped on one side is filled in from the other."""
        ids, new, waiting = self._begin(sources)
        free_id = next_id(self._to, sources)
        for chunk in self._from.execute(select(sources).order_by(sources.c.id)).mappings().partitions(CHUNK):
            hashes = [row[sources.c.hash] for row in chunk]
            same = select(sources).where(sources.c.hash.in_(hashes))
            here = {row[sources.c.hash]: dict(row) for row in self._to.execute(same).mappings()}
            for found in chunk:
                values = self._referring(sources, dict(found))
                there = int(found[sources.c.id])
                match = here.get(values["hash"])
                if match is None:
                    values["id"] = ids[there] = free_id
                    new.add(there)
                    waiting.append(values)
                    free_id += 1
                    continue
                ids[there] = int(match["id"])
                self._agree(match, values)
            self._flush(sources, waiting)

    def _agree(self, here: Values, there: Values) -> None:
        """Fill in a dropped text. Raises StoreError for two kernels of one hash."""
        if here["text_bytes"] and there["text_bytes"]:
            same = all(here[name] == there[name] for name in ("layer_id", "flags", "entries", "launches"))
            # Two versions of zlib may pack one text differently.
            if not same or (here["text_zlib"] != there["text_zlib"] and _text(here) != _text(there)):
                raise StoreError(
                    f"{self._shown}: its kernel {one_line(str(here['hash']))} is another than the one of this hash "
                    f"here; nothing was merged, do not trust one of the files"
                )
        elif there["text_bytes"]:
            self._to.execute(update(sources).where(sources.c.id == here["id"]).values({**there, "id": here["id"]}))

    def _studies(self) -> None:
        """Bring studies by name and date of beginning, each new one as a generation of its own, with their layers."""
        ids, new, _waiting = self._begin(studies)
        known = self._known(studies, ("name", "created_at"))
        for row in self._rows(studies):
            there = int(row["id"] or 0)
            found = known.get((row["name"], row["created_at"]))
            content = {"seed": row["seed"], "text": row["text"]}
            if found is None:
                identity: Values = {
                    **{name: row[name] for name in ("name", "fresh", "created_at")},
                    "generation": next_generation(self._to, str(row["name"])),
                    "imported_from": row["imported_from"] or self._name,
                }
                ids[there] = insert(self._to, studies, {**identity, **content})
                new.add(there)
            else:
                ids[there] = found
                foreign = studies.c.id == found, studies.c.imported_from.is_not(None)
                self._to.execute(update(studies).where(*foreign).values(content))
        for study_id in ids.values():
            self._forget_positions(study_id)
        for row in self._rows(study_layers):
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
        """Bring finished trials; the number of those that are still running and were left out.

        A number that another trial of the scope has here becomes the next one that is free.
        """
        ids, new, waiting = self._begin(trials)
        scopes: dict[Key, _Numbers] = {}
        free_id, running = next_id(self._to, trials), 0
        new_studies = {self._ids[studies][there] for there in self._new[studies]}
        for row in self._rows(trials):
            there = int(row["id"] or 0)
            if row["outcome"] == str(Outcome.RUNNING):
                running += 1
                continue
            values = self._referring(trials, row)
            scope = tuple(values[name] for name in SCOPE)
            if scope not in scopes:
                scopes[scope] = _Numbers(self._to, scope, new=values["study_id"] in new_studies)
            number, found = scopes[scope].place(values)
            ids[there] = free_id if found is None else found
            if found is not None:
                continue
            new.add(there)
            waiting.append({**values, "id": free_id, "number": number, "origin": "imported", "ranked_us": None})
            free_id += 1
            self._flush(trials, waiting, CHUNK)
        self._flush(trials, waiting)
        return running

    def _measurement_is_new(self, row: Values) -> bool:
        if row["finals_id"] is not None:
            return row["finals_id"] in self._new[finals]
        if row["retime_id"] is not None:
            return row["retime_id"] in self._new[retimes]
        return row["trial_id"] in self._new[trials]

    def _end_to_end_timings(self) -> None:
        waiting = [
            self._referring(end_to_end_timings, row)
            for row in self._rows(end_to_end_timings)
            if row["trial_id"] in self._new[trials]
        ]
        self._flush(end_to_end_timings, waiting)

    def _dispatched_layers(self) -> None:
        new = self._new[dispatchers]
        rows = [row for row in self._rows(dispatched_layers) if row["dispatcher_id"] in new]
        self._flush(dispatched_layers, [self._referring(dispatched_layers, row) for row in rows])


def _text(source: Values) -> str:
    packed, text_bytes = source["text_zlib"], source["text_bytes"]
    return unpacked(packed, text_bytes).decode() if isinstance(packed, bytes) and isinstance(text_bytes, int) else ""


def _same_file(path: Path, url: str | Path) -> bool:
    other = path_of(url)
    return path.exists() and other.exists() and path.samefile(other)


class _Numbers:
    """The trials of one scope here: which numbers are taken, and by which trials."""

    def __init__(self, connection: Connection, scope: Key, *, new: bool) -> None:
        self._taken: set[int] = set()
        self._known: dict[Key, int] = {}
        if not new:
            within = [trials.c[name] == value for name, value in zip(SCOPE, scope, strict=True)]
            columns = (trials.c.id, trials.c.number, trials.c.config, trials.c.started_at)
            for trial_id, number, config, started_at in connection.execute(select(*columns).where(*within)):
                self._taken.add(number)
                self._known[config, started_at] = trial_id

    def place(self, values: Values) -> tuple[int, int | None]:
        """A free number for a trial, its own where possible; and its id where it is here already."""
        found = self._known.get((values["config"], values["started_at"]))
        number = int(values["number"] or 0)
        if found is None:
            if number in self._taken:
                number = max(self._taken) + 1
            self._taken.add(number)
        return number, found
