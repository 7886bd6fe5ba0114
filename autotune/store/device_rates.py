"""Rates: what a device does per second, such as bytes copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from autotune.devices.device import DeviceInfo, Environment
from autotune.errors import StoreError
from autotune.escape import one_line
from autotune.measurement.rates import Rate, best_rates
from autotune.store.devices import device_of, measured_on, same_device
from autotune.store.rows import insert, record_of, rows_of, values_of
from autotune.store.schema.tables import devices, rates
from autotune.store.sqlite.database import Database
from autotune.trial import is_measured


@dataclass(frozen=True, slots=True)
class RateStore:
    """The calibrated rates of devices."""

    database: Database

    def add(self, device: DeviceInfo, environment: Environment, measured: Sequence[Rate]) -> None:
        """Store the rates of a device that were measured together; they replace earlier rates of these units."""
        with self.database.write() as connection:
            shared = measured_on(connection, device, environment, self.database.now())
            for rate in measured:
                if not is_measured(rate.per_s):
                    raise StoreError(
                        f"rate {one_line(rate.unit)} = {rate.per_s}: expected a positive finite number per second"
                    )
                insert(connection, rates, {**shared, **values_of(rate, rates)})

    def best(self, device: DeviceInfo) -> dict[str, float]:
        """The highest rate of each unit of a device; empty if it was never calibrated."""
        return best_rates(self.list(device))

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The names of the devices that have stored rates."""
        statement = select(devices).where(devices.c.id.in_(select(rates.c.device_id))).order_by(devices.c.name)
        with self.database.read() as connection:
            return tuple(device_of(row) for row in connection.execute(statement).mappings())

    def list(self, device: DeviceInfo) -> tuple[Rate, ...]:
        """A device's rates of each unit, by every method of its latest calibration.

        Imported rates are used only if there are no others. Units are in the order in which they were first stored.
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
