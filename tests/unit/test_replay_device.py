"""Tuning on `replay:FILE`: it returns recorded trials, proposes nothing else, and marks nothing as measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from autotune.store import Store, TrialRow
from tests.unit.tiny import Command, changed, write_family

H200 = Path(__file__).parents[2] / "tests" / "data" / "databases" / "report-layers.db"


def rows(path: str) -> tuple[TrialRow, ...]:
    """Every trial of a database."""
    with Store(path, create=False) as store:
        return store.trials.list(generations="all")


@pytest.fixture
def again(autotune: Command, filled: Path) -> Command:
    """Tune the small study on a recording of itself, in which a fifth of all kernels gave wrong results."""
    shutil.move(filled, "recorded.db")

    def run(*words: object) -> object:
        return autotune("tune", "small.toml", "--family-dir", "families", "--device", "replay:recorded.db", *words)

    return run  # type: ignore[return-value]


def test_every_recorded_trial_comes_out_as_it_was(again: Command) -> None:
    assert again("--trials", 40).code == 0
    recorded = {row.trial.config: row.trial for row in rows("recorded.db") if row.trial.compiled}
    replayed = {row.trial.config: row.trial for row in rows("autotune.db") if row.trial.compiled}
    assert recorded.keys() == replayed.keys()
    assert len({trial.outcome for trial in replayed.values()}) == 2, "failures too"
    for config, trial in replayed.items():
        of = recorded[config]
        assert (trial.outcome, trial.reason, trial.message) == (of.outcome, of.reason, of.message), config
        assert (trial.timing, trial.resources) == (of.timing, of.resources), config


def test_what_was_replayed_does_not_pass_for_measured(again: Command, autotune: Command) -> None:
    finished = again()
    assert finished.err.startswith("device replay:recorded.db: replay of null (requested)")
    assert {(row.device.kind, row.device.name) for row in rows("autotune.db")} == {("replay", "replay of null")}
    assert autotune("importance", "small").complaint.endswith("20 trials of any family are measured, not replayed")
    assert autotune("export", "small", "--out", "kernels", "--no-proof").code == 0
    (kernel,) = Path("kernels").glob("*.cu")
    assert "replay of null: NOT TUNED FOR A GPU, nothing was run" in kernel.read_text()


def test_a_recording_in_the_database_that_is_tuned_into_is_left_as_it_was(again: Command) -> None:
    before = {row.id: row for row in rows("recorded.db")}
    assert again("--db", "recorded.db").code == 0
    after = {row.id: row for row in rows("recorded.db")}
    assert {number: after[number] for number in before} == before
    assert len(after) > len(before)
    assert again("--db", "recorded.db").code == 0
    assert len(rows("recorded.db")) == len(after), "and running it again resumes"


def test_the_same_seed_gives_the_same_trials(autotune: Command) -> None:
    words = ("tune", "lenet-k5", "--layer", "conv2", "--device", f"replay:{H200}", "--trials", 20)
    runs = (("one.db", 3, "default"), ("two.db", 3, "default"), ("three.db", 3, "random"), ("four.db", 4, "random"))
    for name, seed, sampler in runs:
        assert autotune(*words, "--seed", seed, "--sampler", sampler, "--db", name).code == 0
    one, two, three, four = (
        [(row.trial.number, row.trial.config, row.trial.median_us) for row in rows(name)] for name, _, _ in runs
    )
    assert len(one) == 20
    assert one == two
    assert three != four, "of few recorded configs the default sampler scores all, whatever the seed"


def test_a_replay_that_was_cut_in_two_is_the_same(autotune: Command) -> None:
    words = ("tune", "lenet-k5", "--layer", "conv1", "--device", f"replay:{H200}")
    for trials in (8, 20):
        assert autotune(*words, "--trials", trials, "--db", "parts.db").code == 0
    assert autotune(*words, "--trials", 20, "--db", "whole.db").code == 0
    parts, whole = ([(row.trial.number, row.trial.config) for row in rows(name)] for name in ("parts.db", "whole.db"))
    assert parts == whole


def test_each_policy_has_configs_of_its_own(autotune: Command) -> None:
    text = Path("small.toml").read_text()
    words = ("tune", "small.toml", "--family-dir", "families")
    assert autotune(*words, "--device", "null", "--trials", 5, "--seed", 1, "--db", "recorded.db").code == 0
    Path("small.toml").write_text(changed(text, ("trials = 10", "trials = 10\nmeasure.cache = 'hot'")))
    assert autotune(*words, "--device", "null", "--trials", 9, "--seed", 2, "--db", "recorded.db").code == 0
    finished = autotune(*words, "--device", "replay:recorded.db")
    assert finished.code == 0, finished.err
    recorded = {row.trial.config for row in rows("recorded.db") if row.measurement_mode == "hot" and row.trial.compiled}
    assert {row.trial.config for row in rows("autotune.db") if row.trial.compiled} == recorded


def test_what_was_not_recorded_is_one_line(again: Command, autotune: Command, tmp_path: Path) -> None:
    text = Path("small.toml").read_text()
    Path("small.toml").write_text(changed(text, ("h = 9", "h = 19")))
    complaint = again().complaint
    assert (
        "replay:recorded.db: records no trial of the layer n3 c2 19x8 k4 3x3 f32 nchw in the measurement mode cold"
        in complaint
    )
    assert "it has n3 c2 9x8 k4 3x3 f32 nchw (cold)" in complaint
    Path("small.toml").write_text(changed(text, ("trials = 10", "trials = 10\nmeasure.cache = 'hot'")))
    assert "in the measurement mode hot" in again().complaint
    assert not Path("autotune.db").exists() or not rows("autotune.db")


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("replay", "expected replay:FILE"),
        ("replay:", "expected replay:FILE"),
        ("replay:nothing.db", "nothing.db: no such file"),
        ("replay:small.toml", "not an SQLite file"),
        ("replay:recorded.db@RTX 3090", "has no device 'RTX 3090'; it has null"),
    ],
)
def test_a_device_that_is_no_recording_is_one_line(autotune: Command, filled: Path, device: str, says: str) -> None:
    shutil.move(filled, "recorded.db")
    finished = autotune("tune", "small.toml", "--family-dir", "families", "--device", device)
    assert says in finished.complaint


def test_one_of_several_devices_is_named(again: Command, autotune: Command) -> None:
    words = ("tune", "small.toml", "--family-dir", "families", "--db", "recorded.db")
    assert autotune(*words, "--device", "host", "--trials", 1).code == 0
    assert "has several devices; name one of them as replay:recorded.db@NAME: null, " in again().complaint
    finished = autotune(
        "tune", "small.toml", "--family-dir", "families", "--device", "replay:recorded.db@null", "--json"
    )
    (best,) = json.loads(finished.out)
    assert best["device"] == "replay of null"


def test_a_check_on_a_recording_is_refused(autotune: Command, filled: Path) -> None:
    finished = autotune("check", "direct", "--device", f"replay:{filled}")
    assert "runs no kernels" in finished.complaint


def test_configs_recorded_before_a_parameter_came_have_its_first_value(again: Command) -> None:
    turns = 'turns   = { values = [1, 2, 3, 4, 6],    doc = "outputs a thread" }'
    later = (turns, f'{turns}\nlater = {{ values = [7, 8], doc = "came later" }}')
    write_family(Path("families"), later, ("#*/", "#*/\nconstexpr int LATER = ${later};"))
    assert again("--trials", 40).code == 0
    recorded = [row.trial for row in rows("recorded.db") if row.trial.compiled]
    replayed = [row.trial for row in rows("autotune.db") if row.trial.compiled]
    assert {trial.config.params.pop("later") for trial in replayed} == {7}
    assert sorted(str(trial.timing) for trial in replayed) == sorted(str(trial.timing) for trial in recorded)
