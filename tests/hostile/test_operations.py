"""Folders of operations that attack: names that mean something else here, files that do not end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fork_server import ForkServer

from .attack import attacked, refused

TUNE = ("tune", "own.toml", "--device", "null", "--trials", "2")


@pytest.fixture
def own(folder: Path, fork_server: ForkServer) -> Path:
    """A folder with an operation `own` and a study of it."""
    assert attacked(fork_server, folder, "new-op", "own").code == 0
    return folder


def test_names_that_conv2d_has_mean_what_the_operation_says(own: Path, fork_server: ForkServer) -> None:
    """`w` is a whole number of conv2d's, `layout` a word: rows of another operation can be understood all the same."""
    file = own / "own" / "operation.toml"
    text = file.read_text().replace("[words]", 'layout = { doc = "a size", default = 3 }\n[words]\nw = ["a", "b"]')
    file.write_text(text)
    done = attacked(fork_server, own, *TUNE, within_s=30)
    assert done.code == 0, done.err
    checked = attacked(fork_server, own, "dump", "--check")
    assert "0 rows that cannot be understood" in checked.err + checked.out


@pytest.mark.parametrize("name", ["own/operation.toml", "own/own.cu.j2"])
def test_files_that_do_not_end_are_one_line(own: Path, fork_server: ForkServer, name: str) -> None:
    (own / name).unlink()
    (own / name).symlink_to("/dev/zero")
    refused(attacked(fork_server, own, *TUNE), f"{name}: cannot be read: Not a regular file")
    (own / name).unlink()
    os.mkfifo(own / name)
    refused(attacked(fork_server, own, *TUNE), f"{name}: cannot be read: Not a regular file")
