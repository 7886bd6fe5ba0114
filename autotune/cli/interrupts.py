"""Signals: they end a command by way of all that cleans up.

In a run that measures, the first Ctrl-C asks for an orderly end, which says what is left; the second ends at once.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import click

from autotune.temporary import none_left

INTERRUPTED = 128 + signal.SIGINT
"""exit code, numbered as a shell does"""


@contextmanager
def cleaning_up_on(*signals: signal.Signals) -> Iterator[None]:
    """End by an exception on the first of these signals, so that temporary folders go and workers end.

    Those that follow are not heeded: they would cut the cleaning up short.
    """
    ending: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        if not ending:
            ending.append(number)
            sys.exit(128 + number)

    heeded = [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores one
    previous = [(number, signal.signal(number, end)) for number in heeded]
    try:
        with none_left():
            yield
    finally:
        for number, handler in previous:
            signal.signal(number, handler)


@contextmanager
def stopping_on_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks for an orderly end, the second ends at once."""
    asked: list[int] = []
    previous = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if asked and callable(previous):
            previous(number, frame)
        asked.append(number)
        click.echo("\nfinishing the trial at hand; Ctrl-C again stops at once", err=True)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, previous)


def end_interrupted(left: str, *, resumes: bool = True) -> NoReturn:
    """End as Ctrl-C asked: say in one line what is left undone and which command does it."""
    words = [word for word in sys.argv[1:] if word != "--fresh"]  # which would begin once more
    how = "resume" if resumes else "begin again"
    click.echo(f"autotune: interrupted; {left}; to {how}: {shlex.join(['autotune', *words])}", err=True)
    sys.exit(INTERRUPTED)
