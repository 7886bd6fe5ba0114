"""A recorded search space read from a file of either format, plain or gzip-compressed."""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import cast

from autotune.bounded_io import decoded, larger, read_bytes
from autotune.errors import StudyError, quoted, shortened
from autotune.interchange.recorded_space import (
    FAILURES,
    OTHER_FAILURE,
    Json,
    Record,
    Recording,
    recording_of,
    timed,
    value_of,
)
from autotune.interchange.t4 import read_t4
from autotune.toml_table import Table

MOST_DIGITS = 300
"""Of a whole number, which must also be a float."""
MOST_BYTES = 1 << 28
"""Of a file's text, unpacked: some 300,000 configs."""
MOST_VALUES = 10_000_000
"""In a file: an empty list takes three bytes there, and 72 in memory."""


def read_recording(path: Path) -> Recording:
    """Read a Kernel Tuner cache file or a T4 result file, plain or gzip-compressed.

    Raises StudyError with the path when the file cannot be read, is neither format, or records no correct config.
    """
    document = Table({}, StudyError, str(path)).entry("the file", _parse(path, _text(path)))
    document = replace(document, key="")
    if "cache" in document:
        return read_cache(path, document)
    if "results" in document:
        return read_t4(path, document)
    raise StudyError(
        f"{path}: neither a Kernel Tuner cache file (no key `cache`) nor a T4 result file (no key `results`)"
    )


def _text(path: Path) -> str:
    content = read_bytes(path, StudyError, MOST_BYTES)
    if content[:2] == b"\x1f\x8b":
        try:
            with gzip.open(BytesIO(content)) as packed:
                content = packed.read(MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise StudyError(f"{path}: cannot be read: {error}") from error
        if len(content) > MOST_BYTES:
            raise StudyError(f"{path}: unpacked {larger(MOST_BYTES)}")
    if sum(map(content.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise StudyError(f"{path}: has more than {MOST_VALUES} values, which is not a recording of a search space")
    return decoded(content, StudyError, str(path))


def _parse(path: Path, text: str) -> Json:
    """The JSON document; a cache file that was never closed ends in a comma and lacks its last brackets."""
    try:
        return _json(text)
    except RecursionError:
        raise StudyError(f"{path}: nested too deeply to be a recording") from None
    except _NoNumber as error:
        raise StudyError(f"{path}: {error}") from None
    except json.JSONDecodeError as error:
        body = text.rstrip().removesuffix(",")
        for closing in ("}}", "}", "]}"):
            with contextlib.suppress(json.JSONDecodeError):
                return _json(body + closing)
        raise StudyError(f"{path}:{error.lineno}: not JSON: {error.msg} (column {error.colno})") from error


class _NoNumber(Exception):
    """A number in the file that cannot be one of a recording."""


def _json(text: str) -> Json:
    document: Json = json.loads(text, parse_int=_integer)
    return document


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise _NoNumber(f"a number of {len(digits)} digits: {shortened(digits, 20)}; expected at most {MOST_DIGITS}")
    return int(digits)


_US_PER_MS = 1e3


def read_cache(path: Path, document: Table) -> Recording:
    """The space of a cache file. Raises StudyError where it is none."""
    names = [str(name) for name in document.array("tune_params_keys")]
    if len(set(names)) < len(names):
        raise document.error("tune_params_keys", f"names a parameter twice: {', '.join(names)}")
    declared = document.entry("tune_params", document.get("tune_params"))
    params = [(name, cast("Sequence[Json]", declared.array(name))) for name in names]
    objective = str(document.get("objective") or "time")
    if objective != "time":
        raise StudyError(f"{path}: objective = {quoted(objective)}: only recordings of `time` can be replayed")
    records = []
    for key, entry in document.entry("cache", document.get("cache")).content.items():
        record = document.entry(f"cache[{key!r}]", entry)
        values = {name: value_of(cast("Json", record.get(name))) for name in names if name in record}
        time = record.get("time")
        if isinstance(time, bool) or not isinstance(time, int | float | str):
            raise document.error(record.key, f"`time` is {time!r}: expected milliseconds or a failure's name")
        if isinstance(time, str):
            records.append(Record(values, None, FAILURES.get(time, OTHER_FAILURE)))
        else:
            records.append(timed(values, time, _US_PER_MS))
    template = str(document.get("kernel_name") or path.name)
    return recording_of(str(path), template, str(document.get("device_name") or "unknown"), params, records)
