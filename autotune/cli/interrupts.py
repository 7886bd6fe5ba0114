"""Signals end a command with an exception, so that everything is cleaned up.

In a run that measures, the first Ctrl-C asks the run to stop after the current trial; it then reports what is left. The
second Ctrl-C ends it at once.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import NoReturn

import click

from autotune.api.interrupts import orderly_interrupts
from autotune.tempdirs import removing_leftovers

INTERRUPTED = 128 + signal.SIGINT
"""exit code, numbered as a shell does"""


@contextmanager
def cleaning_up_on(*signals: signal.Signals) -> Iterator[Callable[[], None]]:
    """Raise an exception on the first of these signals, so that temporary folders are removed and workers end.

    Later signals are ignored, because they would interrupt the cleanup. The context manager yields a function that
    raises again if a signal came: SQLite replaces an exception in one of its callbacks by an error of its own.
    """
    ending: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        if not ending:
            ending.append(number)
            sys.exit(128 + number)

    def end_again() -> None:
        if ending:
            sys.exit(128 + ending[0])

    heeded = [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores it
    previous = [(number, signal.signal(number, end)) for number in heeded]
    try:
        with removing_leftovers():
            yield end_again
    finally:
        for number, handler in previous:
            signal.signal(number, handler)


def stopping_on_interrupt() -> AbstractContextManager[Callable[[], bool]]:
    """The first Ctrl-C asks for an orderly end and prints so; the second ends the process at once."""
    said = "\nfinishing the trial at hand; Ctrl-C again stops at once"
    return orderly_interrupts(lambda: click.echo(said, err=True))


def end_interrupted(left: str, *, resumes: bool = True) -> NoReturn:
    """End after Ctrl-C: print in one line what is left to do and the command that does it."""
    words = [word for word in sys.argv[1:] if word != "--fresh"]  # which would start over
    how = "resume" if resumes else "begin again"
    click.echo(f"autotune: interrupted; {left}; to {how}: {shlex.join(['autotune', *words])}", err=True)
    sys.exit(INTERRUPTED)
