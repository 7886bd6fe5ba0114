"""Times and rates at the limits of floats: commands that divide, multiply or draw them end without a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.long_run import every

from .attack import attacked

DIGITS = "9" * 5000
ASKS = (
    ("show", "small.one", DIGITS),
    ("sanitize", "--n", f"1,{DIGITS}"),
    ("export", "small", "--out", "out", "--arch", DIGITS),
    ("tune", "small.toml", "--family-dir", "families", "--cluster", f"local:{DIGITS}"),
)


@pytest.mark.parametrize("words", every(2, ASKS), ids=lambda words: words[0])
def test_numbers_of_5000_digits(words: tuple[str, ...], filled: Path, fork_server: ForkServer) -> None:
    ended = attacked(fork_server, filled.parent, *words, within_s=20)
    assert ended.code in (1, 2), ended.err
