"""Files that never end, or that are larger than any user's file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.long_run import every, long_run
from tests.unit.tiny import write_family

from .attack import attacked, refused

MIB = 1 << 20


def sparse(path: Path) -> None:
    """A sparse file of 4 GB."""
    with path.open("wb") as file:
        file.truncate(4096 * MIB)


def endless(path: Path) -> None:
    """A link to an endless file."""
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    """A pipe that nobody writes to."""
    os.mkfifo(path)


REPLAY = ("tune", "small.toml", "--family-dir", "families", "--device", "replay:{}")


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (REPLAY, endless),
        (("load", "{}"), sparse),
        (("tune", "{}"), pipe),
        *long_run(
            (REPLAY, pipe),
            (("load", "{}"), endless),
            (("load", "{}"), pipe),
            (("tune", "{}"), sparse),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value.__name__,
)
def test_one_line_names_the_file(
    folder: Path, fork_server: ForkServer, words: tuple[str, ...], made: Callable[[Path], None]
) -> None:
    """In time, with a gigabyte of memory, and without a new database."""
    made(folder / "bomb")
    refused(attacked(fork_server, folder, *(word.format("bomb") for word in words)), "bomb")
    assert not (folder / "autotune.db").exists()


@pytest.mark.parametrize("made", every(2, (pipe, endless, sparse)))
@pytest.mark.parametrize("name", ["tiny.cu.j2", "_own.cuh"])
def test_a_folder_of_templates(folder: Path, fork_server: ForkServer, made: Callable[[Path], None], name: str) -> None:
    """A family, or a file that it includes, that is not a regular file."""
    write_family(folder / "families", ("constexpr int C =", '#include "_own.cuh"\nconstexpr int C ='))
    (folder / "families" / name).unlink(missing_ok=True)
    made(folder / "families" / name)
    refused(attacked(fork_server, folder, "templates", "--family-dir", "families"), name)
