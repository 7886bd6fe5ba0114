"""Devices, environments, runs, and what was measured of devices themselves."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from autotune.store.schema.base import Base, Id, is_date, is_json, is_measured, is_one_of, table


class Device(Base):
    __tablename__ = "devices"
    __table_args__ = table(
        is_date("first_seen_at"),
        UniqueConstraint("kind", "name", "arch", "sm_count", "memory_bytes"),
        is_json("grid_limits", "array"),
        is_json("block_limits", "array"),
        comment="kind, name, arch, sm_count and memory_bytes identify a device, the rest are its limits.",
    )
    id: Mapped[Id]
    kind: Mapped[str] = mapped_column(comment="cuda, host or null; kinds are never compared with each other")
    name: Mapped[str]
    arch: Mapped[int] = mapped_column(comment="compute capability times ten")
    sm_count: Mapped[int]
    memory_bytes: Mapped[int]
    max_threads_per_block: Mapped[int]
    smem_per_block_bytes: Mapped[int]
    smem_per_sm_bytes: Mapped[int]
    registers_per_sm: Mapped[int]
    max_warps_per_sm: Mapped[int]
    max_blocks_per_sm: Mapped[int]
    constant_bytes: Mapped[int]
    l2_bytes: Mapped[int]
    grid_limits: Mapped[tuple[int, ...]] = mapped_column(comment="JSON array: x, y, z")
    block_limits: Mapped[tuple[int, ...]]
    first_seen_at: Mapped[datetime]


class Environment(Base):
    __tablename__ = "environments"
    __table_args__ = table(
        is_date("first_seen_at"),
        UniqueConstraint("driver", "toolkit", "flags"),
        comment="What a measurement depends on besides its device; a change makes results doubtful, not foreign.",
    )
    id: Mapped[Id]
    driver: Mapped[str]
    toolkit: Mapped[str] = mapped_column(comment="compiler name and version")
    flags: Mapped[str] = mapped_column(comment="compiler flags that every kernel gets")
    first_seen_at: Mapped[datetime]


class Run(Base):
    __tablename__ = "runs"
    __table_args__ = table(
        is_date("started_at"), is_json("attributes"), comment="One process that tuned into this file on one device."
    )
    id: Mapped[Id]
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    attributes: Mapped[Mapping[str, Any]] = mapped_column(
        comment="JSON object: device uuid, clocks, host name, library versions"
    )
    autotune_version: Mapped[str]
    started_at: Mapped[datetime]


class NoiseFloor(Base):
    __tablename__ = "noise_floors"
    __table_args__ = table(
        is_date("measured_at"),
        Index("noise_floors_device", "device_id", "measurement_mode"),
        is_one_of("origin", ("measured", "imported")),
        comment="The smallest difference that a device's measurements can resolve.",
    )
    id: Mapped[Id]
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    measurement_mode: Mapped[str]
    noise_us: Mapped[float]
    noise_fraction: Mapped[float]
    measured_at: Mapped[datetime]
    origin: Mapped[str] = mapped_column(
        comment="imported ones count where there is no other", server_default="measured"
    )


class Rate(Base):
    __tablename__ = "rates"
    __table_args__ = table(
        is_date("measured_at"),
        Index("rates_device", "device_id", "unit"),
        is_one_of("origin", ("measured", "imported")),
        is_measured("per_s"),
        comment="What a device was measured to do, by `autotune devices --calibrate`.",
    )
    id: Mapped[Id]
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    unit: Mapped[str] = mapped_column(comment="copy, fill, or an arithmetic such as fp32")
    method: Mapped[str] = mapped_column(comment="how it was measured; the best of one calibration's methods counts")
    per_s: Mapped[float] = mapped_column(comment="bytes for copy and fill, else floating-point operations")
    measured_at: Mapped[datetime]
    origin: Mapped[str] = mapped_column(
        comment="imported ones count where there is no other", server_default="measured"
    )
