"""The kinds of columns: the Python value, and what a STRICT table of SQLite stores."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import INTEGER, TEXT
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

Values = dict[str, Any]
"""Column to value, for an insert or an update."""


def escaped(text: str) -> str:
    """Text that every reader of the file can read: NUL and characters that UTF-8 cannot encode become escapes."""
    if text.isprintable() and text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


class Text(TypeDecorator[str]):
    """Text, stored as `escaped` returns it."""

    impl = TEXT
    cache_ok = True

    @property
    def python_type(self) -> type[str]:
        return str

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else escaped(value)


class Flag(TypeDecorator[bool]):
    """0 or 1."""

    impl = INTEGER
    cache_ok = True

    @property
    def python_type(self) -> type[bool]:
        return bool

    def process_bind_param(self, value: bool | None, dialect: Dialect) -> int | None:  # noqa: ARG002, FBT001
        return None if value is None else int(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> bool | None:  # noqa: ARG002
        return None if value is None else bool(value)


class Date(TypeDecorator[datetime]):
    """A date, stored as ISO 8601 in UTC, always with microseconds, so that text sorts as time."""

    impl = TEXT
    cache_ok = True

    @property
    def python_type(self) -> type[datetime]:
        return datetime

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else date_text(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else datetime.fromisoformat(value)


class Json(TypeDecorator[Any]):
    """A JSON object or array, in Python a dict or a tuple."""

    impl = TEXT
    cache_ok = True

    @property
    def python_type(self) -> type[Any]:
        return object

    def process_bind_param(self, value: object, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else as_json(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        found = None if value is None else json.loads(value)
        return tuple(found) if isinstance(found, list) else found


def as_json(value: object) -> str:
    """JSON without blanks, in ASCII."""
    return json.dumps(value, separators=(",", ":"))


def date_text(date: datetime) -> str:
    """The text of a date."""
    return date.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


_BETWEEN = "\n\n"


def paragraphs_of(text: str) -> list[str]:
    """The parts between blank lines; joined by blank lines they are the text again."""
    return text.split(_BETWEEN)


def joined(paragraphs: list[str]) -> str:
    """The text that `paragraphs_of` has split."""
    return _BETWEEN.join(paragraphs)


def paragraph_id(paragraph: str) -> int:
    """The first 63 bits of its SHA-256."""
    return int.from_bytes(hashlib.sha256(paragraph.encode()).digest()[:8], "big") >> 1


def seven_digits(time_us: float) -> float:
    """A time in the precision of CUDA's event timer, whose milliseconds are a float32."""
    return float(f"{time_us:.7g}")
