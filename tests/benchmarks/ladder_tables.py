"""Write the table of docs/ladder.md from a database's ladders:

    python tests/benchmarks/ladder_tables.py studies/recorded/h200.db

It has what the profiler saw of each layer's fastest row at the largest batch. A report whose ladder the database does
not have keeps its rows.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

REPORTS = ("000", "001", "002", "003", "004")
DOCS = Path(__file__).parents[2] / "docs"
Row = Mapping[str, str | float | None]


def ladder(report: str, db: Path) -> Sequence[Row]:
    """A report's ladder as the database has it; nothing when it has none."""
    command = [sys.executable, "-m", "autotune", "ladder", f"reports/{report}", "--stored", "--db", str(db), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr.strip().splitlines()[-1], file=sys.stderr)
        return ()
    rows: list[Row] = json.loads(done.stdout)
    return rows


def at_the_largest_batch(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of a ladder's last two layers, by layer."""
    layers = list(dict.fromkeys(str(row["layer"]) for row in rows))[-2:]
    return {layer: [row for row in rows if row["layer"] == layer] for layer in layers}


def with_profiles(page: str, report: str, rows: Sequence[Row]) -> str:
    """The page with a report's lines replaced: of each layer the fastest row."""
    lines = ""
    for of_layer in at_the_largest_batch(rows).values():
        row = min(of_layer, key=lambda row: float(row["best_us"] or "inf"))
        cells = (report, *(str(row[name]) for name in ("layer", "technique")), _time(row), *_profile(row))
        lines += f"| {' | '.join(cells)} |\n"
    return re.sub(rf"(?:^\| {report} \| .*\n)+", lambda _: lines, page, flags=re.MULTILINE)


def _time(row: Row) -> str:
    """The best time in milliseconds."""
    best_us = row["best_us"]
    return "rejected" if best_us is None else f"{float(best_us) / 1e3:.3f}"


def _profile(row: Row) -> tuple[str, ...]:
    def both(one: str, other: str) -> str:
        return f"{_number(row[one], '.0%')}, {_number(row[other], '.0%')}"

    stalls = ", ".join(cast(Mapping[str, float] | None, row["main_stalls"]) or "-")
    hits = both("l1_hit_fraction", "l2_hit_fraction")
    busy = both("sm_throughput_fraction", "memory_throughput_fraction")
    gain = _number(row["over_first"], ".2f")
    return (gain, _number(row["achieved_occupancy"], ".1%"), hits, _number(row["dram_gb_per_s"], ".0f"), busy, stalls)


def _number(value: str | float | None, form: str) -> str:
    return "-" if value is None else format(float(value), form)


def main() -> None:
    """Rewrite the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("db", type=Path)
    parser.add_argument("--docs", type=Path, default=DOCS)
    arguments = parser.parse_args()
    page = arguments.docs / "ladder.md"
    ladders = page.read_text()
    for report in REPORTS:
        rows = ladder(report, arguments.db)
        if rows:
            ladders = with_profiles(ladders, report, rows)
    page.write_text(ladders)


if __name__ == "__main__":
    main()
