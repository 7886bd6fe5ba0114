"""Devices, environments and runs, and the devices' measured rates and noise floors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, RowMapping, select, update

from autotune import __version__
from autotune.devices.device import DeviceInfo, Environment, Rate, best_rates
from autotune.store.rows import identify, insert, record_of, rows_of, values_of
from autotune.store.schema.column_kinds import Values
from autotune.store.schema.tables import DEVICE_IDENTITY, devices, environments, noise_floors, rates, runs, trials
from autotune.store.sqlite.database import Database

ENVIRONMENT_IDENTITY = ("driver", "toolkit", "flags")
"""The columns that identify an environment."""


def device_of(row: RowMapping) -> DeviceInfo:
    """Make the device of a row that includes the columns of `devices`."""
    return record_of(DeviceInfo, row, devices)


def environment_of(row: RowMapping) -> Environment:
    """Make the environment of a row that includes the columns of `environments` and `runs`."""
    return record_of(Environment, row, environments, runs)


def store_device(connection: Connection, info: DeviceInfo, now: datetime) -> int:
    """Store a device or update its limits, and return its id."""
    values = values_of(info, devices)
    identity = {name: values.pop(name) for name in DEVICE_IDENTITY}
    device_id = identify(connection, devices, identity, {**values, "first_seen_at": now})
    connection.execute(update(devices).where(devices.c.id == device_id), values)
    return device_id


def store_environment(connection: Connection, record: Environment, now: datetime) -> int:
    """Store an environment if it is new, and return its id. Its attributes are stored with each run."""
    return identify(connection, environments, values_of(record, environments), {"first_seen_at": now})


def store_run(connection: Connection, device_id: int, environment_id: int, record: Environment, now: datetime) -> int:
    """Store a new run and return its id."""
    attributes = dict(sorted(record.attributes.items()))
    ids: Values = {"device_id": device_id, "environment_id": environment_id}
    rest: Values = {"attributes": attributes, "autotune_version": __version__, "started_at": now}
    return insert(connection, runs, {**ids, **rest})


def same_device(info: DeviceInfo) -> tuple[ColumnElement[bool], ...]:
    """Return conditions that select this device's row of `devices`."""
    return tuple(devices.c[name] == getattr(info, name) for name in DEVICE_IDENTITY)


def measured_on(connection: Connection, info: DeviceInfo, record: Environment, now: datetime) -> Values:
    """Return the columns that say where and when a device's property was measured."""
    ids: Values = {
        "device_id": store_device(connection, info, now),
        "environment_id": store_environment(connection, record, now),
    }
    return {**ids, "measured_at": now}


@dataclass(frozen=True, slots=True)
class DeviceStore:
    """Reads the devices that trials ran on."""

    database: Database

    def by_id(self) -> dict[int, DeviceInfo]:
        """Return every recorded device by id, in the order the devices were first seen."""
        with self.database.read() as connection:
            rows = rows_of(connection, select(devices).order_by(devices.c.id))
            return {row[devices.c.id]: device_of(row) for row in rows}

    def list(self) -> tuple[DeviceInfo, ...]:
        """Return every recorded device, in the order the devices were first seen."""
        return tuple(self.by_id().values())

    def newest_environments(self) -> dict[tuple[str, str, int, int, int], Environment]:
        """Return the environment of each device's newest run. A run with imported trials counts only if there are no
        others.
        """
        is_imported = runs.c.id.in_(select(trials.c.run_id).where(trials.c.origin == "imported"))
        statement = (
            select(devices, runs, environments)
            .join(runs, runs.c.device_id == devices.c.id)
            .join(environments, environments.c.id == runs.c.environment_id)
            .order_by(is_imported.desc(), runs.c.id)
        )
        with self.database.read() as connection:
            return {device_of(row).identity: environment_of(row) for row in rows_of(connection, statement)}


@dataclass(frozen=True, slots=True)
class Run:
    """A process's run on a device in an environment, within an open transaction."""

    connection: Connection
    now: datetime
    """the date to store in new rows"""
    device_id: int
    environment_id: int
    id: int


