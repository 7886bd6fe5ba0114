"""Versions of kernel families, as they were when trials used them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, and_, select

from autotune.store.rows import among, insert, values_of
from autotune.store.schema.tables import templates
from autotune.store.sqlite.database import Database
from autotune.trial import Value


@dataclass(frozen=True, slots=True)
class TemplateRecord:
    """A kernel family as it was when trials used it."""

    family: str
    hash: str
    """hash of the template's text with all included files"""
    header: str
    """the text of the header"""


def store_templates(connection: Connection, records: Sequence[TemplateRecord], now: datetime) -> tuple[int, ...]:
    """Ids of templates' versions."""
    stored = select(templates).where(among(templates.c.hash, (record.hash for record in records)))
    found = {(row.family, row.hash): int(row.id) for row in connection.execute(stored)}
    for record in records:
        identity = record.family, record.hash
        if identity not in found:
            found[identity] = insert(connection, templates, {**values_of(record, templates), "first_seen_at": now})
    return tuple(found[record.family, record.hash] for record in records)


@dataclass(frozen=True, slots=True)
class TemplateStore:
    """The kernel families, version by version."""

    database: Database

    def families(self) -> frozenset[str]:
        """The families that have or had trials."""
        with self.database.read() as connection:
            return frozenset(connection.execute(select(templates.c.family)).scalars())

    def header(self, family: str, template_hash: str) -> str:
        """The header of a family as it was when trials used it; empty if it is not stored."""
        same = and_(templates.c.family == family, templates.c.hash == template_hash)
        with self.database.read() as connection:
            return connection.execute(select(templates.c.header).where(same)).scalar_one_or_none() or ""

    def params(self, family: str, template_hash: str) -> Mapping[str, Sequence[Value]]:
        """The values of each parameter that the family declared then; empty if it is not stored."""
        params = tomllib.loads(self.header(family, template_hash)).get("params", {})
        return {name: list(param["values"]) for name, param in params.items()}
