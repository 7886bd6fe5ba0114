"""Passwords in URLs: no command repeats one, whatever its form."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import AutotuneError
from tests.fork_server import ForkServer
from tests.long_run import every

from .attack import attacked

SECRET = "hunter2x"
FORMS = (
    f"postgresql://me:{SECRET}@host/db",
    f"sqlite://me:{SECRET}@host/db",
    f"sqlite://me:{SECRET}@/a.db",
    f"sqlite+pysqlcipher://:{SECRET}@/a.db",
    f"mysql+pymysql://me:a@b/{SECRET}:x@host:3306/db",
    f"https://{SECRET}@host/db",
    f"POSTGRESQL://me:%20{SECRET}%40@[::1]:5432/db",
    f"postgresql://host/db?user=me&password={SECRET}",
    f"sqlite:///a.db?hexkey={SECRET}",
    f"file:a.db?key={SECRET}",
    f"postgresql://me:a {SECRET} b\n{SECRET}@host/db",
    f"postgresql://me:{SECRET}\x1b@host:port/db",
    f"me:{SECRET}@host/db",
    f"//me:{SECRET}@host/db",
    f"host=here user=me password={SECRET} dbname=x",
    f"host=here password='{SECRET} {SECRET}'",
)
TUNE = ("tune", "small.toml", "--family-dir", "families", "--device")
COMMANDS = (
    ("best", "--db"),
    ("merge",),
    ("tune", "small.toml", "--family-dir", "families", "--trials", "1", "--device", "null", "--db"),
    ("load",),
    ("dump",),
    ("report", "--out"),
    ("best",),
    ("best", "--"),
    ("devices", "--device"),
    TUNE,
    ("templates", "--family-dir"),
)


@pytest.mark.parametrize("command", every(7, COMMANDS), ids=" ".join)
def test_a_password_is_never_printed(command: tuple[str, ...], filled: Path, fork_server: ForkServer) -> None:
    for form in FORMS:
        if command[-1] == "--out" and form.startswith("/"):
            continue  # a folder that root may create
        ended = attacked(fork_server, filled.parent, *command, form)
        assert SECRET not in ended.out + ended.err, (form, ended)
    ended = attacked(fork_server, filled.parent, *TUNE, f"replay:{FORMS[0]}")
    assert "***" in ended.err, "what was asked for can still be told"


def test_a_program_that_keeps_errors_keeps_no_password(tmp_path: Path) -> None:
    for form in FORMS:
        assert SECRET not in str(AutotuneError(f"{form}: cannot be opened")), form
    for harmless in (
        "a.b@c",
        "replay:a.db@NAME",
        "x = 3",
        "kernel.cu:12: error: expected ';'",
        "https://host/a?b=c",
        "sqlite:////a/b.db",
    ):
        assert str(AutotuneError(harmless)) == harmless


def test_words_without_an_end_are_searched_at_once() -> None:
    for piece in (":/", "//a:", "a:", "password=", "a", "@", "%3d", ":/@"):
        AutotuneError(piece * (50_000 // len(piece)) + " @ =")
