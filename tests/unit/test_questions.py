"""Questions to the results database as a user asks them: why, diff, stale, history, retime."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from .test_cli import rows
from .tiny import Command, write_family

RECORDED = Path(__file__).parents[2] / "studies" / "recorded" / "h200.db"


def test_why_tells_of_parameters_steps_families_and_failures(filled: Path, autotune: Command) -> None:
    found = rows(autotune("why", "small.one", "--templates", "families", "--json"))
    assert {row["layer"] for row in found} == {"small.one"}
    assert [row["about"] for row in found].count("winner") == 1
    (best,) = rows(autotune("best", "small", "--json"))
    winner = next(row for row in found if row["about"] == "winner")
    assert (winner["time_us"], winner["config"]) == (best["median_us"], best["config"])
    recorded = [row for row in found if row["about"] == "step"]
    offered = [row for row in found if row["about"] in ("step", "untried", "refused")]
    assert recorded
    assert len(offered) == 3 + 4 + 1 + 1, "every other value of every parameter"
    failures = [row for row in found if row["about"] == "failure"]
    trials = rows(autotune("trials", "small", "--json"))
    assert sum(int(str(row["trials"])) for row in failures) == sum(row["outcome"] != "correct" for row in trials)
    text = autotune("why", "one", "--templates", "families").out
    for words in ("small.one on null, fp32: tiny, ", "one step from the winner\n", "what failed\n", "'s default"):
        assert words in text
    assert autotune("why", "small", "--csv").out.startswith("layer,device,accuracy,about,template,parameter,")


def test_why_needs_no_installed_family(filled: Path, autotune: Command) -> None:
    text = autotune("why", "small.one").out
    assert "allowed and not tried (the family tiny is not installed): none" in text
    write_family(filled.parent / "families", ("One output", "Just one output"))
    text = autotune("why", "small.one", "--templates", "families").out
    assert "(by the installed file, which has changed since)" in text


def test_why_says_when_there_is_nothing_to_explain(filled: Path, autotune: Command) -> None:
    assert "no study or layer 'large'" in autotune("why", "large").complaint
    with sqlite3.connect(filled) as raw:
        raw.execute("UPDATE trials SET median_us = NULL, outcome = 'runtime'")
    raw.close()
    complaint = autotune("why", "small").complaint
    assert complaint == "autotune.db: no correct trial of small to explain; `autotune trials small` lists what there is"


@pytest.mark.parametrize("layer", ["lenet-k5.conv1", "lenet-k7.conv2", "fashion-k7.conv1"])
def test_why_answers_from_recorded_results(layer: str, autotune: Command) -> None:
    text = autotune("why", layer, "--db", RECORDED).out
    for words in (f"{layer} on NVIDIA H200, fp32: ", "of the floor's speed", "registers", "pairs", "refused"):
        assert words in text
