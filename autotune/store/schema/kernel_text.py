"""Store a kernel's text as paragraphs. Kernels share most paragraphs, so each one is stored only once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from autotune.store.schema.column_kinds import escaped

_BETWEEN = "\n\n"

ExecuteMany = Callable[[str, Sequence[tuple[Any, ...]]], object]
"""Executes an SQL statement for each row."""


def store_text(execute_many: ExecuteMany, source_id: int, text: str) -> None:
    """Store a kernel's text.

    This uses plain SQL, because SQLAlchemy takes longer to bind a hundred paragraphs than SQLite takes to store them.
    """
    parts = escaped(text).split(_BETWEEN)
    ids = [_paragraph_id(part) for part in parts]
    execute_many("INSERT OR IGNORE INTO paragraphs (id, text) VALUES (?, ?)", list(zip(ids, parts, strict=True)))
    places = [(source_id, position, part_id) for position, part_id in enumerate(ids)]
    execute_many("INSERT INTO source_paragraphs (source_id, position, paragraph_id) VALUES (?, ?, ?)", places)


def joined(paragraphs: Sequence[str]) -> str:
    """Join paragraphs into a kernel's text."""
    return _BETWEEN.join(paragraphs)


_KEPT = 1 << 14  # number of paragraph ids that a process caches


@lru_cache(_KEPT)
def _paragraph_id(paragraph: str) -> int:
    """Return the first 63 bits of a paragraph's SHA-256."""
    return int.from_bytes(hashlib.sha256(paragraph.encode()).digest()[:8], "big") >> 1
