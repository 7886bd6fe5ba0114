"""Files that never end, or that are small until they are unpacked."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.long_run import every, long_run
from tests.unit.tiny import write_family

from .attack import attacked, refused

MIB = 1 << 20


def packed(path: Path) -> None:
    """4 GB of spaces in 4 MB of gzip."""
    path.write_bytes(gzip.compress(b" " * (16 * MIB), 9) * 256)


def sparse(path: Path) -> None:
    """4 GB that take no room."""
    with path.open("wb") as file:
        file.truncate(4096 * MIB)


def empty_lists(path: Path) -> None:
    """Three bytes each, 72 in memory."""
    path.write_bytes(b"[" + b"[]," * (60 * MIB // 3) + b"[]]")


def endless(path: Path) -> None:
    """A link to what never ends."""
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    """A pipe that nobody writes."""
    os.mkfifo(path)


SCORE = ("replay", "{}", "--seeds", "1", "--evaluations", "1")
REPLAY = ("tune", "small.toml", "--family-dir", "families", "--device", "replay:{}")


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (SCORE, packed),
        (SCORE, empty_lists),
        (SCORE, pipe),
        (REPLAY, endless),
        (("load", "{}"), sparse),
        (("tune", "{}"), pipe),
        *long_run(
            (SCORE, sparse),
            (SCORE, endless),
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
    """In time, in a gigabyte, and no database is made."""
    made(folder / "bomb")
    refused(attacked(fork_server, folder, *(word.format("bomb") for word in words)), "bomb")
    assert not (folder / "autotune.db").exists()


@pytest.mark.parametrize("made", every(2, (pipe, endless, sparse)))
@pytest.mark.parametrize("name", ["tiny.cu.j2", "_own.cuh"])
def test_a_folder_of_templates(folder: Path, fork_server: ForkServer, made: Callable[[Path], None], name: str) -> None:
    """A family, or what one includes, that is none."""
    write_family(folder / "families", ("constexpr int C =", '#include "_own.cuh"\nconstexpr int C ='))
    (folder / "families" / name).unlink(missing_ok=True)
    made(folder / "families" / name)
    refused(attacked(fork_server, folder, "templates", "--family-dir", "families"), name)
