"""Names and answers that would move the cursor, clear the screen or set a title: shown escaped; JSON and CSV exact."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
from pathlib import Path

import pytest

from autotune.escape import printable
from autotune.store import Store
from tests.fork_server import ForkServer
from tests.long_run import every
from tests.unit.test_analysis_commands import change

from .attack import attacked

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\u202egnp\u2028\x7f[/red][red]:smile:"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\u202egnp\u2028\x7f[/red][red]:smile:"


def hostile(text: str) -> set[str]:
    """Characters that must not reach a terminal."""
    return {character for character in text if character not in "\n\t" and printable(character) != character}


@pytest.fixture
def renamed(filled: Path) -> Path:
    """A database whose study, layer, device, family and messages an attacker has named."""
    for statement in (
        "UPDATE study_layers SET name = ?",
        "UPDATE studies SET name = ?",
        "UPDATE devices SET name = ?",
        "UPDATE trials SET message = ? WHERE message != ''",
        "UPDATE templates SET family = ? WHERE family = 'tiny'",
    ):
        change(filled, statement.replace("?", f"CAST(x'{HOSTILE.encode().hex()}' AS TEXT)"))
    return filled


COMMANDS = (
    ("best",),
    ("trials",),
    ("trials", "--outcome", "wrong_result"),
    ("why", "{name}"),
    ("history", "{name}"),
    ("stale",),
    ("retime", "--device", "null"),
    ("importance", "{name}"),
    ("source", "{name}"),
    ("export", "{name}", "--out", "out"),
    ("query", "SELECT * FROM results"),
    ("query", "SELECT name FROM devices"),
    ("best", "{name}x"),
    ("--{name}",),
    ("tune", "{name}"),
    ("best", "--db", "{name}"),
    ("templates", "{name}"),
)


@pytest.mark.parametrize("command", every(2, COMMANDS), ids=" ".join)
def test_nothing_reaches_the_terminal(command: tuple[str, ...], renamed: Path, fork_server: ForkServer) -> None:
    words = [word.replace("{name}", HOSTILE) for word in command]
    ended = attacked(fork_server, renamed.parent, *words, within_s=20)
    assert not hostile(ended.err), ended.err
    if command[0] != "source":  # for a compiler to read
        assert not hostile(ended.out), ended.out
        assert SHOWN.split("\\u")[0][:12] in " ".join((ended.out + ended.err).split())


def test_columns_and_cells_of_a_query(renamed: Path, fork_server: ForkServer) -> None:
    sql = f'SELECT name AS "{HOSTILE}" FROM devices'
    shown = attacked(fork_server, renamed.parent, "query", sql, env={"COLUMNS": "400"}).out
    assert shown.count(SHOWN) == 2, shown
    ended = attacked(fork_server, renamed.parent, "query", sql, "--json")
    assert json.loads(ended.out) == [{HOSTILE: HOSTILE}]
    ended = attacked(fork_server, renamed.parent, "query", sql, "--csv")
    assert list(csv.reader(io.StringIO(ended.out, newline=""))) == [[HOSTILE.replace("\r", "\n")]] * 2, (
        "as text is read"
    )


def test_progress_on_a_terminal(folder: Path, fork_server: ForkServer) -> None:
    ours, theirs = pty.openpty()
    words = ("tune", "small.toml", "--family-dir", "families", "--device", "null", "--trials", "3")
    study = (folder / "small.toml").read_text().replace('name = "one"', f"name = {json.dumps(HOSTILE)}")
    (folder / "small.toml").write_text(study)
    run = fork_server.start(folder, *words, env={"TERM": "xterm", "COLUMNS": "200"}, err=theirs)
    os.close(theirs)
    told = b""
    while part := read(ours):
        told += part
    os.close(ours)
    assert run.finish().code in (0, 1)
    assert b"\x1b]0;" not in told
    assert b"\x1b[2J" not in told


def read(terminal: int) -> bytes:
    """The next characters; empty at the end."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # how reading a terminal ends
        return b""


def test_a_kernels_text_is_exact_in_a_file(filled: Path, fork_server: ForkServer) -> None:
    comment = "// \x1b[2J tab\tend"
    with Store(filled) as store:
        store.quarantine.clear()
    change(filled, "DELETE FROM source_paragraphs")
    change(filled, f"INSERT INTO paragraphs VALUES (1, '{comment}')")
    change(filled, "INSERT INTO source_paragraphs SELECT id, 0, 1 FROM sources")
    assert comment in attacked(fork_server, filled.parent, "source", "small.one").out
