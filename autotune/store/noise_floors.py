"""Noise floors: the smallest differences that measurements on a device can resolve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from autotune.devices.device import DeviceInfo, Environment
from autotune.errors import StoreError
from autotune.store.devices import measured_on, same_device
from autotune.store.rows import insert, record_of, rows_of
from autotune.store.schema.tables import devices, noise_floors
from autotune.store.schema.types import Values
from autotune.store.sqlite.database import Database


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The smallest difference that measurements on a device can resolve, from A/A runs."""

    noise_us: float
    noise_fraction: float
    measured_at: datetime


@dataclass(frozen=True, slots=True)
class NoiseFloorStore:
    """The noise floors of devices."""

    database: Database

    def add(
        self,
        device: DeviceInfo,
        environment: Environment,
        measurement_mode: str,
        noise_us: float,
        noise_fraction: float,
    ) -> None:
        """Store the noise floor of the device, from A/A runs."""
        if not (math.isfinite(noise_us) and math.isfinite(noise_fraction)):
            raise StoreError(f"noise floor {noise_us} us, {noise_fraction}: expected finite numbers")
        with self.database.write() as connection:
            shared = measured_on(connection, device, environment, self.database.now())
            values: Values = {
                "measurement_mode": measurement_mode,
                "noise_us": noise_us,
                "noise_fraction": noise_fraction,
            }
            insert(connection, noise_floors, {**shared, **values})

    def latest(self, device: DeviceInfo, measurement_mode: str) -> NoiseFloor | None:
        """The device's latest noise floor in a measurement mode; an imported one only if there is no other."""
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
