"""Standard output and standard error for people; JSON, CSV and dumps bypass it unchanged.

Names of kernels, layers and devices, and the content of a database, may come from untrusted files. Characters that
could control a terminal are printed as the escapes of Python's strings.
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
    """A text stream for people; all other attributes are those of the underlying stream."""

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
    """whether to print nothing but the answer"""
    database = ""
    """`--db` as it was typed, for the commands in messages"""

    def write(self, text: str) -> int:
        """Write a text that consists of whole lines."""
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
        if command in WITHOUT_DATABASE or "--db" in rest:
            return hint[0]
        return f"`autotune {command}{rest} --db {shlex.quote(self.database)}`"


_HINT = re.compile(r"`autotune ([a-z-]+)([^`]*)`")
WITHOUT_DATABASE = frozenset({"worker", "import-model", "new-op", "templates", "check", "fit-model"})
"""Commands without the option `--db`."""


def note(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr, flush=True)  # click.echo writes past rich, which prints it above a bar


def name_database(name: str) -> None:
    """Add this `--db` to the commands that later notices and errors name."""
    if isinstance(sys.stderr, _Notices):
        sys.stderr.database = name


def be_silent(*, silent: bool = True) -> None:
    """Print nothing but the answer from now on, not even progress."""
    if isinstance(sys.stderr, _Notices):
        sys.stderr.silent = silent


def silent() -> bool:
    """Whether only the answer is printed."""
    return isinstance(sys.stderr, _Notices) and sys.stderr.silent


def _broken(text: str, terminal: TextIO) -> str:
    """Wrap lines at COLUMNS if it is set, otherwise at the width of the terminal."""
    columns = os.environ.get("COLUMNS", "")
    fixed = int(columns) if columns.isdecimal() else 0
    width = fixed or os.get_terminal_size(terminal.fileno()).columns or 80
    return "".join(between_words(line, width) for line in text.splitlines(keepends=True))


def between_words(line: str, width: int) -> str:
    """Split a line into parts of at most `width` characters, but never inside a word; keep its end and its indent."""
    text = line.rstrip("\n")
    if cell_len(text) <= width:
        return line
    indent = " " * (len(text) - len(text.lstrip()))
    return wrapped(text, width, indent, first="") + line[len(text) :]


def wrapped(text: str, width: int, indent: str, *, first: str | None = None) -> str:
    """Wrap a text. A number stays on one line with the next word, and so does a command in backquotes if it fits."""
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
    """Lose the text if the disk of standard error is full, so that the run continues."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:  # `autotune tune ... 2>&1 | head` ends the run
            raise


@contextmanager
def for_people() -> Iterator[None]:
    """Print for people while the block runs; JSON and CSV go to `exact`."""
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
    """The underlying stream, which escapes nothing."""
    return stream.exact if isinstance(stream, Shown) else stream


def for_compilers() -> TextIO:
    """Standard output for text that a program reads: exact, unless it is a terminal."""
    return sys.stdout if sys.stdout.isatty() else exact(sys.stdout)


def _open_closed_ones() -> None:
    """Open a replacement for a closed standard stream."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # so that no database file gets its number
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
