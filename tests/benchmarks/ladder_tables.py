"""Write the tables of docs/ladder.md and the times of docs/fidelity.md from a database's ladders:

    python tests/benchmarks/ladder_tables.py studies/recorded/h200.db

A report whose ladder the database does not have keeps its table. What a profiler saw is in the tables when there is
any.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

REPORTS = ("000", "001", "002", "003", "004")
DOCS = Path(__file__).parents[2] / "docs"
TIMES = ("layer", "technique", "report, ms", "H200, ms", "over the first", "over the line above", "evaluated")
PROFILE = ("occupancy", "L1, L2 hits", "device memory, GB/s", "SM, memory", "stalled for")
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


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    profiled = any(row["entry"] for row in rows)
    names = (*TIMES, *PROFILE) if profiled else TIMES
    lines = [_line(names), "|" + "---|" * len(names)]
    lines += [_line((*_times(row), *(_profile(row) if profiled else ()))) for row in rows]
    return "\n".join(lines) + "\n"


def with_table(page: str, report: str, text: str) -> str:
    """The page with the first table of a report's section replaced."""
    return re.sub(
        rf"(## Report {report}: .*?\n\n)\|.*?\n(?!\|)", lambda found: found[1] + text + "\n", page, flags=re.S
    )


def with_times(page: str, report: str, rows: Sequence[Row]) -> str:
    """The page with the last cell of each technique's row replaced: its times at the largest batch, layer by layer."""
    layers = list(dict.fromkeys(str(row["layer"]) for row in rows))[-2:]
    for technique in dict.fromkeys(str(row["technique"]) for row in rows):
        found = [row for row in rows if row["technique"] == technique and row["layer"] in layers]
        times = " / ".join(_times(row)[3] for row in found)
        start = rf"^(\| {report} \| [^\n]* \| `reports/{report}`: {re.escape(technique)} \| [^\n]* \| )[^|\n]*( \|)$"
        page = re.sub(start, rf"\g<1>{times}\g<2>", page, flags=re.MULTILINE)
    return page


def _times(row: Row) -> tuple[str, ...]:
    best_us = row["best_us"]
    here = "rejected" if best_us is None else f"{float(best_us) / 1e3:.3f}"
    gains = (_number(row["over_first"], ".2f"), _number(row["over_previous"], ".2f"))
    return (
        str(row["layer"]),
        str(row["technique"]),
        _number(row["reported_ms"], "g"),
        here,
        *gains,
        str(row["evaluated"]),
    )


def _profile(row: Row) -> tuple[str, ...]:
    def both(one: str, other: str) -> str:
        return f"{_number(row[one], '.0%')}, {_number(row[other], '.0%')}"

    stalls = re.sub(r"=\S+", "", str(row["main_stalls"] or "-")).replace(" ", ", ")
    hits = both("l1_hit_fraction", "l2_hit_fraction")
    busy = both("sm_throughput_fraction", "memory_throughput_fraction")
    return (_number(row["achieved_occupancy"], ".1%"), hits, _number(row["dram_gb_per_s"], ".0f"), busy, stalls)


def _number(value: str | float | None, form: str) -> str:
    return "-" if value is None else format(float(value), form)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Rewrite both pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("db", type=Path)
    parser.add_argument("--docs", type=Path, default=DOCS)
    arguments = parser.parse_args()
    ladders, fidelity = ((arguments.docs / name).read_text() for name in ("ladder.md", "fidelity.md"))
    for report in REPORTS:
        rows = ladder(report, arguments.db)
        if rows:
            ladders = with_table(ladders, report, table(rows))
            fidelity = with_times(fidelity, report, rows)
    (arguments.docs / "ladder.md").write_text(ladders)
    (arguments.docs / "fidelity.md").write_text(fidelity)


if __name__ == "__main__":
    main()
