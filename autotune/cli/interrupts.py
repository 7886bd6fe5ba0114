"""Ctrl-C: the first one asks a run for an orderly end, which says what is left; the second ends at once."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import click

INTERRUPTED = 128 + signal.SIGINT
"""exit code, numbered as a shell does"""


@contextmanager
def stopping_on_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks for an orderly end, the second ends at once."""
    asked: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        if asked:
            sys.exit(INTERRUPTED)
        asked.append(number)
        click.echo("\nfinishing the trial at hand; Ctrl-C again stops at once", err=True)

    previous = signal.signal(signal.SIGINT, interrupt)
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
