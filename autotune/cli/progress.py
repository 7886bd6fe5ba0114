"""How far a run is, on standard error: a bar on a terminal, plain lines into a pipe."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from autotune.cli.tables import console

if TYPE_CHECKING:
    from autotune.tuning.trial_log import Network
    from autotune.tuning.trial_log import Progress as TuneProgress

_LINE_EVERY_S = 10.0  # between two lines into a pipe


@contextmanager
def observer() -> Iterator[Callable[[TuneProgress], None]]:
    """Shows progress on standard error: a bar on a terminal, plain lines into a pipe."""
    if not console(stderr=True).is_terminal:
        yield _PlainLines()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[state]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def observe(progress: TuneProgress) -> None:
            network = progress.network
            name = progress.layer if network is None else progress.layer.partition(".")[0]
            total = progress.budget if network is None else network.budget
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total, state="")
            done, said = (progress.done, state(progress)) if network is None else (network.done, network_state(network))
            if network is not None and network.budget_s is not None and network.elapsed_s > 0:
                total = max(done, round(done * network.budget_s / network.elapsed_s))  # that there will be time for
            bars.update(tasks[name], completed=done, total=total, state=said)

        yield observe


def network_state(network: Network) -> str:
    """The network's time now, at the start and at its floor; of those layers that have a correct kernel yet."""
    if not network.timed:
        return "no layer has a correct kernel yet"
    floor = "" if network.floor_us is None else f", floor {_time_words(network.floor_us)}"
    lacking = "" if network.timed == network.layers else f" ({network.timed} of {network.layers} layers)"
    return f"{_time_words(network.now_us)} now, {_time_words(network.start_us)} at the start{floor}{lacking}"


def _time_words(time_us: float) -> str:
    return f"{time_us / 1000:.4g} ms" if time_us >= 1000 else f"{time_us:.4g} us"


def state(progress: TuneProgress) -> str:
    """The best so far and the failures by outcome."""
    best = progress.best
    words = [
        f"best {best.median_us:.1f} us ({best.config.template})" if best and best.median_us else "none correct yet"
    ]
    words += [f"{count} {outcome}" for outcome, count in sorted(progress.failures.items())]
    if progress.reused:
        words.append(f"{progress.reused} known")
    return ", ".join(words)


class _PlainLines:
    """A line when a layer starts and ends, and every few seconds between; of several layers one line for all."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def __call__(self, progress: TuneProgress) -> None:
        network = progress.network
        if network is None:
            words = f"{progress.done}/{progress.budget} in {progress.elapsed_s:.0f} s, {state(progress)}"
            self._say(progress.layer, words, ended=progress.ended)
            return
        of_seconds = f" of {network.budget_s:.0f}" if network.budget_s is not None else ""
        words = f"{network.done}/{network.budget} in {network.elapsed_s:.0f}{of_seconds} s, {network_state(network)}"
        self._say(progress.layer.partition(".")[0], words, ended=network.ended)

    def _say(self, name: str, words: str, *, ended: bool) -> None:
        now = time.monotonic()
        if ended or now - self._said.get(name, -math.inf) >= _LINE_EVERY_S:
            self._said[name] = now
            print(f"{name}: {words}", file=sys.stderr, flush=True)
