"""Importances: the planted effects are found, and the command prints a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from autotune.search.importance import Importance, importance
from autotune.trial import Value
from tests.unit.search.spaces import ListedSpace
from tests.unit.tiny import Command

H200 = Path(__file__).parents[2] / "tests" / "data" / "databases" / "report-layers.db"
VALUES: Mapping[str, Sequence[Value]] = {
    "tile": [1, 2, 4, 8],
    "unroll": [1, 2, 4],
    "pad": ["no", "yes"],
    "stages": [1, 2, 3],
    "fixed": [7],
}


def told(rows: int) -> Importance:
    """Importances from a random part of a space: tile matters most, pad not at all."""
    space = ListedSpace("gemm", VALUES)
    rng = np.random.default_rng(5)
    kept = rng.permutation(len(space.rows))[:rows]
    timed = []
    for row in kept:
        values = space.config(int(row)).params
        log_time = 0.4 * abs(int(values["tile"]) - 4) + 0.1 * int(values["stages"])
        timed.append((space.config(int(row)), float(np.exp(log_time + 0.03 * rng.standard_normal()))))
    found = importance(VALUES, timed)
    assert found is not None
    return found


def test_the_parameter_that_decides_comes_first_and_a_fixed_one_has_none() -> None:
    found = told(60)
    shares = dict(found.params)
    assert next(iter(shares)) == "tile"
    assert shares["tile"] > 0.5
    assert shares["fixed"] == 0
    assert sum(shares.values()) == pytest.approx(1)
    assert found.trials == 60


def test_too_few_trials_say_nothing() -> None:
    space = ListedSpace("gemm", VALUES)
    timed = [(space.config(row), 1.0 + row) for row in range(20)]
    assert importance(VALUES, timed[:19]) is None
    assert importance(VALUES, timed) is not None
    assert importance(VALUES, [(config, 2.0) for config, _ in timed]) is None, "all alike"


def test_the_command_lists_each_family_of_each_layer(autotune: Command) -> None:
    finished = autotune("importance", "lenet-k5", "--db", H200, "--json")
    assert finished.code == 0
    rows = json.loads(finished.out)
    assert {row["layer"] for row in rows} == {"lenet-k5.conv1", "lenet-k5.conv2"}
    assert {row["device"] for row in rows} == {"NVIDIA H200"}
    strip = [row for row in rows if row["template"] == "direct_strip"]
    assert sum(row["importance"] for row in strip) == pytest.approx(1)
    assert {"thread_k", "thread_p", "min_blocks"} <= {row["parameters"] for row in strip}
    (only,) = {row["template"] for row in json.loads(
        autotune("importance", "lenet-k5.conv2", "--db", H200, "--family", "direct", "--json").out
    )}  # fmt: skip
    assert only == "direct"


def test_what_cannot_be_told_is_one_line(autotune: Command, filled: Path) -> None:
    assert "fewer than 20 trials of any family are correct" in autotune("importance", "small").complaint
    assert "no study or layer 'other'" in autotune("importance", "other").complaint
    assert autotune("importance").code == 2
    wrong = autotune("importance", "small", "--family", "tine").complaint
    assert wrong == "--family tine: autotune.db has nothing of this name (did you mean 'tiny'?)"
