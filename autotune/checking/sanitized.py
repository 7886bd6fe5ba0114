"""Run a sample of a check's configs again under compute-sanitizer, on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.checking.check import CheckRow
from autotune.checking.sanitize import CLEAN, FALSE_ALARM, FAULT, Sanitizer, Verdict, Winner
from autotune.devices.device import DeviceInfo
from autotune.family.space import BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.trial import Outcome

SAMPLE = 4
"""Number of configs in the sample. With four tools, there are 16 processes, and a GPU's host usually has 16 cores."""


def sampled(rows: Sequence[CheckRow], most: int = SAMPLE) -> list[CheckRow]:
    """Return up to `most` correct rows, spread evenly over the check, which begins with the simplest cases."""
    right = [row for row in rows if row.outcome == Outcome.CORRECT and row.factors]
    return [right[place * len(right) // most] for place in range(most)] if len(right) > most else right


def sanitized(
    sanitizer: Sanitizer, family: KernelTemplate, device: DeviceInfo, rows: Sequence[CheckRow]
) -> Iterator[tuple[CheckRow, Verdict]]:
    """Run these rows' kernels under every tool, and yield each verdict with its row.

    If a tool finds a fault, the row's outcome is changed.
    """
    named = {f"config {number}": row for number, row in enumerate(rows, 1)}
    winners = [
        Winner(name, row.source, BoundTemplate(family, row.problem, device), family) for name, row in named.items()
    ]
    for verdict in sanitizer.check(winners):
        row = named[verdict.kernel]
        if verdict.word == FAULT:
            message = f"{verdict.tool}: {verdict.message}"
            sizes = tuple(row.problem.with_each_runtime(n).runtime_sizes for n in verdict.n)
            row = CheckRow(row.source, sizes, Outcome.RUNTIME, "sanitizer", message, None, row.factors, row.device)
        yield row, verdict


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    """Return lines with the number of configs that ran under each tool, and the reasons why others didn't."""
    ran = [verdict for verdict in verdicts if verdict.word in (CLEAN, FALSE_ALARM, FAULT)]
    tools = ", ".join(dict.fromkeys(verdict.tool for verdict in ran))
    lines = [f"Ran under compute-sanitizer: {len({verdict.kernel for verdict in ran})} configs, {tools}"] if ran else []
    missing = {f"  not under {verdict.tool}: {verdict.message}": None for verdict in verdicts if verdict not in ran}
    return [*lines, *missing]
