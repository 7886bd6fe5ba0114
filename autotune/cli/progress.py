"""Show the progress of a run or another long command: as a bar on a terminal, as lines in a pipe."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from autotune.cli.output import note, silent
from autotune.cli.tables import console

if TYPE_CHECKING:
    from autotune.tuning.trial_log import Network
    from autotune.tuning.trial_log import Progress as TuneProgress

_FINALS = "finals"
_LINE_EVERY_S = 10.0  # seconds between two lines in a pipe
_NARROW = 100  # number of columns below which bars are short


@contextmanager
def observer() -> Iterator[Callable[[TuneProgress], None]]:
    """Yield an observer that shows progress on standard error: a bar on a terminal, plain lines in a pipe.

    Once no layer is being searched any more, the finals get their own bar.
    """
    if silent() or not console(stderr=True).is_terminal:
        yield PlainLines()
        return
    with _bars() as bars:
        tasks: dict[str, TaskID] = {}

        def observe(progress: TuneProgress) -> None:
            network = progress.network
            name = progress.layer if network is None else progress.layer.partition(".")[0]
            total = progress.budget if network is None else network.budget
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total, state="")
            done, text = (progress.done, state(progress)) if network is None else (network.done, network_state(network))
            searched = progress.phase == "finals" and not (network and network.searching)
            if searched and _FINALS not in tasks:
                tasks[_FINALS] = bars.add_task(_FINALS, total=None, state="")
            if _FINALS in tasks:
                total = done
                ended, layers = (network.concluded, network.layers) if network else (int(progress.ended), 1)
                bars.update(tasks[_FINALS], completed=ended, total=layers, state=progress.layer.partition(".")[2])
            elif network is not None and network.budget_s is not None and done and network.elapsed_s > 0:
                total = max(
                    done, round(done * network.budget_s / network.elapsed_s)
                )  # estimated number of trials within the time budget
            if progress.phase == "listing":
                text = _listing(progress)
            elif _FINALS not in tasks:
                text = f"{doing(progress)}{text}"
            bars.update(tasks[name], completed=done, total=total, state=text)

        yield observe


@contextmanager
def _bars() -> Iterator[Progress]:
    """Open progress bars on standard error, with notices printed above them."""
    out = console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24 if out.width >= _NARROW else 8),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn(
            "{task.fields[state]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
        ),
        _Elapsed(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
    )
    with Progress(*columns, console=out, expand=True) as bars:
        yield bars


class _Elapsed(ProgressColumn):
    """The time since a bar began. Rich's own column stops when the total is reached, but the finals come later."""

    def render(self, task: Task) -> Text:
        """Return the elapsed hours, minutes and seconds."""
        return Text(str(timedelta(seconds=int(task.elapsed or 0))), style="progress.elapsed")


@contextmanager
def counting(name: str, total: int | None) -> Iterator[Callable[[int, str], None]]:
    """Yield a function that shows a count (out of `total`, if given) and a text.

    This is a bar or, in a pipe, a line every few seconds.
    """
    if silent() or not console(stderr=True).is_terminal:
        lines, of_total = PlainLines(), "" if total is None else f"/{total}"
        yield lambda done, words: lines.say(name, f"{done}{of_total}{', ' if words else ''}{words}", at_once=False)
        return
    with _bars() as bars:
        task = bars.add_task(name, total=total, state="")
        yield lambda done, words: bars.update(task, completed=done, state=words)


@contextmanager
def stages() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current stage of a command without a total."""
    out = console(stderr=True)
    if silent() or not out.is_terminal:
        yield lambda words: note(f"{words} ...")
        return
    with out.status("") as line:
        yield lambda words: line.update(f"{words} ...")


def network_state(network: Network) -> str:
    """Describe the network's times now and at the start and its floor, for layers with a correct kernel."""
    if not network.timed:
        return "none correct yet"
    if network.timed < network.layers:  # times before and after another layer joins can't be compared
        return f"{_time_words(network.now_us)} for {network.timed} of {network.layers} layers"
    floor = "" if network.floor_us is None else f", floor {_time_words(network.floor_us)}"
    return f"{_time_words(network.now_us)}, was {_time_words(network.start_us)}{floor}"


def _time_words(time_us: float) -> str:
    return f"{time_us / 1000:.4g} ms" if time_us >= 1000 else f"{time_us:.4g} us"


def doing(progress: TuneProgress) -> str:
    """Describe the current phase, unless it is the search. If there are several layers, name the layer."""
    network = progress.network
    of_layer = "" if network is None else f" of {progress.layer.partition('.')[2]}"
    over = "" if network is None else f" ({network.concluded} of {network.layers} layers done)"
    return {"start": f"compiling the first kernels{of_layer}; ", "search": "", "finals": f"finals{of_layer}{over}; "}[
        progress.phase
    ]


def _listing(progress: TuneProgress) -> str:
    return f"listing configs of {progress.layer.partition('.')[2]}"


def state(progress: TuneProgress) -> str:
    """Describe the best time so far, and the number of failures by outcome."""
    best = progress.best
    parts = [
        f"best {best.median_us:.1f} us ({best.config.template})" if best and best.median_us else "none correct yet"
    ]
    parts += [f"{count} {outcome}" for outcome, count in sorted(progress.failures.items())]
    if progress.reused:
        parts.append(f"{progress.reused} known")
    return ", ".join(parts)


class PlainLines:
    """Prints a line when a layer's phase begins, when it ends, and every few seconds in between.

    The layers of a network share one line.
    """

    def __init__(self) -> None:
        self._printed_s: dict[str, float] = {}
        self._began = time.monotonic()

    def __call__(self, progress: TuneProgress) -> None:
        network = progress.network
        if progress.phase == "start":
            return  # the line with the device's name was just printed
        if progress.phase == "listing":
            if time.monotonic() - self._began >= _LINE_EVERY_S:
                self.say(progress.layer.partition(".")[0], _listing(progress), at_once=False)
            return
        if network is None:
            words = f"{progress.done}/{progress.budget} in {progress.elapsed_s:.0f} s, {doing(progress)}"
            self.say(progress.layer, f"{words}{state(progress)}", at_once=progress.ended or progress.phase != "search")
            return
        of_seconds = f" of {network.budget_s:.0f}" if network.budget_s is not None else ""
        words = f"{network.done}/{network.budget} in {network.elapsed_s:.0f}{of_seconds} s, {doing(progress)}"
        self.say(progress.layer.partition(".")[0], f"{words}{network_state(network)}", at_once=network.ended)

    def say(self, name: str, text: str, *, at_once: bool) -> None:
        now = time.monotonic()
        if at_once or now - self._printed_s.get(name, -math.inf) >= _LINE_EVERY_S:
            self._printed_s[name] = now
            note(f"{name}: {text}")
