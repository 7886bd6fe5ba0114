"""Pictures on a terminal: bars, steps, sparklines, and the commands that draw them."""

from __future__ import annotations

import json
import re
import shutil
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.api.run import acquire_study_lock
from autotune.cli.tables import bar, falling, sparkline
from autotune.evaluation.null import NullEvaluator
from autotune.store import Store
from autotune.study_reader import load_study

from .test_analysis_commands import change
from .test_cli import rows
from .tiny import Command, run_module

RECORDED = Path(__file__).parents[2] / "studies" / "recorded" / "h200.db"


@pytest.mark.parametrize(
    ("share", "drawn"), [(0, ""), (0.5, "████"), (1, "████████"), (0.56, "████▌"), (2, "████████")]
)
def test_a_bar_is_as_long_as_its_share(share: float, drawn: str) -> None:
    assert bar(share, 8) == drawn


def test_pictures_are_drawn_in_ascii_where_the_terminal_has_no_other(folder: Path) -> None:
    for words in (("watch", "lenet-k5", "--once"), ("history", "lenet-k5.conv1", "--plot")):
        shown = run_module(folder, *words, "--db", str(RECORDED), env={"PYTHONIOENCODING": "ascii"})
        assert shown.code == 0
        assert "\\u" not in shown.out
        assert "---" in shown.out or "===" in shown.out or "___" in shown.out


def test_steps_go_from_the_slowest_to_the_fastest() -> None:
    lines = falling([100.0, 10.0, 10.0, 1.0], 8, height=3)
    assert lines == ["100 µs │──┐", " 10 µs │  └───┐", "  1 µs │      └─"]
    assert len(falling([5.0], 8)) == 9, "one alone is a level line"


def test_a_sparkline_ends_with_the_last() -> None:
    assert sparkline([100.0, 10.0, 1.0], 8) == "█▅▁"
    assert len(sparkline([float(us) for us in range(100, 0, -1)], 16)) == 16
    assert sparkline([], 8) == ""


def test_history_is_drawn_as_it_is_listed(filled: Path, autotune: Command) -> None:
    steps = [row for row in rows(autotune("history", "small.one", "--json")) if row["event"] == "improvement"]
    drawn = autotune("history", "small.one", "--plot").out
    assert f": {len(steps)} improvements" in drawn
    assert f"{steps[0]['time_us']:.4g} µs │─" in drawn
    assert f"{steps[-1]['time_us']:.4g} µs │" in drawn


def test_history_calls_a_layer_as_it_was_asked_for(folder: Path, autotune: Command) -> None:
    """Though another study found most of its improvements on the same shape."""
    drawn = autotune("history", "lenet-k5.conv1", "--plot", "--db", RECORDED).out
    titles = re.findall(r"^(\S+) on NVIDIA H200, (\S+), cold cache: \d+ improvements$", drawn, re.M)
    assert sorted(titles) == [("lenet-k5.conv1", accuracy) for accuracy in ("fp32", "fp32-3xtf32", "tf32")]


@pytest.mark.parametrize("style", [(), ("--plot",)])
def test_history_says_where_there_is_nothing(folder: Path, autotune: Command, style: tuple[str, ...]) -> None:
    said = autotune("history", "lenet-k5.conv1", "--accuracy", "bf16", *style, "--db", RECORDED)
    assert said.code == 0
    assert re.fullmatch(
        rf"lenet-k5\.conv1: {re.escape(str(RECORDED))} has no improvement.* that the options admit\n", said.err
    )


def test_importance_is_drawn_as_it_is_listed(folder: Path, autotune: Command) -> None:
    asked = ("importance", "report-000.conv1", "--family", "direct", "--db", RECORDED)
    listed = {row["parameters"]: row["importance"] for row in json.loads(autotune(*asked, "--json").out)}
    drawn = autotune(*asked, "--plot").out
    found = {name: (share, len(blocks)) for name, share, blocks in re.findall(r"^  (\w+) +([\d.]+) ?(█*)", drawn, re.M)}
    assert {name: share for name, (share, _) in found.items()} == {
        name: f"{share:.2f}" for name, share in listed.items() if share is not None
    }
    longest = max(found, key=lambda name: found[name][1])
    assert listed[longest] == max(share for share in listed.values() if share is not None)
    assert autotune(*asked, "--plot", "--csv").code == 2


def test_watch_tells_of_what_is_done_and_what_runs(filled: Path, autotune: Command) -> None:
    trials = rows(autotune("trials", "small", "--json"))
    evaluated = {trial["source_hash"] for trial in trials if trial["source_hash"]}
    best = min(float(str(trial["median_us"])) for trial in trials if trial["median_us"])
    shown = autotune("watch", "small").out
    assert re.search(rf"^small on null: {len(evaluated)} (?:of \d+ )?evaluations, ", shown), shown
    assert f"{best:.4g}" in shown
    wrong = sum(trial["outcome"] == "wrong_result" for trial in trials)
    assert f"{wrong} wrong_result" in shown
    assert "running" not in shown
    change(filled, "UPDATE trials SET outcome = 'running', ended_at = NULL WHERE number = 3")
    assert "running: one trial 3, tiny " in autotune("watch", "small").out


def test_watch_knows_the_budget_of_the_run_and_whether_it_goes_on(folder: Path, autotune: Command) -> None:
    words = ("small.toml", "--family-dir", "families", "--device", "null", "--trials", 4)
    assert autotune("tune", *words).code == 0
    shown = autotune("watch", "small").out
    assert re.match(r"small on null: 4 of 4 evaluations, \d+ s so far, not running, last trial ended ", shown), shown
    with (
        Store("autotune.db") as store,
        closing(NullEvaluator("")) as device,
        acquire_study_lock(store, replace(load_study("small.toml"), trials=50), device.info, pytest.fail),
    ):
        assert re.search(r": 4 of 50 evaluations, \d+ s so far, last trial ", autotune("watch", "small").out)
        change(Path("autotune.db"), "UPDATE trials SET started_at = '2999-01-01T00:00:00.000000Z'")
        time.sleep(1)  # at 4 evaluations a second it has some way to go
        assert re.search(r" so far, about \d+ s left, last trial ", autotune("watch", "small").out)
    change(Path("autotune.db"), "UPDATE trials SET outcome = 'running', ended_at = NULL WHERE number = 3")
    assert "cut off: one trial 3, tiny " in autotune("watch", "small").out


def test_watch_counts_the_device_that_is_tuned_on_alone(filled: Path, autotune: Command) -> None:
    count = re.search(r": (\d+ (?:of \d+ )?evaluations), (\d+ s so far)", autotune("watch", "small").out)
    assert count
    other = filled.with_name("other.db")
    shutil.copy(filled, other)
    change(other, "UPDATE devices SET name = 'elsewhere'")
    change(other, "UPDATE trials SET started_at = '2020-01-01T00:00:00.000000Z'")
    assert autotune("merge", "other.db").code == 0
    shown = autotune("watch", "small").out
    assert shown.startswith(f"small on null: {count[1]}, {count[2]}, "), shown
    assert re.search(r"^one +null +\d", shown, re.M), shown
    assert re.search(r"^one +elsewhere, imported +\d", shown, re.M), shown
    change(filled, "UPDATE trials SET origin = 'measured'")
    assert autotune("watch", "small").out.startswith(f"small on elsewhere: {count[1]}, "), "the newest trial's"
