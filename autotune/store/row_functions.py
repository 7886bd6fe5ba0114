"""What SQLite calls to check a row where SQL alone does not say what a record would."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache

import orjson

from autotune.errors import StudyError, TemplateError
from autotune.store.column_types import LARGEST, LATEST, date_text
from autotune.store.layers import stored_problem
from autotune.store.packed import unpacked
from autotune.store.sources import check_launches
from autotune.store.templates import header_params

_OURS = (StudyError, TemplateError)
_KEPT = 4096  # texts of launches whose check is remembered


def _flag(test: Callable[..., object]) -> Callable[..., int]:
    """A test that raises what the records raise, as a function of SQL."""

    def flag(*values: object) -> int:
        try:
            test(*values)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, zlib.error, *_OURS):
            return 0
        return 1

    return flag


def _legible(content: bytes) -> str:
    """Text to be shown: the check of one that is not UTF-8 ends with its row."""
    return content.decode("utf-8", "replace")


def _check_utf8(content: bytes) -> None:
    content.decode()


def _is_ascii(content: bytes) -> int:
    """Whether bytes are ASCII without NUL."""
    return content.isascii() and b"\0" not in content


def _are_numbers(content: bytes) -> int:
    """Whether JSON is an array of numbers which SQLite, too, keeps as they are."""
    try:
        numbers = orjson.loads(content)
    except ValueError:
        return 0
    if type(numbers) is not list or not _NUMERIC.issuperset(map(type, numbers)):
        return 0
    return not numbers or (min(numbers) >= -LARGEST and max(numbers) <= LARGEST)


def _is_config(content: bytes) -> int:
    """Whether JSON is an object of words, flags and numbers, each key once, which SQLite, too, keeps as they are."""
    try:
        config = orjson.loads(content)
    except ValueError:
        return 0
    if type(config) is not dict or content.count(b":") != len(config):  # of a key that comes twice orjson keeps one
        return 0
    for value in config.values():
        kind = type(value)
        if kind in _NUMERIC:
            if not -LARGEST <= value <= LARGEST:
                return 0
        elif kind is not str and kind is not bool:
            return 0
    return 1


def _are_dates(*contents: bytes | None) -> int:
    """Whether all, but for NULL, are dates as `date_text` writes them."""
    for content in contents:
        if content is not None:
            if len(content) != _DATE_BYTES or content[5] == _WEEK or content[11:13] > b"23":
                return 0
            if content[10:27:9] != b"T." or content[-1:] != b"Z":
                return 0
            try:
                datetime.fromisoformat(content.decode("ascii"))
            except ValueError:
                return 0
    return 1


_DATE_BYTES, _WEEK = len(date_text(LATEST)), ord("W")
_NUMERIC = frozenset((int, float))
FUNCTIONS: dict[str, Callable[..., int | str]] = {
    "legible": _legible,
    "is_problem": _flag(stored_problem),
    "is_header": _flag(header_params),
    "is_launches": lru_cache(_KEPT)(_flag(check_launches)),
    "is_text": _flag(unpacked),
    "is_utf8": _flag(_check_utf8),
    "is_ascii": _is_ascii,
    "are_numbers": _are_numbers,
    "is_config": _is_config,
    "are_dates": _are_dates,
}
