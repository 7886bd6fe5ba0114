"""How far a cluster is, on standard error: a table of workers on a terminal, plain lines into a pipe."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.cli.tables import console

if TYPE_CHECKING:
    from autotune.cluster.coordinator import Overview

_LINE_EVERY_S = 10.0  # between two lines into a pipe
_MOST_WORKERS = 20  # shown one by one


@contextmanager
def cluster_observer() -> Iterator[Callable[[Overview], None]]:
    """Show the progress of all workers."""
    if not console(stderr=True).is_terminal:
        yield _PlainLines()
        return
    with Live(console=console(stderr=True), refresh_per_second=4, transient=True) as live:
        yield lambda overview: live.update(_table(overview))


def overview_words(overview: Overview) -> str:
    """Layers, trials and workers in a line."""
    rate = overview.trials / overview.elapsed_s if overview.elapsed_s else 0.0
    return (
        f"{overview.done}/{overview.layers} layers in {overview.elapsed_s:.0f} s, {overview.trials} trials "
        f"({rate:.1f}/s), {len(overview.doing)} of {overview.workers} workers busy"
    )


def _table(overview: Overview) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(Text(overview_words(overview)))
    for name, doing in sorted(overview.doing.items())[:_MOST_WORKERS]:
        table.add_row(Text(f"  {name}: {doing}"))
    if len(overview.doing) > _MOST_WORKERS:
        table.add_row(Text(f"  and {len(overview.doing) - _MOST_WORKERS} more"))
    table.add_row(Text(f"  {overview.dashboard}"))
    return table


class _PlainLines:
    """A line every few seconds."""

    def __init__(self) -> None:
        self._said = -math.inf

    def __call__(self, overview: Overview) -> None:
        now = time.monotonic()
        if now - self._said >= _LINE_EVERY_S and overview.workers:
            dashboard = f"; dashboard {overview.dashboard}" if self._said == -math.inf else ""
            self._said = now
            print(f"cluster: {overview_words(overview)}{dashboard}", file=sys.stderr, flush=True)
