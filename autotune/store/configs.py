"""A config's JSON, as `trials` keeps it, to a config."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import orjson

from autotune.errors import shortened
from autotune.trial import Config, Value


def config_from(family: str, text: str) -> Config:
    """A family's config from its JSON. Raises ValueError for what is none."""
    return Config(family, tuple(config_values(text).items()))


def config_values(text: str) -> Mapping[str, Value]:
    """The parameters of a config's JSON. Raises ValueError for what is none."""
    values = _read(text)
    if not isinstance(values, dict) or not _are_plain(values.values()):
        raise ValueError(f"config {shortened(text)} is not an object of numbers, words and flags")
    return values


_PLAIN = frozenset((str, bool, float, int))
_LARGE = 2**63


def _read(text: str) -> object:
    """JSON as Python reads it: orjson makes whole numbers beyond 64 bits floats, and refuses lone surrogates."""
    try:
        values = orjson.loads(text)
    except ValueError:
        return json.loads(text)
    if not isinstance(values, dict) or float not in map(type, values.values()):
        return values
    large = any(type(value) is float and abs(value) >= _LARGE for value in values.values())
    return json.loads(text) if large else values


def _are_plain(values: Collection[object]) -> bool:
    if not _PLAIN.issuperset(map(type, values)):
        return False
    return not [value for value in values if type(value) is int and not -_LARGE < value < _LARGE]
