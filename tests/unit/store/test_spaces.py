"""Recorded spaces of other kernels: stored once, listed, never best, and out again as T4 without loss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.errors import StoreError, StudyError
from autotune.exporting import export_t4
from autotune.exporting.t4_spaces import t4_space
from autotune.interchange.files import read_recording
from autotune.interchange.recorded_space import Recording
from autotune.interchange.t4 import t4_document
from autotune.store import Imported, Store, import_recording, merge
from autotune.trial import Outcome
from tests.long_run import long_run

from .builders import CONV1, HOST, config_of, correct, failed, open_scope, run_trial, source_of

DATA = Path(__file__).parents[2] / "data" / "recorded-spaces"
CACHE = DATA / "convolution_milo-A6000.json.gz"
T4 = DATA / "convolution_milo-A6000.t4.json.gz"


def told(recording: Recording) -> set[tuple[object, ...]]:
    """Each config with what was recorded of it, whatever order the parameters and values have."""
    return {
        (tuple(sorted(recording.config(row).items)), recording.times_us[row], recording.failures[row])
        for row in range(len(recording.rows))
    }


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
    rows = store.spaces.list("convolution_milo-A6000")
    assert len(rows) == 4362
    assert (rows[0].name, rows[0].device.name, rows[0].device.kind) == (
        "convolution_milo-A6000.convolution_kernel",
        "NVIDIA RTX A6000",
        "recorded",
    )
    assert [row.trial.median_us for row in store.spaces.list(sort="median", limit=1)] == [recording.optimum_us]
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
    assert [row.median_us for row in store.spaces.list("mine")] == [2500.0, 3500.0]
    assert [row.median_us for row in store.spaces.list("mine.k", limit=1)] == [2500.0]


def test_failures_keep_their_words(store: Store, failing: Path) -> None:
    import_recording(read_recording(failing), store.path)
    rows = store.spaces.list("failing")
    assert [row.trial.outcome for row in rows] == [
        "correct",
        "runtime",
        "compile",
        "runtime",
        "timeout",
        "wrong_result",
    ]
    assert len(store.spaces.list(outcome=Outcome.RUNTIME)) == 2
    words = [result["invalidity"] for result in t4_results(rows)]
    assert words == ["correct", "constraints", "compile", "runtime", "timeout", "correctness"]


def t4_results(rows: object) -> list[dict[str, object]]:
    document = json.loads(json.dumps(t4_document(t4_space(rows))))  # type: ignore[arg-type]
    results: list[dict[str, object]] = document["results"]
    return results


@pytest.mark.parametrize("file", [CACHE, *long_run((T4,))], ids=["cache", "t4"])
def test_what_was_imported_is_exported_without_loss(store: Store, tmp_path: Path, file: Path) -> None:
    recording = read_recording(file)
    import_recording(recording, store.path)
    (path,) = export_t4(store.spaces.list(), tmp_path / "out")
    again = read_recording(path)
    assert told(again) == told(recording)
    assert (again.template, again.device_name) == (recording.template, recording.device_name)


def test_the_published_example_is_what_is_written_of_it(store: Store, tmp_path: Path, failing: Path) -> None:
    import_recording(read_recording(failing), store.path)
    (path,) = export_t4(store.spaces.list(), tmp_path / "out")
    document = json.loads(path.read_text())
    assert document["schema_version"] == "1.0.0"
    assert document["metadata"]["timeunit"] == "microseconds"
    for written, had in zip(document["results"], json.loads(json.dumps(FAILING))["results"], strict=True):
        assert written["configuration"] == had["configuration"]
        assert written["invalidity"] == had["invalidity"]
        assert {*had, "times", "correctness", "objectives", "timestamp"} == set(written)
        assert [m["value"] for m in written["measurements"]] == [m["value"] for m in had["measurements"]]


def test_own_trials_are_exported_by_family_layer_device_and_policy(store: Store, tmp_path: Path) -> None:
    for device in (None, HOST):
        scope = open_scope(store, device=device) if device else open_scope(store)
        for number, family in enumerate(("direct", "implicit_gemm", "direct")):
            source = source_of(config_of(number, family))
            run_trial(store, scope, correct(number, 10.25 + number, source=source, family=family), source)
        store.trials.add(scope, failed(3, Outcome.INVALID_CONFIG))
        store.trials.begin(scope, 4, config_of(4))
    paths = export_t4(store.trials.list(), tmp_path / "t4")
    assert sorted(path.name for path in paths) == [
        "lenet.conv1.direct.AMD_EPYC.cold.t4.json",
        "lenet.conv1.direct.NVIDIA_H200.cold.t4.json",
        "lenet.conv1.implicit_gemm.AMD_EPYC.cold.t4.json",
        "lenet.conv1.implicit_gemm.NVIDIA_H200.cold.t4.json",
    ]
    recording = read_recording(tmp_path / "t4" / "lenet.conv1.direct.NVIDIA_H200.cold.t4.json")
    assert (recording.template, recording.device_name, recording.optimum_us) == ("direct", "NVIDIA H200", 10.25)
    trials = [recording.trial(row, recording.config(row)) for row in range(len(recording.rows))]
    assert [(t.config.values()["block_p"], t.outcome, t.median_us) for t in trials] == [
        (0, "correct", 10.25),
        (2, "correct", 12.25),
        (3, "runtime", None),
    ]
    document = json.loads((tmp_path / "t4" / "lenet.conv1.direct.NVIDIA_H200.cold.t4.json").read_text())
    assert document["results"][0]["times"]["runtimes"] == [10.25 * 1.1, 10.25, 10.25 * 0.9]
    assert document["results"][2]["invalidity"] == "constraints"
    assert document["metadata"]["problem"] == str(CONV1.problem)


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
    assert len(store.spaces.list("failing.k")) == 6
    assert store.query("SELECT count(*) FROM tuning_targets").rows == ((1,),)
