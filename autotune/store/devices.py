"""Devices, environments and the runs that took place on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Connection, RowMapping, Table, UniqueConstraint, select, update

from autotune import __version__
from autotune.devices.device import DeviceInfo, Environment
from autotune.errors import shortened
from autotune.store.column_types import Values, integer, metadata, reference, row_id, text
from autotune.store.sqlite.database import Database
from autotune.store.statements import identify, insert, rows_of
from autotune.store.unreadable import reading

DEVICE_COLUMNS = (
    *("kind", "name", "arch", "sm_count", "memory_bytes"),
    *("max_threads_per_block", "smem_per_block_bytes", "smem_per_sm_bytes", "registers_per_sm"),
    *("max_warps_per_sm", "max_blocks_per_sm", "constant_bytes", "l2_bytes"),
)
"""DeviceInfo's fields in its order, but for the two triples; the first five are the identity."""

devices = Table(
    "devices",
    metadata,
    row_id(),
    text("kind"),
    text("name"),
    *(integer(name) for name in ("arch", "sm_count", "memory_bytes")),
    *(integer(name) for name in ("max_threads_per_block", "smem_per_block_bytes", "smem_per_sm_bytes")),
    *(integer(name) for name in ("registers_per_sm", "max_warps_per_sm", "max_blocks_per_sm")),
    *(integer(name) for name in ("constant_bytes", "l2_bytes")),
    *(integer(f"grid_limit_{axis}") for axis in "xyz"),
    *(integer(f"block_limit_{axis}") for axis in "xyz"),
    text("first_seen_at"),
    UniqueConstraint("kind", "name", "arch", "sm_count", "memory_bytes"),
)

environments = Table(
    "environments",
    metadata,
    row_id(),
    text("driver"),
    text("toolkit"),
    text("flags"),
    text("first_seen_at"),
    UniqueConstraint("driver", "toolkit", "flags"),
)

runs = Table(
    "runs",
    metadata,
    row_id(),
    reference("device_id", "devices.id"),
    reference("environment_id", "environments.id"),
    text("attributes"),
    text("autotune_version"),
    text("started_at"),
)


def device_identity(info: DeviceInfo) -> Values:
    """The columns that identify a device."""
    return {name: getattr(info, name) for name in DEVICE_COLUMNS[:5]}


def device_limits(info: DeviceInfo) -> Values:
    """The other columns of a device."""
    values: Values = {name: getattr(info, name) for name in DEVICE_COLUMNS[5:]}
    for axis, grid, block in zip("xyz", info.grid_limits, info.block_limits, strict=True):
        values[f"grid_limit_{axis}"] = grid
        values[f"block_limit_{axis}"] = block
    return values


def device_of(row: RowMapping) -> DeviceInfo:
    """The device of a row that has the columns of `devices`."""
    column = devices.c
    sizes = {name: row[column[name]] for name in DEVICE_COLUMNS}
    return DeviceInfo(
        **sizes,
        grid_limits=(row[column.grid_limit_x], row[column.grid_limit_y], row[column.grid_limit_z]),
        block_limits=(row[column.block_limit_x], row[column.block_limit_y], row[column.block_limit_z]),
    )


def environment_identity(environment: Environment) -> Values:
    """The columns that are matched."""
    return {"driver": environment.driver, "toolkit": environment.toolkit, "flags": environment.flags}


def environment_of(row: RowMapping) -> Environment:
    """The environment of a row that has the columns of `environments` and `runs`."""
    column = environments.c
    attributes = json.loads(row[runs.c.attributes])
    if not isinstance(attributes, dict) or not all(isinstance(value, str) for value in attributes.values()):
        raise ValueError(f"attributes {shortened(row[runs.c.attributes])} are not an object of words")
    return Environment(row[column.driver], row[column.toolkit], row[column.flags], attributes)


def store_device(connection: Connection, info: DeviceInfo, now: str) -> int:
    """Id of a device; its limits become what is known now."""
    limits = device_limits(info)
    device_id = identify(connection, devices, device_identity(info), {**limits, "first_seen_at": now})
    connection.execute(update(devices).where(devices.c.id == device_id), limits)
    return device_id


def store_environment(connection: Connection, record: Environment, now: str) -> int:
    """Id of an environment, matched field by field; its attributes belong to a run."""
    return identify(connection, environments, environment_identity(record), {"first_seen_at": now})


def store_run(connection: Connection, device_id: int, environment_id: int, record: Environment, now: str) -> int:
    """Id of a new run."""
    attributes = json.dumps(dict(record.attributes), sort_keys=True)
    ids: Values = {"device_id": device_id, "environment_id": environment_id}
    rest: Values = {"attributes": attributes, "autotune_version": __version__, "started_at": now}
    return insert(connection, runs, {**ids, **rest})


def same_device(info: DeviceInfo) -> tuple[ColumnElement[bool], ...]:
    """The conditions on a row of `devices` that it is this one."""
    return tuple(devices.c[name] == value for name, value in device_identity(info).items())


def measured_on(connection: Connection, info: DeviceInfo, record: Environment, now: str) -> Values:
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

    @reading
    def list(self) -> tuple[DeviceInfo, ...]:
        """Every recorded device, in the order first seen."""
        statement = select(devices).order_by(devices.c.id)
        with self.database.read() as connection:
            return tuple(device_of(row) for row in rows_of(connection, statement))

    @reading
    def environments(self) -> tuple[tuple[DeviceInfo, Environment], ...]:
        """Each device that ran something, with the environment of its newest run; runs from elsewhere are older."""
        trials = metadata.tables["trials"]  # by name: their module stands above this one
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
    """A process's run on a device in an environment, open for writing."""

    connection: Connection
    now: str
    """the date that its new rows get"""
    device_id: int
    environment_id: int
    id: int


@dataclass(frozen=True, slots=True)
class Runs:
    """This process's runs: one on each device in each environment, stored when it first writes something there."""

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
