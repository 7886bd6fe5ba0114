"""Study files in which a number, name or list is larger than any user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.unit.tiny import STUDY, Command, changed

from .attack import attacked, refused

LAYER = STUDY[STUDY.index("[[layer]]") :]
HEAD = STUDY[: STUDY.index("[[layer]]")]
LONG = "x" * 100_000


def layers(count: int) -> str:
    """A study of this many layers."""
    return HEAD + "".join(changed(LAYER, ("one", f"l{number}")) for number in range(count))


SLOW = {
    "a dotted key": (f"{'.'.join('a' * 200_000)} = 1\n{STUDY}", "line 1: more than 32 dots in a key"),
    "a dotted table": (f"{STUDY}[{'.'.join('a' * 200_000)}]\n", "more than 32 dots in a key"),
    "100,000 layers": (layers(100_000), "is larger than 1 MiB"),
    "8,000 layers": (layers(8_000), "layer: has 8000 tables: expected at most 1000"),
}
BAD = {
    "a number of 5,000 digits": (changed(STUDY, ("10", "9" * 5000)), "line 2: a whole number of more than 4096 bits"),
    "one in hexadecimal": (changed(STUDY, ("10", f"0x{'f' * 5000}")), "trials: a whole number of more than 4096 bits"),
    "one in a list": (f"prune = [[{'1' * 5000}]]\n{STUDY}", "a whole number of more than 4096 bits"),
    "a fraction of 5,000 digits": (f"time_budget_s = {'9' * 5000}.0\n{STUDY}", "time_budget_s: expected seconds"),
    "a layer's name": (changed(STUDY, ("one", LONG)), "has 100000 characters: expected at most 100"),
    "a study's name": (changed(STUDY, ("small", LONG)), "has 100000 characters: expected at most 100"),
    "a family's name": (f'templates = ["{LONG}"]\n{STUDY}', "templates: expected a list of family names"),
    "a key": (f"{LONG} = 1\n{STUDY}", "unknown key"),
    "a value of another kind": (changed(STUDY, ("10", f'"{LONG}"')), "trials: expected a whole number"),
    "lists in lists": (f"prune = {'[' * 100_000}\n{STUDY}", "is nested too deeply"),
}


@pytest.mark.parametrize("name", SLOW)
def test_it_is_refused_in_time(folder: Path, fork_server: ForkServer, name: str) -> None:
    text, why = SLOW[name]
    (folder / "large.toml").write_text(text)
    refused(attacked(fork_server, folder, "tune", "large.toml", "--device", "null"), "large.toml: ", why)


@pytest.mark.parametrize("name", BAD)
def test_it_is_refused_in_a_short_line(folder: Path, autotune: Command, name: str) -> None:
    text, why = BAD[name]
    (folder / "large.toml").write_text(text)
    line = refused(autotune("tune", "large.toml", "--device", "null"), "large.toml: ", why)
    assert len(line) < 600
    assert not (folder / "autotune.db").exists()
