"""Standard output and standard error as people read them; JSON, CSV and dumps go past that and stay exact.

Names of kernels, layers and devices, and what a database answers, come from files of others. What such a text could do
to a terminal is shown escaped, as in Python's strings.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, cast

from rich.cells import cell_len

from autotune.escape import printable


class Shown:
    """A text stream that people read; in all else it is the stream beneath."""

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
    """Standard error: on a terminal, lines that are longer than it is wide are broken between words."""

    level = 0
    """below 0: nothing is told"""
    database = ""
    """`--db` as it was typed, for the commands that a line names"""

    def write(self, text: str) -> int:
        """Write a text, whose lines are whole."""
        shown = printable(text)  # of bytes an error, by which click tells a text stream
        if self.database:
            shown = _HINT.sub(self._with_database, shown)
        if self.level < 0:
            return len(text)
        self.exact.write(_broken(shown, self.exact) if self.exact.isatty() else shown)
        return len(text)

    def _with_database(self, hint: re.Match[str]) -> str:
        command, rest = hint.groups()
        if command in WITHOUT_DATABASE or "--db" in rest:
            return hint[0]
        return f"`autotune {command}{rest} --db {shlex.quote(self.database)}`"


_HINT = re.compile(r"`autotune ([a-z-]+)([^`]*)`")
WITHOUT_DATABASE = frozenset({"worker", "import-model", "new-op", "templates", "check"})
"""Commands without the option `--db`."""


def name_database(name: str) -> None:
    """Add this `--db` to the commands that notices and errors name from now on."""
    if isinstance(sys.stderr, _Notices):
        sys.stderr.database = name


def set_verbosity(level: int) -> None:
    """How much is told beside the answer from now on: below 0 nothing, not even how far a run is."""
    if isinstance(sys.stderr, _Notices):
        sys.stderr.level = level


def silent() -> bool:
    """Whether nothing is told beside the answer."""
    return isinstance(sys.stderr, _Notices) and sys.stderr.level < 0


def on_terminal(text: str) -> str:
    """What standard output gets of a text of whole lines: on a terminal they are broken between words, too."""
    return _broken(text, exact(sys.stdout)) if sys.stdout.isatty() else text


def _broken(text: str, terminal: TextIO) -> str:
    """Lines as wide as COLUMNS says, else as this terminal, whatever the other streams go to."""
    columns = os.environ.get("COLUMNS", "")
    given = int(columns) if columns.isdecimal() else 0
    width = given or os.get_terminal_size(terminal.fileno()).columns or 80
    return "".join(between_words(line, width) for line in text.splitlines(keepends=True))


def between_words(line: str, width: int) -> str:
    """A line in parts of so many characters at most, but for a word that is longer, with its end and its indent."""
    text = line.rstrip("\n")
    if cell_len(text) <= width:
        return line
    indent = " " * (len(text) - len(text.lstrip()))
    return wrapped(text, width, indent, first="") + line[len(text) :]


def wrapped(text: str, width: int, indent: str, *, first: str | None = None) -> str:
    """A text in lines of so many characters at most, but for longer words.

    A number stays with the word after it, and a command in backquotes on one line where it fits.
    """
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
def notices_through(show: Callable[[str], None]) -> Iterator[None]:
    """Give whole lines of standard error to what draws a bar there: written past it, they end in the bar's line."""
    stderr = sys.stderr
    sys.stderr = cast(TextIO, _Lines(stderr, show))
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = stderr


class _Lines:
    """A text stream that gives its lines away; in all else it is the stream beneath."""

    encoding, errors = "utf-8", "strict"  # click writes past a stream that names none, as rich's own

    def __init__(self, stream: TextIO, show: Callable[[str], None]) -> None:
        self._stream, self._show = stream, show
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._show(line)
        return len(text)

    def flush(self) -> None:
        if self._begun:
            self.write("\n")

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


class _Dispensable:
    """A stream that nothing depends on: where its file takes no more, what is told is lost and the run goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            _raise_where_nobody_reads(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            _raise_where_nobody_reads(error)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def _raise_where_nobody_reads(error: OSError) -> None:
    if error.errno == errno.EPIPE:  # `autotune tune ... 2>&1 | head` ends the run
        raise error


@contextmanager
def for_people() -> Iterator[None]:
    """Show what is printed while the block lasts; JSON and CSV go to `exact`."""
    _open_closed_ones()
    stdout, stderr = sys.stdout, sys.stderr
    if isinstance(stdout, io.TextIOWrapper):
        codecs.register_error(_LACKING, _in_ascii)
        stdout.reconfigure(errors=_LACKING)
    sys.stdout = cast(TextIO, Shown(stdout))
    sys.stderr = cast(TextIO, _Notices(cast(TextIO, _Dispensable(stderr))))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = stdout, stderr
        for stream in (stdout, stderr):
            try:
                stream.flush()
            except OSError:  # for what is left of it when Python ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_LACKING = "autotune.drawn"
"""what becomes of characters that a stream's encoding lacks"""
_DRAWN = str.maketrans("▁▂▃▄▅▆▇█▏▎▍▌▋▊▉─│┌┐└┘µ", "_..--==#...::::-|++++u")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Pictures drawn with other characters, all else escaped as in Python's strings."""
    assert isinstance(error, UnicodeEncodeError)  # noqa: S101 - registered for a stream that is written
    text = error.object[error.start : error.end].translate(_DRAWN)
    return text.encode("ascii", "backslashreplace").decode(), error.end


def exact(stream: TextIO) -> TextIO:
    """The stream beneath, which escapes nothing."""
    return stream.exact if isinstance(stream, Shown) else stream


def for_compilers() -> TextIO:
    """Standard output for a program's text: exact, but on a terminal as people read it."""
    return sys.stdout if sys.stdout.isatty() else exact(sys.stdout)


def _open_closed_ones() -> None:
    """Open what stands in for a closed standard stream."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the lowest free number, so that no database comes to be standard output
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def cannot_be_written(stream: TextIO) -> bool:
    """Whether it was this stream that raised an OSError, after which nothing that is written to it arrives."""
    try:
        stream.write("\n")
        stream.flush()
    except OSError:
        return True
    return False
