"""Quarantine: sources that must not be launched again, because two runs ended while they were running."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, select

from autotune.store.rows import insert, record_of, rows_of
from autotune.store.run_context import Scope
from autotune.store.schema.column_kinds import Values
from autotune.store.schema.tables import devices, environments, quarantine, sources
from autotune.store.sqlite.database import Database


@dataclass(frozen=True, slots=True)
class QuarantineRow:
    """A source that must not be launched again on this device in this environment."""

    source_hash: str
    device: str
    driver: str
    toolkit: str
    reason: str
    message: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class QuarantineStore:
    """Stores and lists quarantined sources."""

    database: Database

    def add(self, scope: Scope, source_hash: str, reason: str, message: str) -> None:
        """Quarantine a stored source on the scope's device and in its environment. Only the latest reason is kept."""
        with self.database.write() as connection:
            identity: Values = {
                "device_id": scope.device_id,
                "environment_id": scope.environment_id,
                "source_id": connection.execute(select(sources.c.id).where(sources.c.hash == source_hash)).scalar_one(),
            }
            why: Values = {"reason": reason, "message": message, "created_at": self.database.now()}
            same = (quarantine.c[name] == value for name, value in identity.items())
            connection.execute(delete(quarantine).where(*same))
            insert(connection, quarantine, {**identity, **why})

    def hashes(self, scope: Scope) -> frozenset[str]:
        """Return the hashes of sources that must not be launched on the scope's device and in its environment."""
        statement = (
            select(sources.c.hash)
            .join(quarantine)
            .where(quarantine.c.device_id == scope.device_id, quarantine.c.environment_id == scope.environment_id)
        )
        with self.database.read() as connection:
            return frozenset(connection.execute(statement).scalars())

    def list(self) -> tuple[QuarantineRow, ...]:
        """List every quarantined source with its device and environment, latest first."""
        statement = (
            select(sources.c.hash, devices.c.name, environments, quarantine)
            .select_from(quarantine)
            .join(sources)
            .join(devices)
            .join(environments)
            .order_by(quarantine.c.id.desc())
        )
        with self.database.read() as connection:
            return tuple(
                record_of(
                    *(QuarantineRow, row, quarantine, environments),
                    source_hash=row[sources.c.hash],
                    device=row[devices.c.name],
                )
                for row in rows_of(connection, statement)
            )

    def clear(self) -> None:
        """Release all sources from quarantine."""
        with self.database.write() as connection:
            connection.execute(delete(quarantine))
