"""`watch`: what it shows of a run, of its budget, and of trials of other devices."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.api.run import acquire_study_lock
from autotune.evaluation.null import NullEvaluator
from autotune.store import Store
from autotune.study_reader import load_study

from .test_analysis_commands import change
from .test_cli import rows
from .tiny import Command


def test_watch_tells_of_what_is_done_and_what_runs(filled: Path, autotune: Command) -> None:
    trials = rows(autotune("trials", "small", "--json"))
    evaluated = {trial["source_hash"] for trial in trials if trial["source_hash"]}
    best = min(float(str(trial["median_us"])) for trial in trials if trial["median_us"])
    shown = autotune("watch", "small").out
    assert re.search(rf"^small on null: {len(evaluated)} (?:of \d+ )?evaluations, ", shown), shown
    assert f"{best:.4g}" in shown
    wrong = sum(trial["outcome"] == "wrong_result" for trial in trials)
    assert f"{wrong} wrong_result" in shown
    assert "running:" not in shown
    change(filled, "UPDATE trials SET outcome = 'running', ended_at = NULL WHERE number = 3")
    assert "running: one trial 3, tiny " in autotune("watch", "small").out


def test_watch_knows_the_budget_of_the_run_and_whether_it_goes_on(folder: Path, autotune: Command) -> None:
    words = ("small.toml", "--family-dir", "families", "--device", "null", "--trials", 4)
    assert autotune("tune", *words).code == 0
    shown = autotune("watch", "small").out
    assert shown.startswith("small on null: 4 of 4 evaluations, not running, last trial ended "), shown
    with (
        Store("autotune.db") as store,
        closing(NullEvaluator("")) as device,
        acquire_study_lock(store, replace(load_study("small.toml"), trials=50), device.info, pytest.fail),
    ):
        assert ": 4 of 50 evaluations, running, last trial ended " in autotune("watch", "small").out
    change(Path("autotune.db"), "UPDATE trials SET outcome = 'running', ended_at = NULL WHERE number = 3")
    assert "cut off: one trial 3, tiny " in autotune("watch", "small").out


def test_watch_counts_the_device_that_is_tuned_on_alone(filled: Path, autotune: Command) -> None:
    count = re.search(r": (\d+ (?:of \d+ )?evaluations), ", autotune("watch", "small").out)
    assert count
    other = filled.with_name("other.db")
    shutil.copy(filled, other)
    change(other, "UPDATE devices SET name = 'elsewhere'")
    change(other, "UPDATE trials SET started_at = '2020-01-01T00:00:00.000000Z'")
    assert autotune("merge", "other.db").code == 0
    shown = autotune("watch", "small").out
    assert shown.startswith(f"small on null: {count[1]}, "), shown
    assert re.search(r"^one +null +\d", shown, re.M), shown
    assert re.search(r"^one +elsewhere, imported +\d", shown, re.M), shown
    change(filled, "UPDATE trials SET origin = 'measured'")
    assert autotune("watch", "small").out.startswith(f"small on elsewhere: {count[1]}, "), "the newest trial's"
