"""Reading recorded spaces: both formats agree, order of values, failures, files that are cut short or wrong."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest

from autotune.errors import StudyError
from autotune.interchange.files import read_recording
from autotune.trial import Config, Outcome

DATA = Path(__file__).parents[1] / "data" / "recorded-spaces"

CACHE = {
    "device_name": "Test GPU",
    "kernel_name": "kernel",
    "tune_params_keys": ["block", "unroll", "mode"],
    "tune_params": {"block": [64, 32, 128], "unroll": [0, 1], "mode": ["a", "b"]},
    "objective": "time",
    "cache": {
        "32,0,a": {"block": 32, "unroll": 0, "mode": "a", "time": 2.5},
        "64,1,b": {"block": 64, "unroll": 1, "mode": "b", "time": 1.25},
        "64,0,a": {"block": 64, "unroll": 0, "mode": "a", "time": "CompilationFailedConfig"},
        "128,0,a": {"block": 128, "unroll": 0, "mode": "a", "time": "RuntimeFailedConfig"},
        "128,1,a": {"block": 128, "unroll": 1, "mode": "a", "time": "InvalidConfig"},
    },
}


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_cache_file_keeps_its_order_its_times_and_its_failures(tmp_path: Path) -> None:
    recording = read_recording(written(tmp_path / "cache.json", json.dumps(CACHE)))
    assert [param.values for param in recording.params] == [(64, 32, 128), (0, 1), ("a", "b")]
    assert recording.device_name == "Test GPU"
    assert recording.optimum_us == 1250.0
    assert [str(recording.config(row)) for row in range(5)] == [
        "kernel block=64 unroll=0 mode=a",
        "kernel block=64 unroll=1 mode=b",
        "kernel block=32 unroll=0 mode=a",
        "kernel block=128 unroll=0 mode=a",
        "kernel block=128 unroll=1 mode=a",
    ]
    outcomes = [recording.trial(row, recording.config(row)).outcome for row in range(5)]
    assert outcomes == [Outcome.COMPILE, Outcome.CORRECT, Outcome.CORRECT, Outcome.RUNTIME, Outcome.RUNTIME]
    assert recording.trial(0, recording.config(2)).median_us == 2500.0
    assert all(recording.trial(0, recording.config(row)).compiled for row in range(5))  # each costs an evaluation


def test_values_keep_the_form_that_the_file_gives_them(tmp_path: Path) -> None:
    values = [0.5, [1, 2], None, True, "text", 2.0]
    cache = {str(i): {"block": value, "time": 1.0 + i} for i, value in enumerate(values)}
    document = {"tune_params_keys": ["block"], "tune_params": {"block": values}, "cache": cache}
    text = "\ufeff" + json.dumps(document)  # with the mark that some editors write
    recording = read_recording(written(tmp_path / "cache.json", text))
    assert [recording.entry(recording.config(row))["config"] for row in range(6)] == [{"block": v} for v in values]


@pytest.mark.parametrize("cut", ["}}", "}"])
def test_missing_closing_brackets_and_gzip_change_nothing(tmp_path: Path, cut: str) -> None:
    text = json.dumps(CACHE).removesuffix(cut)
    open_end = tmp_path / "open.json.gz"
    open_end.write_bytes(gzip.compress((text + (",\n" if cut == "}}" else "\n")).encode()))
    recording = read_recording(open_end)
    assert len(recording.rows) == 5
    assert recording.optimum_us == 1250.0


def test_a_t4_file_says_what_its_cache_file_says() -> None:
    cache = read_recording(DATA / "convolution_milo-A6000.json.gz")
    t4 = read_recording(DATA / "convolution_milo-A6000.t4.json.gz")
    assert len(t4.rows) == len(cache.rows) == 4362
    for row in range(len(cache.rows)):
        config = cache.config(row)
        place = t4.row_of(Config(t4.template, config.pairs))
        assert place is not None, config
        assert t4.times_us[place] == pytest.approx(cache.times_us[row]), config


def test_t4_values_are_ascending_and_units_are_respected(tmp_path: Path) -> None:
    def result(block: int, time: float | str, invalidity: str) -> dict[str, object]:
        measurement = {"name": "time", "value": time, "unit": ""}
        return {"configuration": {"block": block}, "invalidity": invalidity, "measurements": [measurement]}

    document = {
        "metadata": {"timeunit": "microseconds"},
        "results": [result(64, 7.0, "correct"), result(8, 9.0, "correct"), result(16, "x", "compile")],
    }
    recording = read_recording(written(tmp_path / "t4.json", json.dumps(document)))
    assert recording.params[0].values == (8, 16, 64)
    assert list(recording.times_us) == [9.0, math.inf, 7.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"cache": 1,, }', r"bad\.json:1: not JSON"),
        ("[1, 2]", r"bad\.json: the file: expected an object"),
        ('{"a": 1}', r"bad\.json: neither a Kernel Tuner cache file .* nor a T4"),
        ('{"cache": {}, "tune_params_keys": ["a"]}', r"bad\.json: tune_params: expected an object, found nothing"),
        ('{"cache": {}, "tune_params_keys": [], "tune_params": {}}', r"bad\.json: records no config with a time"),
        ('{"results": {}}', r"bad\.json: results: expected an array"),
        (
            '{"results": [{"configuration": {"a": 1}, "measurements": []}]}',
            r"results\[0\].*no measurement named `time`",
        ),
        ('{"results": [], "metadata": {"timeunit": "days"}}', r"timeunit = 'days': expected one of nanoseconds"),
        ('{"results": [], "metadata": {"timeunit": "' + "9" * 5000 + '"}}', r"timeunit = '9{96}...: expected one of"),
        ('{"results": [], "schema_version": "' + "9" * 5000 + '"}', r"schema_version = '9{96}...: this autotune reads"),
        (
            json.dumps(CACHE | {"cache": {"9": {"block": 9, "unroll": 0, "mode": "a", "time": 1.0}}}),
            r"block = 9 is not one of its values \(64, 32, 128\)",
        ),
        (json.dumps(CACHE | {"cache": {"9": {"block": 64, "time": 1.0}}}), r"lacks the parameter 'unroll'"),
        (json.dumps(CACHE | {"cache": {"9": {"block": 64}}}), r"cache\['9'\]: `time` is None"),
        (json.dumps(CACHE | {"objective": "GFLOP/s"}), r"objective = 'GFLOP/s'"),
        ('{"cache": ' + "9" * 5000 + "}", r"a number of 5000 digits: 99999"),
        (
            json.dumps(CACHE | {"tune_params": CACHE["tune_params"] | {"block": list(range(40000))}}),  # type: ignore[operator]
            r"bad\.json: block: 40000 values; a parameter has at most 32767",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_path_and_reason(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(StudyError, match=says) as refused:
        read_recording(written(tmp_path / "bad.json", text))
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_missing_or_not_gzip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"none\.json: cannot be read"):
        read_recording(tmp_path / "none.json")
    broken = tmp_path / "broken.json.gz"
    broken.write_bytes(gzip.compress(b"{}")[:8])
    with pytest.raises(StudyError, match=r"broken\.json\.gz: cannot be read"):
        read_recording(broken)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StudyError, match="is not UTF-8 text"):
        read_recording(binary)


def test_a_config_that_was_not_recorded_is_refused(tmp_path: Path) -> None:
    recording = read_recording(written(tmp_path / "cache.json", json.dumps(CACHE)))
    with pytest.raises(StudyError, match="was not recorded"):
        recording.trial(0, Config("kernel", (("block", 32), ("unroll", 1), ("mode", "a"))))
