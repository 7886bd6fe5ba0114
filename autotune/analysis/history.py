"""Rows of `history` -> their cells: how a layer's best time improved, event by event."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from autotune.analysis.trial_rows import layer_name
from autotune.columns import Cells
from autotune.devices.device import BASELINES
from autotune.store import Verdict, stored_config
from autotune.trial import LONG_US


def history_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Cells]:
    """Yield the rows of `Store.results.history`, with additional cells computed from the columns."""
    for row in rows:
        yield {
            **row,
            "layer": layer_name(row),
            "date": datetime.fromisoformat(row["date"]).replace(microsecond=0),
            "deterministic": bool(row["deterministic"]),
            "trial": row["number"],
            "config": stored_config(row["template"], row["config"]),
            "note": row["note"] if row["verdicts"] is None else _finals_note(row) or None,
        }


def _finals_note(row: Mapping[str, Any]) -> str:
    verdicts = [Verdict(**verdict) for verdict in json.loads(row["verdicts"])]
    words = ["imported"] if row["imported"] else []
    for one in verdicts:
        against = "the starting config" if one.against == "default" else one.against
        words.append(f"{one.verdict} against {against}{caveat(one, row['launch'], row['accuracy'])}")
    if row["superseded_at"] is not None:
        words.append(f"put in doubt {datetime.fromisoformat(row['superseded_at']):%Y-%m-%d %H:%M}")
    return ", ".join(words)


def caveat(verdict: Verdict, launch: str | None, accuracy: str) -> str:
    """Return why a verdict is invalid or compares different work, or "" if neither applies.

    `launch` and `accuracy` describe the winner. If no sample of the winner is stored, `launch` is None.
    """
    short = min(verdict.median_us, verdict.against_us) < LONG_US
    if verdict.against.startswith(tuple(BASELINES)) and launch == "stream" and short:
        return " (not valid: timed with launch gaps)"
    other = verdict.against_accuracy
    return "" if other in (None, accuracy) else f" (another accuracy class, {other})"
