"""Rates: what devices do per second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Table, select

from autotune.devices.device import DeviceInfo, Environment
from autotune.errors import StoreError
from autotune.measurement.rates import Rate, best_rates
from autotune.printable import one_line
from autotune.store.column_types import metadata, real, reference, row_id, text
from autotune.store.devices import device_of, devices, measured_on, same_device
from autotune.store.sqlite.database import Database
from autotune.store.statements import insert, tuples_of
from autotune.store.unreadable import reading
from autotune.trial import is_measured

rates = Table(
    "rates",
    metadata,
    row_id(),
    reference("device_id", "devices.id"),
    reference("environment_id", "environments.id"),
    text("name"),
    real("per_s"),
    text("measured_at"),
    text("origin"),
    text("method"),
)


@dataclass(frozen=True, slots=True)
class RateStore:
    """What devices do per second, as calibrations measured it."""

    database: Database

    def add(self, device: DeviceInfo, environment: Environment, measured: Sequence[Rate]) -> None:
        """Store what a device does per second, measured together; earlier rates of these units count no more."""
        with self.database.write() as connection:
            shared = measured_on(connection, device, environment, self.database.now())
            for rate in measured:
                if not is_measured(rate.per_s):
                    raise StoreError(
                        f"rate {one_line(rate.unit)} = {rate.per_s}: expected a positive finite number per second"
                    )
                insert(connection, rates, {**shared, "name": rate.unit, "method": rate.method, "per_s": rate.per_s})

    def best(self, device: DeviceInfo) -> dict[str, float]:
        """The best of a device's rates of each unit; empty when never calibrated."""
        return best_rates(self.list(device))

    @reading
    def devices(self) -> tuple[DeviceInfo, ...]:
        """The devices that rates are stored of, by their names."""
        statement = select(devices).where(devices.c.id.in_(select(rates.c.device_id))).order_by(devices.c.name)
        with self.database.read() as connection:
            return tuple(device_of(row) for row in connection.execute(statement).mappings())

    @reading
    def list(self, device: DeviceInfo) -> tuple[Rate, ...]:
        """A device's rates of each unit, by every method of its latest calibration.

        Imported ones count where there is no other. Units stand in the order in which they were first stored.
        """
        statement = (
            select(rates.c.name, rates.c.method, rates.c.per_s, rates.c.origin, rates.c.measured_at)
            .join(devices)
            .where(*same_device(device))
            .order_by(rates.c.origin == "measured", rates.c.id)
        )
        latest: dict[str, tuple[str, str]] = {}
        found: dict[str, dict[str, Rate]] = {}
        with self.database.read() as connection:
            for name, method, per_s, origin, measured_at in tuples_of(connection, statement):
                if not is_measured(per_s):
                    raise ValueError(f"{per_s} per second is no rate")
                if latest.get(name) != (origin, measured_at):
                    latest[name] = (origin, measured_at)
                    found[name] = {}
                found[name][method] = Rate(name, method, per_s)
        return tuple(rate for methods in found.values() for rate in methods.values())
