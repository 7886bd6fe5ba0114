"""Times and rates that nothing takes: of what divides by one, multiplies two or draws it, none ends in a traceback."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.long_run import every
from tests.unit.test_analysis_commands import change

from .attack import attacked

NUMBERS = ("5e-324", "1.7976931348623157e308", "0.0")
PLACES: Mapping[str, str] = {
    "measurements": "UPDATE measurements SET median_us = ?",
    "trials": "UPDATE trials SET median_us = ?, ranked_us = ? WHERE median_us IS NOT NULL",
    "retimes": "UPDATE retimes SET before_us = ?",
    "verdicts": "INSERT INTO verdicts SELECT NULL, max(id), 'cudnn', NULL, 'win', 2.5, ?, 'fp32' FROM finals",
    "verdicts on": "INSERT INTO verdicts SELECT NULL, max(id), 'cudnn', NULL, 'win', ?, 2.5, 'fp32' FROM finals",
    "rates": "INSERT INTO rates SELECT NULL, device_id, environment_id, 'dram', ?, '2026-11-20T14:00:00.000000Z', "
    "'measured', 'copy' FROM runs LIMIT 1",
}
READ = (
    ("report", "small"),
    ("history", "small.one", "--plot"),
    ("watch", "small", "--once"),
    ("best", "small"),
    ("why", "small.one"),
    ("devices",),
    ("export", "small", "--out", "out", "--no-proof"),
    ("retime", "--device", "null", "--templates", "families"),
)


@pytest.fixture
def retimed(filled: Path, fork_server: ForkServer) -> Path:
    """A database with finals, retimes and times of each kind."""
    assert attacked(fork_server, filled.parent, *READ[-1], within_s=20).code == 0
    return filled


@pytest.mark.parametrize("number", every(3, NUMBERS))
@pytest.mark.parametrize("place", every(6, PLACES))
def test_numbers_at_the_ends(place: str, number: str, retimed: Path, fork_server: ForkServer) -> None:
    change(retimed, PLACES[place].replace("?", number))
    for words in READ:
        ended = attacked(fork_server, retimed.parent, *words, within_s=20)
        assert ended.code in (0, 1, 3), ended.err
    named = attacked(fork_server, retimed.parent, "dump", "--check").out
    assert place.split()[0] in named


DIGITS = "9" * 5000
ASKS = (
    ("show", DIGITS),
    ("sanitize", "--n", f"1,{DIGITS}"),
    ("export", "small", "--out", "out", "--arch", DIGITS),
    ("replay", "autotune.db", "--evaluations", DIGITS),
    ("tune", "small.toml", "--templates", "families", "--cluster", f"local:{DIGITS}"),
)


@pytest.mark.parametrize("words", every(2, ASKS), ids=lambda words: words[0])
def test_numbers_of_5000_digits(words: tuple[str, ...], filled: Path, fork_server: ForkServer) -> None:
    ended = attacked(fork_server, filled.parent, *words, within_s=20)
    assert ended.code in (1, 2), ended.err
