"""`watch` on a terminal of any width, over a database that changes, vanishes or is replaced meanwhile."""

from __future__ import annotations

import fcntl
import math
import os
import pty
import select
import shutil
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from autotune.escape import printable
from tests.fork_server import ForkServer
from tests.long_run import every
from tests.unit.test_analysis_commands import change

from .test_terminal import HOSTILE as NAME
from .test_terminal import read

WATCH = ("watch", "small", "--every", "0.2")
LOOKS = b"\x1b[2K"  # what a further look begins with


def watched(
    folder: Path,
    fork_server: ForkServer,
    meanwhile: Callable[[], object] = lambda: None,
    *,
    width: int = 80,
    ended_by_itself: bool = False,
) -> tuple[int, str]:
    """Watch until the second look, then do something, and end it by Ctrl-C a second later; how it ended, and told."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    environ = {"TERM": "xterm", "COLUMNS": str(width), "LINES": "24"}
    run = fork_server.start(folder, *WATCH, env=environ, err=theirs, out=theirs)
    os.close(theirs)
    told, began = b"", time.monotonic()
    interrupted, ends = math.inf, began + 30
    while not run.ended and time.monotonic() < ends:
        if select.select([ours], [], [], 0.1)[0]:
            told += read(ours)
        if interrupted == math.inf and LOOKS in told:
            meanwhile()
            interrupted = time.monotonic() + 1
        elif time.monotonic() > interrupted and not ended_by_itself:
            run.send_signal(signal.SIGINT)
            ended_by_itself = True
    while select.select([ours], [], [], 0.1)[0] and (part := read(ours)):
        told += part
    os.close(ours)
    if not run.ended:
        run.send_signal(signal.SIGKILL)
    return run.finish().code, told.decode("utf-8", "replace")


@pytest.mark.parametrize("width", every(2, (1, 5, 80)))
def test_any_width(filled: Path, fork_server: ForkServer, width: int) -> None:
    code, told = watched(filled.parent, fork_server, width=width)
    assert code == 130, told
    assert "Traceback" not in told


def test_names_are_shown_escaped(filled: Path, fork_server: ForkServer) -> None:
    for table, column, which in (
        ("study_layers", "name", ""),
        ("devices", "name", ""),
        ("templates", "family", "tiny"),
    ):
        where = f" WHERE {column} = '{which}'" if which else ""
        change(filled, f"UPDATE {table} SET {column} = CAST(x'{NAME.encode().hex()}' AS TEXT){where}")
    code, told = watched(filled.parent, fork_server, width=200)
    assert code == 130, told
    assert printable(NAME)[:12] in told
    assert not [character for character in NAME if printable(character) != character and character not in "\x1b\r"
                and character in told]  # fmt: skip
    assert "\x1b]0;" not in told
    assert "\x1b[2J" not in told


def in_its_place(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """What puts something else there."""

    def put(path: Path) -> None:
        path.unlink()
        make(path)

    return put


ENDS: Mapping[str, tuple[str, Callable[[Path], object]]] = {
    "gone": ("no such file", lambda path: shutil.move(path, path.with_name("moved"))),
    "noise": ("not an SQLite file", lambda path: path.write_bytes(os.urandom(100_000))),
    "cut short": ("the file is damaged", lambda path: os.truncate(path, 5000)),
    "a folder": ("is a folder", in_its_place(Path.mkdir)),
    "a pipe": ("is not a regular file", in_its_place(os.mkfifo)),
    "its folder gone": ("no such file", lambda path: shutil.rmtree(path.parent)),
}
"""What becomes of the database: what is said of it, and how it is done."""


@pytest.mark.parametrize("name", every(3, ENDS))
def test_a_database_that_goes_meanwhile_is_one_line(
    filled: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    words, change_it = ENDS[name]
    monkeypatch.chdir("/")
    code, told = watched(filled.parent, fork_server, lambda: change_it(filled), width=400, ended_by_itself=True)
    assert code == 1, told
    assert "Traceback" not in told
    last = told.rstrip().splitlines()[-1]
    assert "autotune: autotune.db: " in last
    assert words in last


def test_another_database_in_its_place_is_watched(filled: Path, fork_server: ForkServer) -> None:
    other = filled.with_name("other.db")
    shutil.copy(filled, other)
    change(other, "UPDATE study_layers SET name = 'otherwise'")
    code, told = watched(filled.parent, fork_server, lambda: other.rename(filled))
    assert code == 130, told
    assert "otherwise" in told
