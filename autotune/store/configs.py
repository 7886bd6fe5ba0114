"""A config's JSON, as `trials` keeps it, to a config."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import lru_cache

import orjson

from autotune.errors import shortened
from autotune.trial import Config, Value


def config_from(family: str | None, text: str) -> Config:
    """A family's config from its JSON. Raises ValueError for what is none, and for that of no family."""
    if family is None:
        raise ValueError(f"config {shortened(text)} is of a family that is not there")
    return Config(family, tuple(config_values(text).items()))


def config_values(text: str) -> Mapping[str, Value]:
    """The parameters of a config's JSON. Raises ValueError for what is none."""
    try:
        values: Mapping[str, Value] = orjson.loads(text)
    except ValueError:  # of a lone surrogate as well
        return _checked(text, json.loads(text))
    return values if surely_plain(text.encode()) else _checked(text, _exact(text, values))


def _checked(text: str, values: object) -> Mapping[str, Value]:
    if not isinstance(values, dict) or not _are_plain(values.values()):
        raise ValueError(f"config {shortened(text)} is not an object of numbers, words and flags")
    return values


_PLAIN = frozenset((str, bool, float, int))
_LARGE = 2**63
_KEPT = 4096  # forms of configs whose check is remembered
DIGITS = bytes.maketrans(b"123456789", b"000000000")
"""each digit to 0"""
LONG = b"0" * 19
"""the fewest digits of a whole number that may be beyond 64 bits"""


def _exact(text: str, values: object) -> object:
    """JSON as Python reads it, given what orjson made of it: floats of whole numbers beyond 64 bits."""
    if not isinstance(values, dict) or float not in map(type, values.values()):
        return values
    large = any(type(value) is float and abs(value) >= _LARGE for value in values.values())
    return json.loads(text) if large else values


def _are_plain(values: Collection[object]) -> bool:
    if not _PLAIN.issuperset(map(type, values)):
        return False
    return not [value for value in values if type(value) is int and not -_LARGE < value < _LARGE]


def surely_plain(text: bytes) -> bool:
    """Whether JSON is surely an object of words, flags and numbers that SQLite and all readers of JSON keep alike."""
    return _seems_plain(text.translate(DIGITS))


@lru_cache(_KEPT)
def _seems_plain(zeros: bytes) -> bool:
    """The same of its form: many configs differ in nothing but their digits."""
    odd = (b"[", b"null", b"0e", b"0E", LONG, b"\0")
    return zeros.isascii() and zeros[:1] == b"{" and zeros.count(b"{") == 1 and not any(text in zeros for text in odd)
