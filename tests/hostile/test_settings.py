"""Files with defaults of options that are none: one line that names the file, whichever command is run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fork_server import ForkServer

from .attack import attacked, refused

NO_VALUES = (
    "[trials]\nlimit = inf",
    "[trials]\nlimit = nan",
    "[trials]\nlimit = 1979-05-27",
    "db = ['a.db', 'b.db']",
    "[trials]\ndb = {a = 1}",
    "[trials]\nfamily = ['a', ['b']]",
)


@pytest.mark.parametrize("text", NO_VALUES)
def test_values_that_no_option_takes_are_one_line(folder: Path, fork_server: ForkServer, text: str) -> None:
    (folder / "autotune.toml").write_text(text)
    refused(attacked(fork_server, folder, "trials"), "autotune.toml: ", "expected a word, a number or a flag")


def test_files_that_do_not_end_are_one_line(folder: Path, fork_server: ForkServer) -> None:
    file = folder / "autotune.toml"
    file.symlink_to("/dev/zero")
    refused(attacked(fork_server, folder, "trials"), "autotune.toml: cannot be read: Not a regular file")
    file.unlink()
    os.mkfifo(file)
    refused(attacked(fork_server, folder, "trials"), "autotune.toml: cannot be read: Not a regular file")
    file.unlink()
    file.write_bytes(b"#" * (2 << 20))
    refused(attacked(fork_server, folder, "trials"), "autotune.toml: is larger than 1 MiB")


def test_a_project_of_others_is_left_alone(folder: Path, fork_server: ForkServer) -> None:
    (folder / "pyproject.toml").symlink_to("/dev/zero")
    refused(attacked(fork_server, folder, "trials"), "autotune.db: no such file")
