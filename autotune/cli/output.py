"""Standard output and standard error for people. JSON, CSV and dumps are written unchanged.

Names of kernels, layers and devices, and anything else in a database, may come from untrusted files. Characters that
could control a terminal are therefore printed as Python escape sequences.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO, cast

from rich.cells import cell_len

from autotune.escape import printable


class Shown:
    """A text stream for people that escapes control characters. Other attributes come from the underlying stream."""

    def __init__(self, exact: TextIO) -> None:
        self.exact = exact

    def write(self, text: str) -> int:
        self.exact.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.exact, name)


class _Notices(Shown):
    """Standard error. On a terminal, long lines are wrapped between words."""

    silent = False
    """whether only answers and errors are printed"""
    database = ""
    """the value of `--db` on the command line, for commands mentioned in messages"""

    def write(self, text: str) -> int:
        """Write text consisting of whole lines."""
        shown = printable(text)  # raises for bytes, which tells click that this is a text stream
        if self.database:
            shown = _HINT.sub(self._with_database, shown)
        if self.silent:
            return len(text)
        with _dispensable():
            self.exact.write(_broken(shown, self.exact) if self.exact.isatty() else shown)
        return len(text)

    def flush(self) -> None:
        with _dispensable():
            self.exact.flush()

    def _with_database(self, hint: re.Match[str]) -> str:
        command, rest = hint.groups()
        if command in _OF_THE_MACHINE or "--db" in rest:
            return hint[0]
        return f"`autotune {command}{rest} --db {shlex.quote(self.database)}`"


_HINT = re.compile(r"`autotune ([a-z-]+)([^`]*)`")
WITHOUT_DATABASE = frozenset({"worker", "import-model", "new-op", "templates", "check", "fit-model"})
"""Commands without the option `--db`."""
_OF_THE_MACHINE = WITHOUT_DATABASE | {"doctor"}
"""Commands that messages mention without a database, because it makes no difference to their answer."""


def note(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr, flush=True)  # not click.echo, which bypasses rich; rich prints the line above a bar


def name_database(name: str) -> None:
    """Add this `--db` to commands mentioned in later notices and errors."""
    if isinstance(sys.stderr, _Notices):
        sys.stderr.database = name


def be_silent(*, silent: bool = True) -> None:
    """From now on, print only the answer and no progress."""
    if isinstance(sys.stderr, _Notices):
        sys.stderr.silent = silent


def silent() -> bool:
    """Return whether only the answer is printed."""
    return isinstance(sys.stderr, _Notices) and sys.stderr.silent


def _broken(text: str, terminal: TextIO) -> str:
    """Wrap lines at COLUMNS characters, if it is set, or else at the width of the terminal."""
    columns = os.environ.get("COLUMNS", "")
    fixed = int(columns) if columns.isdecimal() else 0
    width = fixed or os.get_terminal_size(terminal.fileno()).columns or 80
    return "".join(between_words(line, width) for line in text.splitlines(keepends=True))


def between_words(line: str, width: int) -> str:
    """Wrap a line between words at `width` characters, keeping its indent and line end."""
    text = line.rstrip("\n")
    if cell_len(text) <= width:
        return line
    indent = " " * (len(text) - len(text.lstrip()))
    return wrapped(text, width, indent, first="") + line[len(text) :]


def wrapped(text: str, width: int, indent: str, *, first: str | None = None) -> str:
    """Wrap a text. Numbers stay on the same line as the next word, and so do commands in backquotes if they fit."""
    glued = _COMMAND.sub(lambda found: found[0].replace(" ", "\u00a0"), _NUMBER_AND_UNIT.sub("\\1\u00a0", text))
    lines = textwrap.wrap(
        glued,
        width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\u00a0", " ")


_COMMAND = re.compile(r"`[^`\n]{1,60}`")
_NUMBER_AND_UNIT = re.compile(r"(?<![^\s(])(\d[\d.,]*) (?=[A-Za-z%])")


@contextmanager
def _dispensable() -> Iterator[None]:
    """Discard text that can't be written to standard error, for example because the disk is full, so that the run
    continues.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:  # in `autotune tune ... 2>&1 | head` a closed pipe ends the run
            raise


@contextmanager
def for_people() -> Iterator[None]:
    """Escape everything that is printed while the block runs. JSON and CSV are written to `exact` streams."""
    _open_closed_ones()
    stdout, stderr = sys.stdout, sys.stderr
    if isinstance(stdout, io.TextIOWrapper):
        stdout.reconfigure(errors="backslashreplace")
    sys.stdout = cast(TextIO, Shown(stdout))
    sys.stderr = cast(TextIO, _Notices(stderr))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = stdout, stderr
        for stream in (stdout, stderr):
            try:
                stream.flush()
            except OSError:  # Python flushes again when it exits
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def exact(stream: TextIO) -> TextIO:
    """Return the underlying stream, which escapes nothing."""
    return stream.exact if isinstance(stream, Shown) else stream


def for_compilers() -> TextIO:
    """Return standard output for text that programs read. Characters are escaped only on a terminal."""
    return sys.stdout if sys.stdout.isatty() else exact(sys.stdout)


def _open_closed_ones() -> None:
    """Replace any standard streams that are closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # otherwise a database file could get a standard stream's descriptor
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
