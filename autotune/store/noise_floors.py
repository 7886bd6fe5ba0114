"""Noise floors: the smallest differences that devices' measurements can tell."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Table, select

from autotune.devices.device import DeviceInfo, Environment
from autotune.errors import StoreError
from autotune.store.column_types import Values, date_of, finite, metadata, real, reference, row_id, text
from autotune.store.devices import devices, measured_on, same_device
from autotune.store.sqlite.database import Database
from autotune.store.statements import insert, tuples_of
from autotune.store.unreadable import reading

noise_floors = Table(
    "noise_floors",
    metadata,
    row_id(),
    reference("device_id", "devices.id"),
    reference("environment_id", "environments.id"),
    text("policy"),
    real("noise_us"),
    real("noise_fraction"),
    text("measured_at"),
    text("origin"),
)


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The smallest difference that a device's measurements can tell, from A/A runs."""

    noise_us: float
    noise_fraction: float
    measured_at: datetime


@dataclass(frozen=True, slots=True)
class NoiseFloorStore:
    """The smallest differences that devices' measurements can tell."""

    database: Database

    def add(
        self, device: DeviceInfo, environment: Environment, policy: str, noise_us: float, noise_fraction: float
    ) -> None:
        """Store the smallest difference that the device's measurements can tell, from A/A runs."""
        if finite(noise_us) is None or finite(noise_fraction) is None:
            raise StoreError(f"noise floor {noise_us} us, {noise_fraction}: expected finite numbers")
        with self.database.write() as connection:
            shared = measured_on(connection, device, environment, self.database.now())
            values: Values = {"policy": policy, "noise_us": noise_us, "noise_fraction": noise_fraction}
            insert(connection, noise_floors, {**shared, **values})

    @reading
    def latest(self, device: DeviceInfo, policy: str) -> NoiseFloor | None:
        """The device's latest noise floor under a policy; an imported one where there is no other."""
        statement = (
            select(noise_floors.c.noise_us, noise_floors.c.noise_fraction, noise_floors.c.measured_at)
            .join(devices)
            .where(noise_floors.c.policy == policy, *same_device(device))
            .order_by(noise_floors.c.origin == "imported", noise_floors.c.id.desc())
            .limit(1)
        )
        with self.database.read() as connection:
            for noise_us, noise_fraction, measured_at in tuples_of(connection, statement):
                return NoiseFloor(noise_us, noise_fraction, date_of(measured_at))
        return None
