"""Recorded spaces of other kernels: stored once, listed and never best."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.errors import StoreError, StudyError
from autotune.interchange.files import read_recording
from autotune.store import Imported, Store, import_recording, merge

from .builders import correct, open_scope, run_trial

DATA = Path(__file__).parents[2] / "data" / "recorded-spaces"
CACHE = DATA / "convolution_milo-A6000.json.gz"
T4 = DATA / "convolution_milo-A6000.t4.json.gz"


def result(block: int, invalidity: str, time: float | None = None) -> dict[str, object]:
    measurements = [] if time is None else [{"name": "time", "value": time, "unit": ""}]
    return {
        "configuration": {"block": block, "mode": "a'b\x01"},
        "invalidity": invalidity,
        "measurements": measurements,
    }


FAILING = {
    "schema_version": "1.0.0",
    "metadata": {"timeunit": "microseconds", "kernel_name": "k", "device_name": "GPU"},
    "results": [
        result(1, "correct", 7.1),
        *(
            result(2 + i, word)
            for i, word in enumerate(("constraints", "compile", "runtime", "timeout", "correctness"))
        ),
    ],
}


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    """A T4 file with every word for a failure."""
    path = tmp_path / "failing.t4.json"
    path.write_text(json.dumps(FAILING))
    return path


def test_an_imported_space_is_listed_and_never_best(store: Store) -> None:
    run_trial(store, open_scope(store), correct(0, 1e9))
    recording = read_recording(CACHE)
    assert import_recording(recording, store.path) == Imported("convolution_milo-A6000", 1, trials=4362, known=0)
    rows = store.results.list("convolution_milo-A6000", sort="median")
    assert len(rows) == 4362
    assert {row["layer"] for row in rows} == {"convolution_kernel"}
    assert {(row["device"], row["device_kind"]) for row in rows} == {("NVIDIA RTX A6000", "recorded")}
    assert rows[0]["median_us"] == recording.optimum_us
    assert [row.median_us for row in store.best.list()] == [1e9]
    assert store.best.list("convolution_milo-A6000") == ()
    assert store.trials.list("convolution_kernel") == ()
    assert len(store.trials.list()) == 1
    assert store.query(
        "SELECT DISTINCT n, gflops, origin, imported_from FROM results WHERE device_kind <> 'cuda'"
    ).rows == ((None, None, "imported", "convolution_milo-A6000.json.gz"),)
    assert store.query("SELECT count(*) FROM best").rows == ((1,),)
    with pytest.raises(StoreError, match=r"no study or layer 'convolution_milo'; it has convolution_milo-A6000$"):
        store.trials.list("convolution_milo")


def test_the_same_content_comes_once(store: Store, tmp_path: Path, failing: Path) -> None:
    import_recording(read_recording(failing), store.path)
    assert import_recording(read_recording(failing), store.path) == Imported("failing", 1, 0, 6)
    cache = {
        "device_name": "GPU",
        "kernel_name": "k",
        "tune_params_keys": ["block"],
        "tune_params": {"block": [1, 2]},
        "cache": {"1": {"block": 1, "time": 2.5}},
    }
    path = tmp_path / "mine.json"
    for time, generation in ((2.5, 1), (3.5, 2), (2.5, 1)):
        cache["cache"] = {"1": {"block": 1, "time": time}}
        path.write_text(json.dumps(cache))
        assert import_recording(read_recording(path), store.path).generation == generation
    assert [row["median_us"] for row in store.results.list("mine")] == [2500.0, 3500.0]
    assert len(store.results.list("mine.k")) == 2


def test_failures_keep_their_words(store: Store, failing: Path) -> None:
    import_recording(read_recording(failing), store.path)
    rows = store.results.list("failing")
    assert [row["outcome"] for row in rows] == [
        "correct",
        "runtime",
        "compile",
        "runtime",
        "timeout",
        "wrong_result",
    ]
    assert len(store.results.list(outcome="runtime")) == 2


@pytest.mark.parametrize("version", ["0.9.0", "1.0.1", "2.0.0", 1, None])
def test_t4_of_another_version_is_refused(store: Store, tmp_path: Path, version: object) -> None:
    path = tmp_path / "newer.t4.json"
    path.write_text(json.dumps({**FAILING, "schema_version": version}))
    with pytest.raises(StudyError, match=rf"schema_version = {version!r}: this autotune reads T4 1\.0\.0"):
        read_recording(path)


def test_a_merged_space_stays_one(store: Store, tmp_path: Path, failing: Path) -> None:
    import_recording(read_recording(failing), tmp_path / "other.db")
    assert merge(tmp_path / "other.db", store.path).trials == 6
    assert import_recording(read_recording(failing), store.path).trials == 0
    assert len(store.results.list("failing.k")) == 6
    assert store.query("SELECT count(*) FROM tuning_targets").rows == ((1,),)
