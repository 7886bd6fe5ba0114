"""A sample of a check's configs on a GPU, run again under compute-sanitizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.checking.check import CheckRow
from autotune.checking.sanitize import CLEAN, FALSE_ALARM, FAULT, Sanitizer, Verdict, Winner
from autotune.devices.device import DeviceInfo
from autotune.family.space import BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.trial import Outcome

SAMPLE = 4
"""Configs in the sample: with four tools, as many processes as a GPU's host usually has cores."""


def sampled(rows: Sequence[CheckRow], most: int = SAMPLE) -> list[CheckRow]:
    """Correct rows, spread evenly over the check, which begins with the simplest."""
    right = [row for row in rows if row.outcome == Outcome.CORRECT and row.factors]
    return [right[place * len(right) // most] for place in range(most)] if len(right) > most else right


def sanitized(
    sanitizer: Sanitizer, family: KernelTemplate, device: DeviceInfo, rows: Sequence[CheckRow]
) -> Iterator[tuple[CheckRow, Verdict]]:
    """Run the kernels of these rows under every tool; each verdict with the row it is about, as it turns out."""
    of = {f"config {number}": row for number, row in enumerate(rows, 1)}
    winners = [Winner(name, row.source, BoundTemplate(family, row.problem, device), family) for name, row in of.items()]
    for verdict in sanitizer.check(winners):
        row = of[verdict.kernel]
        if verdict.word == FAULT:
            message = f"{verdict.tool}: {verdict.message}"
            row = CheckRow(row.source, verdict.n, Outcome.RUNTIME, "sanitizer", message, None, row.factors, row.device)
        yield row, verdict


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    """What ran under which tool, and what did not and why."""
    ran = [verdict for verdict in verdicts if verdict.word in (CLEAN, FALSE_ALARM, FAULT)]
    tools = ", ".join(dict.fromkeys(verdict.tool for verdict in ran))
    lines = [f"Ran under compute-sanitizer: {len({verdict.kernel for verdict in ran})} configs, {tools}"] if ran else []
    missing = {f"  not under {verdict.tool}: {verdict.message}": None for verdict in verdicts if verdict not in ran}
    return [*lines, *missing]
