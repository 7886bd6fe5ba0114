"""Long output through a pager, on a terminal alone."""

from __future__ import annotations

import io
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import click

from autotune.cli.output import Shown, exact


@contextmanager
def paged(style: str | None) -> Iterator[None]:
    """Page the output of the block through PAGER, or else less, if the terminal is too short for it.

    JSON and CSV are never paged, and neither is output into a pipe.
    """
    out = sys.stdout
    if style in ("json", "csv") or not out.isatty():
        yield
        return
    written = _Screen(out.encoding)
    sys.stdout = cast(io.TextIOWrapper, Shown(written))
    try:
        yield
    finally:
        sys.stdout = out
        text = written.getvalue()
        if sys.exc_info()[0] is None and text.count("\n") >= shutil.get_terminal_size().lines:
            _page(text)
        else:
            exact(out).write(text)


class _Screen(io.StringIO):
    """Text for a terminal, kept."""

    encoding = ""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self.encoding = encoding  # by which lines and corners are chosen

    def isatty(self) -> bool:
        """That is where it is to go."""
        return True


def _page(text: str) -> None:
    """Ctrl-C is the pager's: it would go on with the terminal while this ends."""
    previous = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        click.echo_via_pager(text)
    finally:
        signal.signal(signal.SIGINT, previous)
