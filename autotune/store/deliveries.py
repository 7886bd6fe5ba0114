"""Finished trials on their way from one database into another as what they are: measured, not imported.

A delivery is a trial's rows without their ids. Within a scope a config is tried once, so a config that is there already
tells a delivery that came twice.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from sqlalchemy import Connection, LargeBinary, RowMapping, Table, bindparam, func, select, update

from autotune.store.column_types import Values, date_of
from autotune.store.measurements import measurements
from autotune.store.scopes import SCOPE, Scope
from autotune.store.sources import sources
from autotune.store.sqlite.database import Database
from autotune.store.statements import insert, insert_unless_there, rows_of
from autotune.store.templates import templates
from autotune.store.trial_store import within
from autotune.store.trials import trials, while_tuning
from autotune.store.unreadable import reading
from autotune.trial import Config, Outcome, is_measured

LOST = "agent_lost"
"""reason of a trial whose kernel was running when the process that measured was lost: its result may still come"""
_MOST = 2.0**63  # of a number in a row: a count of operations has no more
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


def check_delivery(delivery: object) -> None:
    """Raise ValueError or TypeError for what is no delivery, whoever made it: each row has its columns, of their types.

    What it says of a kernel and its times is taken as it is.
    """
    if not isinstance(delivery, Delivery) or type(delivery.id) is not int or not isinstance(delivery.family, str):
        raise TypeError("no delivery")
    rows = ((trials, delivery.trial), (sources, delivery.source), (measurements, delivery.measurement))
    for table, row in rows:
        if row is not None or table is trials:
            _check_row(table, row)
    if delivery.measurement is not None and not is_measured(float(str(delivery.measurement["median_us"]))):
        raise ValueError("a time that is none")
    Outcome(str(delivery.trial["outcome"]))
    if not isinstance(json.loads(str(delivery.trial["config"])), dict):
        raise TypeError("a config that is none")


def _check_row(table: Table, row: object) -> None:
    columns = _columns(table)
    if not isinstance(row, dict) or row.keys() != columns.keys():
        raise TypeError(f"no row of {table.name}")
    for name, value in row.items():
        kinds, nullable = columns[name]
        if type(value) not in kinds and not (nullable and value is None):
            raise TypeError(f"{name} of {table.name} is {type(value).__name__}")
        if isinstance(value, int | float) and not abs(value) <= _MOST:  # nor for what is no number
            raise ValueError(f"{name} of {table.name} is out of range")
        if name.endswith("_at") and value is not None:
            date_of(str(value))


@cache
def _columns(table: Table) -> Mapping[str, tuple[tuple[type[object], ...], bool]]:
    """Of a delivery's row: the types of each column's values, and whether it may have none."""
    found: dict[str, tuple[tuple[type[object], ...], bool]] = {}
    for column in table.c:
        kind = column.type.python_type
        found[column.name] = ((float, int) if kind is float else (kind,), bool(column.nullable))
    return {name: kinds for name, kinds in found.items() if name not in _OWN}


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

    def numbers(self, scope: Scope, configs: Collection[Config]) -> dict[Config, int]:
        """What the trials of these configs are numbered, as far as the scope has them."""
        wanted = {(config.template, config.to_json()): config for config in configs}
        with self.database.read() as connection:
            there, _ = _there(connection, scope, [text for _, text in wanted], [])
        return {config: there[key][0] for key, config in wanted.items() if key in there}

    def add(self, arrived: Iterable[tuple[Scope, Sequence[Delivery]]]) -> int:
        """Store the finished ones whose config its scope lacks or has begun, all in one commit; how many these were.

        A number that is taken gives way to the next free one.
        """
        with self.database.write() as connection:
            return sum(
                _add(connection, scope, [each for each in deliveries if not each.running])
                for scope, deliveries in arrived
            )


def _add(connection: Connection, scope: Scope, deliveries: Sequence[Delivery]) -> int:
    """Those of one scope; it takes as long however many trials the scope has."""
    configs = [str(each.trial["config"]) for each in deliveries]
    there, taken = _there(connection, scope, configs, [each.trial["number"] for each in deliveries])
    ids = dict(scope.template_ids)
    new = 0
    for delivery in deliveries:
        number, trial_id, ended = there.get(delivery.config, (None, None, False))
        if ended:
            continue
        if number is None:
            number = int(str(delivery.trial["number"]))
            number = number if number not in taken else _free_number(connection, scope)
            taken.add(number)
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


_WITHIN = tuple(trials.c[name] == bindparam(name) for name in SCOPE)
_ANY_CONFIG = select(func.json_each(bindparam("configs")).table_valued("value").c.value)
_ANY_NUMBER = select(func.json_each(bindparam("numbers")).table_valued("value").c.value)
_ALIKE = (
    select(templates.c.family, trials.c.config, trials.c.number, trials.c.id, trials.c.outcome, trials.c.reason)
    .join(templates, templates.c.id == trials.c.template_id)
    .where(*_WITHIN, trials.c.config.in_(_ANY_CONFIG) | trials.c.number.in_(_ANY_NUMBER))
)
_LAST = select(func.max(trials.c.number)).where(*_WITHIN)


def _there(
    connection: Connection, scope: Scope, configs: Sequence[str], numbers: Sequence[object]
) -> tuple[dict[tuple[str, str], tuple[int, int, bool]], set[int]]:
    """Number and id of the scope's trials of these configs or numbers, and whether each has its result; the numbers."""
    words: Values = {"configs": json.dumps(configs), "numbers": json.dumps(numbers)}
    rows = connection.execute(_ALIKE, {**scope.identity, **words}).all()
    found = {
        (row.family, row.config): (row.number, row.id, row.outcome != str(Outcome.RUNNING) and row.reason != LOST)
        for row in rows
    }
    return found, {row.number for row in rows}


def _free_number(connection: Connection, scope: Scope) -> int:
    """The number after every trial of the scope."""
    return int(connection.execute(_LAST, scope.identity).scalar_one() or 0) + 1


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
