"""Write docs/schema.json, the schema of each command's `--json`: `python -m tests.json_schema > docs/schema.json`.

A key has the same meaning in all commands, so its type is declared once. The unit in the key gives the type of a time
or a rate.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "best": ("best.BEST_COLUMNS",),
    "check": ("check._COLUMNS",),
    "compare": ("best.BEST_COLUMNS",),
    "devices": ("devices._DEVICE_COLUMNS",),
    "devices --rates": ("devices._RATE_COLUMNS",),
    "diff": ("diff._DIFF_COLUMNS",),
    "dispatch": ("dispatch.DISPATCHED",),
    "dispatch --explain": ("dispatch.CHOICES",),
    "dispatch --table kernels": ("dispatch.KERNELS",),
    "dispatch --table rules": ("dispatch._RULES",),
    "dispatch --table ways": ("dispatch._WAYS",),
    "doctor": ("doctor._CHECK_COLUMNS",),
    "history": ("trials._HISTORY_COLUMNS",),
    "importance": ("importance._IMPORTANCE_COLUMNS",),
    "ladder": ("ladder._COLUMNS",),
    "profile": ("profile._COLUMNS",),
    "retime": ("retime._RETIME_COLUMNS",),
    "show": ("trials._SHOW_COLUMNS",),
    "stale": ("retime._STALE_COLUMNS",),
    "studies": ("studies._STUDY_COLUMNS",),
    "templates": ("templates._FAMILY_COLUMNS",),
    "templates NAME": ("templates._PARAM_COLUMNS",),
    "trials": ("trials.TRIAL_COLUMNS",),
    "tune": ("best.BEST_COLUMNS",),
    "tune, end to end": ("summary._END_TO_END",),
    "why": ("why._COLUMNS",),
}
"""command to the columns of its rows; `query` has the columns of the SQL statement"""
OPTIONAL: Mapping[str, str] = {
    "best": "count share rival rival_us verdict network_us network_rival_us network_floor_us",
}
"""optional keys: for the network of a study"""

_LIST = {"type": "array", "items": {"type": ["number", "string", "boolean"]}}
KINDS: Mapping[str, object] = {
    "config": {"type": ["object", "null"], "additionalProperties": {"type": ["number", "string", "boolean"]}},
    "date": {"type": ["string", "null"], "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d:\d\d$"},
    "list": {**_LIST, "type": ["array", "null"]},
    "warps": {"type": ["object", "null"], "additionalProperties": {"type": "number"}},
    "flag": {"type": ["boolean", "null"]},
    "integer": {"type": ["integer", "null"]},
    "number": {"type": ["number", "null"]},
    "value": {"type": ["integer", "string", "boolean", "null"]},
    "text": {"type": ["string", "null"]},
}
_KEYS = {
    "config": "config config_a config_b",
    "date": "date started profiled_at",
    "list": "n occupancy_limits passed_over samples_us values",
    "warps": "launch_shares stalls",
    "flag": "bounds config_changed default_first deterministic reused",
    "integer": "attempts blocks_per_sm conditions correct count distinct_segments evaluated "
    "evaluations generation generations layer_count number pairs params place registers samples segments sm_count "
    "streams threshold trial trial_id trials warps_per_sm least most shared_load_conflicts shared_store_conflicts "
    "shared_load_wavefronts",
    "number": "achieved_occupancy active_threads after_over_before b_over_a distance error_over_bound gflops high "
    "importance low measured median occupancy over_before over_first over_previous "
    "over_winner reported_ms share",
    "value": "arch default row value",
}
_UNITS = re.compile(r"_(us|fraction|gb_per_s|tflops|per_request)$|^gb_per_s$")


class Named(Protocol):
    """A column of a table."""

    key: str


def kind(key: str) -> str:
    """The type of a key's values."""
    for name, keys in _KEYS.items():
        if key in keys.split():
            return name
    return "number" if _UNITS.search(key) else "integer" if key.endswith("_bytes") else "text"


def keys(command: str) -> list[str]:
    """The keys of every row of a command, in their order."""
    found: list[str] = []
    for name in COMMANDS[command]:
        module, _, attribute = name.partition(".")
        columns = getattr(importlib.import_module(f"autotune.cli.{module}"), attribute)
        some = cast(Sequence[Named], columns if isinstance(columns, tuple) else (columns,))
        found += [column.key for column in some]
    return found


def command_of(words: Sequence[str], first: Mapping[str, object]) -> str | None:
    """The schema for a command line, chosen by its words and first row; None if it has none."""
    name = next((word for word in words if word in COMMANDS), "")
    if name == "dispatch" and "--table" in words:
        table = words[words.index("--table") + 1]
        return name if table == "layers" else f"dispatch --table {table}"
    if name == "dispatch" and "--explain" in words:
        return "dispatch --explain"
    if name == "templates" and "param" in first:
        return "templates NAME"
    if name == "devices" and "--rates" in words:
        return "devices --rates"
    if name == "tune" and "streams" in first:
        return "tune, end to end"
    return name or None


def schema() -> dict[str, object]:
    """A schema for each command's output, under `$defs`."""
    every = sorted({key for command in COMMANDS for key in (*keys(command), *OPTIONAL.get(command, "").split())})
    row = {"type": "object", "properties": {key: {"$ref": f"#/$defs/{kind(key)}"} for key in every}}
    commands = {}
    for command in COMMANDS:
        required, optional = keys(command), OPTIONAL.get(command, "").split()
        items: dict[str, object] = {"$ref": "#/$defs/row", "required": required}
        items["propertyNames" if optional else "maxProperties"] = (
            {"enum": [*required, *optional]} if optional else len(required)
        )
        commands[command] = {"type": "array", "items": items}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What autotune prints with --json, by command",
        "$defs": {**KINDS, "row": row, **commands},
    }


def text() -> str:
    """The text of the file: a line for each type, key and command."""
    made = schema()
    lines = [json.dumps(made | {"$defs": 0})[: -len("0}")] + "{"]
    definitions = cast(Mapping[str, object], made["$defs"])
    for position, (name, value) in enumerate(definitions.items(), 1):
        words = json.dumps(value)
        if name == "row":
            words = words.replace("}, ", "},\n    ")
        lines.append(f"  {json.dumps(name)}: {words}{',' if position < len(definitions) else ''}")
    return "\n".join([*lines, "}}"]) + "\n"


if __name__ == "__main__":
    print(text(), end="")
