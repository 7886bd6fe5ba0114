"""What the cog blocks of README.md and docs/*.md call: the rows of a command's answer, and Markdown made of them.

Commands run in a folder that has the checkout's `studies/` and `tests/`, and `recorded.db`, the unpacked
`tests/data/dispatch-40.db.gz`. So a command is written here as it stands on the page.
"""

from __future__ import annotations

import gzip
import json
import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from click.testing import CliRunner

from autotune.cli import cli

ROOT = Path(__file__).parents[1]


@cache
def said(command: str) -> str:
    """What `autotune COMMAND` prints on standard output."""
    with _folder(unpacked="recorded.db" in command.split()):
        done = CliRunner().invoke(cli, shlex.split(command), prog_name="autotune", catch_exceptions=False)
    assert done.exit_code == 0, f"autotune {command}: {done.stderr}"
    return done.stdout


def rows(command: str) -> list[SimpleNamespace]:
    """The rows of `autotune COMMAND --json`; a column is an attribute."""
    found: list[SimpleNamespace] = json.loads(said(f"{command} --json"), object_hook=lambda row: SimpleNamespace(**row))
    assert found, f"autotune {command}: no rows"
    return found


def table(head: str, lines: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table; `head` is its first line without the bars at both ends."""
    print(f"\n| {head} |\n{'|---' * (head.count(' | ') + 1)}|")
    for line in lines:
        print(f"| {' | '.join(map(str, line))} |")
    print()


def significant(value: float, digits: int = 3) -> str:
    """A number to so many significant digits, without an exponent."""
    rounded = float(f"{value:.{digits}g}")
    places = max(0, digits - len(str(int(abs(rounded)))))
    return f"{rounded:.{places}f}"


@contextmanager
def _folder(*, unpacked: bool) -> Iterator[None]:
    """The folder that commands run in."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        for part in ("studies", "tests"):
            Path(name, part).symlink_to(ROOT / part)
        if unpacked:
            packed = ROOT / "tests" / "data" / "dispatch-40.db.gz"
            Path(name, "recorded.db").write_bytes(gzip.decompress(packed.read_bytes()))
        os.chdir(name)
        try:
            yield
        finally:
            os.chdir(before)
