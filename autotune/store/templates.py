"""Kernel families as they were when trials were made with them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Table, UniqueConstraint, and_, select

from autotune.store.column_types import Values, metadata, row_id, text
from autotune.store.sqlite.database import Database
from autotune.store.statements import chunks, insert
from autotune.store.unreadable import reading
from autotune.trial import Value

templates = Table(
    "templates",
    metadata,
    row_id(),
    text("family"),
    text("hash"),
    text("header"),
    text("first_seen_at"),
    UniqueConstraint("family", "hash"),
)


@dataclass(frozen=True, slots=True)
class TemplateRecord:
    """A kernel family as it was when trials were made with it."""

    family: str
    hash: str
    """of the template's text with everything it includes"""
    header: str
    """the header's text as written"""


def header_params(header: str) -> Mapping[str, Sequence[Value]]:
    """The values of each parameter that a header declares. Raises what NOT_UNDERSTOOD names for what is none."""
    params: dict[str, Sequence[Value]] = {}
    for name, param in tomllib.loads(header).get("params", {}).items():
        params[name] = list(param["values"])
        if not all(isinstance(value, Value) for value in params[name]):
            raise TypeError(f"the values of {name} are no numbers, words and flags")
    return params


def store_templates(connection: Connection, records: Sequence[TemplateRecord], now: str) -> tuple[int, ...]:
    """Ids of templates' versions."""
    kept = select(templates.c.family, templates.c.hash, templates.c.id)
    found: dict[tuple[str, str], int] = {}
    for some in chunks([record.hash for record in records]):
        found |= {(row.family, row.hash): row.id for row in connection.execute(kept.where(templates.c.hash.in_(some)))}
    for record in records:
        identity = record.family, record.hash
        if identity not in found:
            row: Values = {"family": record.family, "hash": record.hash, "header": record.header, "first_seen_at": now}
            found[identity] = insert(connection, templates, row)
    return tuple(found[record.family, record.hash] for record in records)


@dataclass(frozen=True, slots=True)
class TemplateStore:
    """The kernel families, version by version."""

    database: Database

    @reading
    def families(self) -> frozenset[str]:
        """The families that there are trials of, or were."""
        with self.database.read() as connection:
            return frozenset(connection.execute(select(templates.c.family)).scalars())

    @reading
    def header(self, family: str, template_hash: str) -> str:
        """The header of a family as it was when trials were made with it; empty for one that is not stored."""
        same = and_(templates.c.family == family, templates.c.hash == template_hash)
        with self.database.read() as connection:
            return connection.execute(select(templates.c.header).where(same)).scalar_one_or_none() or ""

    @reading
    def params(self, family: str, template_hash: str) -> Mapping[str, Sequence[Value]]:
        """The values of each parameter that the family declared by then; none for one that is not stored."""
        header = self.header(family, template_hash)
        with self.database.understanding():
            return header_params(header)
