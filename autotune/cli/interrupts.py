"""Signals: they end a command by way of all that cleans up.

In a run that measures, the first Ctrl-C asks for an orderly end, which says what is left; the second ends at once.
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
    """End by an exception on the first of these signals, so that temporary folders go and workers end.

    Those that follow are not heeded: they would cut the cleaning up short. What it yields ends again where a signal
    came: SQLite makes an error of its own of an exception in a function that it calls.
    """
    ending: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        if not ending:
            ending.append(number)
            sys.exit(128 + number)

    def end_again() -> None:
        if ending:
            sys.exit(128 + ending[0])

    heeded = [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores one
    previous = [(number, signal.signal(number, end)) for number in heeded]
    try:
        with removing_leftovers():
            yield end_again
    finally:
        for number, handler in previous:
            signal.signal(number, handler)


def stopping_on_interrupt() -> AbstractContextManager[Callable[[], bool]]:
    """The first Ctrl-C asks for an orderly end and says so, the second ends at once."""
    said = "\nfinishing the trial at hand; Ctrl-C again stops at once"
    return orderly_interrupts(lambda: click.echo(said, err=True))


def end_interrupted(left: str, *, resumes: bool = True) -> NoReturn:
    """End as Ctrl-C asked: say in one line what is left undone and which command does it."""
    words = [word for word in sys.argv[1:] if word != "--fresh"]  # which would begin once more
    how = "resume" if resumes else "begin again"
    click.echo(f"autotune: interrupted; {left}; to {how}: {shlex.join(['autotune', *words])}", err=True)
    sys.exit(INTERRUPTED)
