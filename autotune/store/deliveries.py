"""Finished trials on their way from one database into another as what they are: measured, not imported.

A delivery is a trial's rows without their ids. Within a scope a config is tried once, so a config that is there already
tells a delivery that came twice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, LargeBinary, RowMapping, Table, select, update

from autotune.store.column_types import Values
from autotune.store.measurements import measurements
from autotune.store.reading import reading
from autotune.store.scopes import SCOPE, Scope
from autotune.store.sources import sources
from autotune.store.sqlite.database import Database
from autotune.store.statements import insert, insert_unless_there, rows_of
from autotune.store.templates import templates
from autotune.store.trial_store import within
from autotune.store.trials import trials, while_tuning
from autotune.trial import Outcome

LOST = "agent_lost"
"""reason of a trial whose kernel was running when the process that measured was lost: its result may still come"""
_OWN = {"id", "run_id", "template_id", "source_id", "reused_trial_id", "layer_id", "trial_id", *SCOPE}
"""columns that say where in a database a row is"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A trial as its rows, whose place in a database is left open."""

    id: int
    """of the trial in the database that it comes from"""
    family: str
    trial: Values
    source: Values | None
    """the kernel; None: there was none"""
    measurement: Values | None
    """of its search; None: it has no time"""
    reused: bool
    """a copy of a trial with the same kernel"""

    @property
    def running(self) -> bool:
        """Whether it has no result yet."""
        return self.trial["outcome"] == str(Outcome.RUNNING)

    @property
    def config(self) -> tuple[str, str]:
        """Family and parameters: what it is told by within its scope."""
        return self.family, str(self.trial["config"])

    @property
    def without_text(self) -> Delivery:
        """The same, of whose kernel only the hash is kept."""
        if self.source is None:
            return self
        return replace(self, source={**self.source, "text_zlib": b"", "text_bytes": 0, "launches": "{}"})


@dataclass(frozen=True, slots=True)
class DeliveryStore:
    """Trials that leave for another database, or come from one."""

    database: Database

    @reading
    def list(self, scope: Scope, *, but: Collection[int] = ()) -> tuple[Delivery, ...]:
        """The scope's own trials, also those still running, but for those of these ids; in the order of their start."""
        statement = (
            select(trials, templates.c.family, sources, measurements)
            .join(templates, templates.c.id == trials.c.template_id)
            .outerjoin(sources, sources.c.id == trials.c.source_id)
            .outerjoin(measurements, while_tuning())
            .where(within(scope), trials.c.origin == "measured", trials.c.id.not_in(but))
            .order_by(trials.c.id)
        )
        with self.database.read() as connection:
            return tuple(_delivery(row) for row in rows_of(connection, statement))

    def add(self, scope: Scope, deliveries: Sequence[Delivery]) -> int:
        """Store the finished ones whose config the scope lacks or has begun, all in one commit; how many these were.

        A number that is taken gives way to the next free one.
        """
        with self.database.write() as connection:
            there = _configs(connection, scope)
            numbers = {number for number, _, _ in there.values()}
            ids = dict(scope.template_ids)
            new = 0
            for delivery in deliveries:
                number, trial_id, ended = there.get(delivery.config, (None, None, False))
                if delivery.running or ended:
                    continue
                if number is None:
                    number = int(str(delivery.trial["number"]))
                    number = number if number not in numbers else max(numbers) + 1
                    numbers.add(number)
                values: Values = {**delivery.trial, **scope.identity, "number": number, "run_id": scope.run_id}
                values["template_id"] = ids[delivery.family]
                there[delivery.config] = (number, _store(connection, scope, delivery, values, trial_id), True)
                new += 1
        return new


def _store(connection: Connection, scope: Scope, delivery: Delivery, values: Values, trial_id: int | None) -> int:
    """Id of a trial that is stored with its kernel and measurement, in the place of one that was begun if there is."""
    source_id = None if delivery.source is None else _source_id(connection, scope, delivery.source)
    values |= {"source_id": source_id, "reused_trial_id": None}
    if delivery.reused:
        same = [trials.c[name] == scope.identity[name] for name in ("device_id", "environment_id", "policy")]
        first = select(trials.c.id).where(trials.c.source_id == source_id, trials.c.reused_trial_id.is_(None), *same)
        values["reused_trial_id"] = connection.execute(first.order_by(trials.c.id).limit(1)).scalar_one_or_none()
    if trial_id is None:
        trial_id = insert(connection, trials, values)
    else:
        connection.execute(update(trials).where(trials.c.id == trial_id).values(values))
    if delivery.measurement is not None:
        insert(connection, measurements, {**delivery.measurement, "trial_id": trial_id})
    return trial_id


def _source_id(connection: Connection, scope: Scope, source: Values) -> int:
    """Id of a kernel, whose text is filled in where only its hash was kept."""
    new_id = insert_unless_there(connection, sources, {**source, "layer_id": scope.layer_id})
    if new_id is not None:
        return new_id
    same = sources.c.hash == source["hash"]
    if source["text_bytes"]:
        connection.execute(update(sources).where(same, sources.c.text_bytes == 0).values(source))
    return int(connection.execute(select(sources.c.id).where(same)).scalar_one())


def _configs(connection: Connection, scope: Scope) -> dict[tuple[str, str], tuple[int, int, bool]]:
    """Number and id of the trial of each config that the scope has, and whether it has its result."""
    column = trials.c
    statement = (
        select(templates.c.family, column.config, column.number, column.id, column.outcome, column.reason)
        .join(templates, templates.c.id == column.template_id)
        .where(within(scope))
    )
    return {
        (row.family, row.config): (row.number, row.id, row.outcome != str(Outcome.RUNNING) and row.reason != LOST)
        for row in connection.execute(statement)
    }


def _delivery(row: RowMapping) -> Delivery:
    return Delivery(
        id=row[trials.c.id],
        family=row[templates.c.family],
        trial=_values(row, trials),
        source=None if row[sources.c.hash] is None else _values(row, sources),
        measurement=None if row[measurements.c.id] is None else _values(row, measurements),
        reused=row[trials.c.reused_trial_id] is not None,
    )


def _values(row: RowMapping, table: Table) -> Values:
    """A row's own columns, those of bytes as such."""
    columns = [column for column in table.c if column.name not in _OWN]
    return {
        column.name: bytes(row[column]) if isinstance(column.type, LargeBinary) else row[column] for column in columns
    }
