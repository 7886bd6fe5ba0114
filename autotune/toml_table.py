"""Read a table of a TOML or JSON file key by key. Errors give the file, the dotted key, and what to write there.

`Table` is used for study files, template headers and recorded search spaces. Each kind of file has its own error class.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from autotune.errors import AutotuneError, shortened
from autotune.text_file import Raises

LARGEST = 2**63 - 1  # largest integer in SQLite
_SHOWN = 40  # maximum number of characters shown of a JSON value of the wrong type
_MESSAGE_SHOWN = 400  # maximum number of characters of an error after the dotted key


def is_whole(word: str, least: int, most: int) -> bool:
    """Return whether a word is an integer in a range, written in digits (Python refuses to parse very long ones)."""
    return word.isascii() and word.isdecimal() and len(word) <= len(str(most)) and least <= int(word) <= most


@dataclass(frozen=True, slots=True)
class Table:
    """Values by key. For an invalid value, every method raises the error class of this kind of file."""

    content: Mapping[str, object]
    raises: Raises
    file: str
    key: str = ""
    """dotted key of the table in the file; empty for the file itself"""

    def error(self, key: str, what: str) -> AutotuneError:
        """Return an error about one of this table's keys."""
        return self.raises(f"{self.file}: {self.path(key)}: {shortened(what, _MESSAGE_SHOWN)}")

    def path(self, key: str) -> str:
        """Return the dotted key, as seen from the whole file, of one of this table's keys."""
        return shortened(f"{self.key}.{key}" if self.key else key)

    def __contains__(self, key: str) -> bool:
        return key in self.content

    def get(self, key: str, default: object = None) -> object:
        """Return a value of any kind."""
        return self.content.get(key, default)

    def allow(self, keys: Collection[str]) -> None:
        """Raise an error for the first unknown key, suggesting the most similar known one."""
        for key in self.content:
            if key not in keys:
                raise self.error(key, f"unknown key{did_you_mean(key, keys)}; known keys are {', '.join(sorted(keys))}")

    def require(self, keys: Iterable[str], what: str = "missing") -> None:
        """Raise an error if one of these keys is missing."""
        for key in keys:
            if key not in self.content:
                raise self.error(key, what)

    # One value.

    def whole(self, key: str, default: int, *, least: int) -> int:
        """Read an integer that is at least `least` and that SQLite can store."""
        value = self.content.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"expected a whole number, got {value!r}")
        if value < least:
            raise self.error(key, f"{value} is too small: expected at least {least}")
        if value > LARGEST:
            raise self.error(key, f"{value} is too large: expected at most {LARGEST}")
        return value

    def word(self, key: str, default: str) -> str:
        """Read a string."""
        value = self.content.get(key, default)
        if not isinstance(value, str):
            raise self.error(key, f"expected a string, got {value!r}")
        return value

    def words(self, key: str) -> tuple[str, ...]:
        """Read a string or a list of strings, dropping duplicates."""
        value = self.content.get(key)
        several = value if isinstance(value, list) else [value]
        words = [word for word in several if isinstance(word, str)]
        if not words or len(words) < len(several):
            raise self.error(key, f"expected a string or a list of strings, got {value!r}")
        return tuple(dict.fromkeys(words))

    def flag(self, key: str, *, default: bool) -> bool:
        """Read a boolean."""
        value = self.content.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, got {value!r}")
        return value

    def fraction(self, key: str) -> float | None:
        """Read a number between 0 and 1, exclusive, or None if the key is missing."""
        value = self.content.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
            raise self.error(key, f"expected a fraction between 0 and 1, got {value!r}")
        return float(value)

    def seconds(self, key: str) -> float | None:
        """Read a positive number of seconds, or None if the key is missing."""
        value = self.content.get(key)
        if value is None:
            return None
        if not is_time(value):
            raise self.error(key, f"expected seconds above 0, got {value!r}")
        return float(value)

    # Tables and lists.

    def table(self, key: str, expected: str) -> Table:
        """Read a table, or return an empty one if the key is missing. `expected` describes a valid value in the
        error.
        """
        return self.below(key, self.content.get(key, {}), expected)

    def tables(self, key: str, expected: str, *, label: str = "") -> tuple[Table, ...]:
        """Read a list of tables. Errors refer to each one as `key[index]`, followed by its `label` in parentheses."""
        value = self.content.get(key, [])
        if not isinstance(value, list):
            raise self.error(key, expected)
        found = []
        for index, item in enumerate(value):
            if not isinstance(item, dict):
                raise self.error(key, expected)
            named = item.get(label)
            found.append(self.below(f"{key}[{index}]{f' ({named})' if isinstance(named, str) else ''}", item, expected))
        return tuple(found)

    def below(self, key: str, value: object, expected: str) -> Table:
        """Return a value as a table nested in this one."""
        if not isinstance(value, Mapping):
            raise self.error(key, expected)
        return Table(value, self.raises, self.file, self.path(key))

    def array(self, key: str) -> Sequence[object]:
        """Read a list from a JSON file."""
        value = self.content.get(key)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.error(key, f"expected an array, found {shortened(json.dumps(value), _SHOWN)}")
        return value


def read_toml(text: str, raises: Raises, file: str, *, what: str = "", first: int = 0) -> Table:
    """Parse TOML text. If it is only part of a file, `what` describes that part and `first` counts the lines
    before it.
    """
    try:
        return Table(tomllib.loads(text), raises, file)
    except tomllib.TOMLDecodeError as error:
        message = re.sub(r"at line (\d+)", lambda found: f"at line {int(found.group(1)) + first}", str(error))
        raise raises(f"{file}: {what}is not TOML: {message}") from None


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Suggest the most similar allowed word, in parentheses, or return "" if none is similar."""
    close = difflib.get_close_matches(word, list(allowed), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def is_time(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a positive number that fits into a float."""
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 < value <= sys.float_info.max