@dataclass(frozen=True, slots=True)
class Runs:
    """This process's runs, one for each device and environment, stored together with the first row that refers
    to them.
    """

    database: Database
    _ids: dict[tuple[int, int], int] = field(default_factory=dict)
    """device id and environment id to the run's id, once the run is committed"""

    @contextmanager
    def write(self, info: DeviceInfo, record: Environment) -> Iterator[Run]:
        """Open a writing transaction, and store the device, the environment and the run in it."""
        now = self.database.now()
        with self.database.write() as connection:
            device_id = store_device(connection, info, now)
            environment_id = store_environment(connection, record, now)
            run_id = self._ids.get((device_id, environment_id))
            if run_id is None:
                run_id = store_run(connection, device_id, environment_id, record, now)
            yield Run(connection, now, device_id, environment_id, run_id)
        self._ids[device_id, environment_id] = run_id


@dataclass(frozen=True, slots=True)
class RateStore:
    """Stores and reads devices' calibrated rates."""

    database: Database

    def add(self, device: DeviceInfo, environment: Environment, measured: Sequence[Rate]) -> None:
        """Store rates that were measured together on a device, replacing its earlier rates of the same units."""
        with self.database.write() as connection:
            shared = measured_on(connection, device, environment, self.database.now())
            for rate in measured:
                insert(connection, rates, {**shared, **values_of(rate, rates)})

    def best(self, device: DeviceInfo) -> dict[str, float]:
        """Return a device's highest rate of each unit, or nothing if it was never calibrated."""
        return best_rates(self.list(device))

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Return the devices that have stored rates, by name."""
        statement = select(devices).where(devices.c.id.in_(select(rates.c.device_id))).order_by(devices.c.name)
        with self.database.read() as connection:
            return tuple(device_of(row) for row in connection.execute(statement).mappings())

    def list(self, device: DeviceInfo) -> tuple[Rate, ...]:
        """Return a device's rates of each unit, for every method used in the unit's latest calibration.

        Imported rates are used only if there are no others. Units are in the order they were first stored.
        """
        statement = (
            select(rates).join(devices).where(*same_device(device)).order_by(rates.c.origin == "measured", rates.c.id)
        )
        latest: dict[str, tuple[str, datetime]] = {}
        found: dict[str, dict[str, Rate]] = {}
        with self.database.read() as connection:
            for row in rows_of(connection, statement):
                rate, calibration = record_of(Rate, row, rates), (row[rates.c.origin], row[rates.c.measured_at])
                if latest.get(rate.unit) != calibration:
                    latest[rate.unit] = calibration
                    found[rate.unit] = {}
                found[rate.unit][rate.method] = rate
        return tuple(rate for methods in found.values() for rate in methods.values())


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The smallest difference between times that a device can resolve, as measured by A/A runs."""

    noise_us: float
    noise_fraction: float
    measured_at: datetime


@dataclass(frozen=True, slots=True)
class NoiseFloorStore:
    """Stores and reads devices' noise floors."""

    database: Database

    def add(
        self,
        device: DeviceInfo,
        environment: Environment,
        measurement_mode: str,
        noise_us: float,
        noise_fraction: float,
    ) -> None:
        """Store a device's noise floor, measured by A/A runs."""
        with self.database.write() as connection:
            shared = measured_on(connection, device, environment, self.database.now())
            values: Values = {
                "measurement_mode": measurement_mode,
                "noise_us": noise_us,
                "noise_fraction": noise_fraction,
            }
            insert(connection, noise_floors, {**shared, **values})

    def latest(self, device: DeviceInfo, measurement_mode: str) -> NoiseFloor | None:
        """Return a device's latest noise floor in a measurement mode, or an imported one if there is no other."""
        statement = (
            select(noise_floors)
            .join(devices)
            .where(noise_floors.c.measurement_mode == measurement_mode, *same_device(device))
            .order_by(noise_floors.c.origin == "imported", noise_floors.c.id.desc())
            .limit(1)
        )
        with self.database.read() as connection:
            row = next(rows_of(connection, statement), None)
            return None if row is None else record_of(NoiseFloor, row, noise_floors)
