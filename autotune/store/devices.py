"""Devices, environments and the runs on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, RowMapping, select, update

from autotune import __version__
from autotune.devices.device import DeviceInfo, Environment
from autotune.store.rows import identify, insert, record_of, rows_of, values_of
from autotune.store.schema.tables import devices, environments, runs, trials
from autotune.store.schema.types import Values
from autotune.store.sqlite.database import Database

IDENTITY = ("kind", "name", "arch", "sm_count", "memory_bytes")
"""The columns that identify a device."""
ENVIRONMENT_IDENTITY = ("driver", "toolkit", "flags")
"""The columns that identify an environment."""


def device_of(row: RowMapping) -> DeviceInfo:
    """The device of a row that has the columns of `devices`."""
    return record_of(DeviceInfo, row, devices)


def environment_of(row: RowMapping) -> Environment:
    """The environment of a row that has the columns of `environments` and `runs`."""
    return record_of(Environment, row, environments, runs)


def store_device(connection: Connection, info: DeviceInfo, now: datetime) -> int:
    """Id of a device; its limits are updated."""
    values = values_of(info, devices)
    identity = {name: values.pop(name) for name in IDENTITY}
    device_id = identify(connection, devices, identity, {**values, "first_seen_at": now})
    connection.execute(update(devices).where(devices.c.id == device_id), values)
    return device_id


def store_environment(connection: Connection, record: Environment, now: datetime) -> int:
    """Id of an environment, matched field by field; its attributes belong to a run."""
    return identify(connection, environments, values_of(record, environments), {"first_seen_at": now})


def store_run(connection: Connection, device_id: int, environment_id: int, record: Environment, now: datetime) -> int:
    """Id of a new run."""
    attributes = dict(sorted(record.attributes.items()))
    ids: Values = {"device_id": device_id, "environment_id": environment_id}
    rest: Values = {"attributes": attributes, "autotune_version": __version__, "started_at": now}
    return insert(connection, runs, {**ids, **rest})


def same_device(info: DeviceInfo) -> tuple[ColumnElement[bool], ...]:
    """The conditions that select this device's row of `devices`."""
    return tuple(devices.c[name] == getattr(info, name) for name in IDENTITY)


def measured_on(connection: Connection, info: DeviceInfo, record: Environment, now: datetime) -> Values:
    """The columns that say where and when something was measured about a device."""
    ids: Values = {
        "device_id": store_device(connection, info, now),
        "environment_id": store_environment(connection, record, now),
    }
    return {**ids, "measured_at": now}


@dataclass(frozen=True, slots=True)
class DeviceStore:
    """The devices that trials ran on."""

    database: Database

    def by_id(self) -> dict[int, DeviceInfo]:
        """Every recorded device by its id, in the order first seen."""
        with self.database.read() as connection:
            rows = rows_of(connection, select(devices).order_by(devices.c.id))
            return {row[devices.c.id]: device_of(row) for row in rows}

    def list(self) -> tuple[DeviceInfo, ...]:
        """Every recorded device, in the order first seen."""
        return tuple(self.by_id().values())

    def environments(self) -> tuple[tuple[DeviceInfo, Environment], ...]:
        """Each device that ran something, with the environment of its newest run; imported runs count as older."""
        imported = select(trials.c.run_id).where(trials.c.origin == "imported").distinct()
        statement = (
            select(devices, runs, environments)
            .join(runs, runs.c.device_id == devices.c.id)
            .join(environments, environments.c.id == runs.c.environment_id)
            .order_by(runs.c.id.not_in(imported), runs.c.id)
        )
        with self.database.read() as connection:
            newest = {row[devices.c.id]: row for row in rows_of(connection, statement)}
            return tuple((device_of(row), environment_of(row)) for row in newest.values())


@dataclass(frozen=True, slots=True)
class Run:
    """A process's run on a device in an environment, for writing."""

    connection: Connection
    now: datetime
    """the date that its new rows get"""
    device_id: int
    environment_id: int
    id: int


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of this process: one for each device and environment, stored when it first writes something there."""

    database: Database
    _ids: dict[tuple[int, int], int] = field(default_factory=dict)
    """device id, environment id to the run's, once it is committed"""

    @contextmanager
    def write(self, info: DeviceInfo, record: Environment) -> Iterator[Run]:
        """A writing transaction with its device, environment and run in it."""
        now = self.database.now()
        with self.database.write() as connection:
            device_id = store_device(connection, info, now)
            environment_id = store_environment(connection, record, now)
            run_id = self._ids.get((device_id, environment_id))
            if run_id is None:
                run_id = store_run(connection, device_id, environment_id, record, now)
            yield Run(connection, now, device_id, environment_id, run_id)
        self._ids[device_id, environment_id] = run_id
