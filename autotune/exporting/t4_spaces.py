"""store -> T4: the trials of a database as files for other tools, a search space each. `autotune import` reads them.

A space is the configs of one family, on one layer, one device and in one measurement mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from autotune.interchange.t4 import T4Space, write_t4
from autotune.store import SpaceTrial, TrialRow
from autotune.trial import Outcome

Row = TrialRow | SpaceTrial
NOT_IN_NAMES = re.compile(r"[^\w.+=-]+")


def export_t4(rows: Iterable[Row], folder: Path) -> list[Path]:
    """Write the trials that ended, a file for each search space, into a folder; the files.

    Raises StoreError when the folder cannot be written.
    """
    return write_t4([(_stem(space[0]), t4_space(space)) for space in _spaces(rows)], folder)


def t4_space(rows: Sequence[Row]) -> T4Space:
    """Trials that share a search space."""
    first = rows[0]
    notes = {"problem": str(first.problem), "driver": first.environment.driver} if isinstance(first, TrialRow) else {}
    trials = [(row.trial, str(row.ended_at)) for row in rows]
    return T4Space(first.trial.config.template, first.device.name, first.name, trials, notes)


def _spaces(rows: Iterable[Row]) -> list[list[Row]]:
    """Trials that ended, by search space."""
    spaces: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.trial.outcome != Outcome.RUNNING:
            params = " ".join(name for name, _ in row.trial.config.items)
            key = (row.name, row.trial.config.template, row.device.kind, row.device.name, *_surroundings(row), params)
            spaces.setdefault(key, []).append(row)
    return list(spaces.values())


def _surroundings(row: Row) -> tuple[str, ...]:
    """What else a file's trials share."""
    if isinstance(row, SpaceTrial):
        return (str(row.generation),)
    return (row.measurement_mode, row.origin, row.environment.driver, row.environment.toolkit, row.environment.flags)


def _stem(row: Row) -> str:
    if isinstance(row, TrialRow):
        words = [row.name, row.trial.config.template, row.device.name, row.measurement_mode]
    else:
        words = [row.name, row.device.name]
    return ".".join(NOT_IN_NAMES.sub("_", word) for word in words)[:200]
