"""`autotune replay` as a user meets it: figures to recompute, every kind of file, one line for what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import median

import pytest

from tests.unit.tiny import Command, Finished

DATA = Path(__file__).parents[1] / "data" / "recorded-spaces"
H200 = Path(__file__).parents[2] / "tests" / "data" / "databases" / "report-layers.db"

SPACE = {
    "kernel_name": "kernel",
    "device_name": "Test GPU",
    "tune_params_keys": ["block", "scale", "mode"],
    "tune_params": {"block": [64, 32, 128, 256], "scale": [0.5, 1.0, 2], "mode": ["a", "b"]},
    "objective": "time",
}
KEYS = ["file", "sampler", "evaluations", "median", "p90", "within_5_percent", "seconds_per_evaluation"]


def space(path: Path, *, failing: int = 64) -> dict[str, float]:
    """Write a small cache file; the time in ms of each config, infinite for those that fail."""
    times = {}
    cache: dict[str, dict[str, object]] = {}
    for block in (64, 32, 128, 256):
        for scale in (0.5, 1.0, 2):
            for mode in "ab":
                config = {"block": block, "scale": scale, "mode": mode}
                time = float("inf") if block == failing else 1.0 + abs(block - 128) / 64 + scale + (mode == "a")
                times[json.dumps(config)] = time
                cache[f"{block},{scale},{mode}"] = {
                    **config,
                    "time": "RuntimeFailedConfig" if time == float("inf") else time,
                }
    path.write_text(json.dumps(SPACE | {"cache": cache}))
    return times


def scores(finished: Finished) -> list[dict[str, object]]:
    """The rows of a `--json` answer."""
    assert finished.code == 0, finished.err
    rows: list[dict[str, object]] = json.loads(finished.out)
    assert all(list(row) == KEYS for row in rows)
    return rows


def test_the_table_can_be_recomputed_from_the_trace(autotune: Command, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    times = {"one.json": space(tmp_path / "one.json"), "a/one.json": space(tmp_path / "a" / "one.json", failing=0)}
    words = ("--sampler", "random", "--sampler", "default", "--evaluations", "12,4", "--seeds", 5)
    rows = scores(autotune("replay", *times, *words, "--trace", "trace.jsonl", "--json"))
    assert [(row["file"], row["sampler"], row["evaluations"]) for row in rows] == [
        (file, sampler, evaluations)
        for sampler in ("random", "default")
        for evaluations in (4, 12)
        for file in ("one.json", "a/one.json", "geomean")
    ]
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * 2 * 5 * 12
    assert all(list(line) == ["file", "sampler", "seed", "evaluation", "config"] for line in lines)
    for row in rows:
        if row["file"] == "geomean":
            alike = (row["sampler"], row["evaluations"])
            medians = [found["median"] for found in rows if (found["sampler"], found["evaluations"]) == alike]
            one, other, _mean = medians
            assert isinstance(one, float)
            assert isinstance(other, float)
            assert row["median"] == pytest.approx((one * other) ** 0.5)
            continue
        known = times[str(row["file"])]
        ratios = [
            min(
                known[json.dumps(line["config"])]
                for line in lines
                if (line["file"], line["sampler"], line["seed"]) == (row["file"], row["sampler"], seed)
                and line["evaluation"] <= row["evaluations"]
            )
            / min(known.values())
            for seed in range(5)
        ]
        assert row["median"] == pytest.approx(median(ratios)), row
        assert row["within_5_percent"] == sum(ratio <= 1.05 for ratio in ratios) / 5


def test_the_same_seeds_give_the_same_trials_however_many_run_at_once(autotune: Command, tmp_path: Path) -> None:
    space(tmp_path / "one.json")
    words = ("replay", "one.json", "--seeds", 3, "--evaluations", 15, "--sampler", "default", "--sampler", "tpe")
    for jobs in (1, 2):
        assert autotune(*words, "--jobs", jobs, "--trace", f"{jobs}.jsonl").code == 0
    assert (tmp_path / "1.jsonl").read_text() == (tmp_path / "2.jsonl").read_text()


def test_a_small_space_is_searched_and_not_walked_through(autotune: Command, tmp_path: Path) -> None:
    space(tmp_path / "one.json")
    finished = autotune("replay", "one.json", "--evaluations", "8,50", "--seeds", 4, "--trace", "trace.jsonl", "--csv")
    assert finished.out.splitlines()[0] == ",".join(KEYS)
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert len(lines) == 4 * 24, "a space has no more configs than it has"
    firsts = {json.dumps([line["config"] for line in lines if line["seed"] == seed][:8]) for seed in range(4)}
    assert len(firsts) == 4


def test_a_budget_in_which_nothing_is_correct_has_no_ratio(autotune: Command, tmp_path: Path) -> None:
    cache = {str(block): {"block": block, "time": "InvalidConfig"} for block in range(30)}
    document = SPACE | {"tune_params_keys": ["block"], "tune_params": {"block": list(range(31))}}
    (tmp_path / "one.json").write_text(json.dumps(document | {"cache": cache | {"30": {"block": 30, "time": 1.0}}}))
    first, last = (
        row
        for row in scores(autotune("replay", "one.json", "--evaluations", "1,31", "--seeds", 1, "--json"))
        if row["file"] == "one.json"
    )
    assert (first["median"], first["p90"], first["within_5_percent"]) in [(None, None, 0.0), (1.0, 1.0, 1.0)]
    assert (last["median"], last["p90"], last["within_5_percent"]) == (1.0, 1.0, 1.0)


def test_each_layer_of_a_results_database_is_a_recording_with_all_its_families(
    autotune: Command, tmp_path: Path
) -> None:
    shutil.copy(H200, tmp_path / "h200.db")
    words = ("--evaluations", 20, "--seeds", 1, "--sampler", "random", "--trace", "trace.jsonl", "--json")
    files = [str(row["file"]) for row in scores(autotune("replay", "h200.db", *words))]
    assert "h200.db#lenet-k5.conv1 on NVIDIA H200" in files
    assert len(files) == 8 + 1
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert len({line["template"] for line in lines if "lenet-k5.conv1" in line["file"]}) > 5
    listed = {
        (row["template"], json.dumps(row["config"]))
        for row in json.loads(autotune("trials", "--db", "h200.db", "--json").out)
        if row["outcome"] == "correct"
    }
    for line in lines:
        assert (line["template"], json.dumps(line["config"])) in listed


def test_a_trace_that_cannot_be_written_is_one_line(autotune: Command, tmp_path: Path) -> None:
    shutil.copy(DATA / "convolution-RTX_3090.json.gz", tmp_path / "space.gz")
    full = "the disk is full; make room and run the command again"
    for path, why in (("/dev/full", full), (".", "cannot be written: Is a directory; give another file")):
        words = ("--evaluations", 5, "--seeds", 1, "--sampler", "random", "--trace", path)
        assert autotune("replay", "space.gz", *words).complaint == f"{path}: {why}"


def test_a_replay_leaves_no_file_but_the_trace(autotune: Command, tmp_path: Path) -> None:
    shutil.copy(DATA / "convolution-RTX_3090.json.gz", tmp_path / "space.gz")
    before = sorted(path.name for path in tmp_path.iterdir())
    assert autotune("replay", "space.gz", "--evaluations", 5, "--seeds", 1, "--trace", "t").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "t"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "space.json:1: not JSON"),
        ("[" * 100_000, "space.json: nested too deeply"),
        ('{"cache": {}}', "tune_params_keys"),
        ("{}", "neither a Kernel Tuner cache file"),
        (json.dumps(SPACE | {"tune_params_keys": ["block", "block"], "cache": {}}), "names a parameter twice"),
        (
            '{"cache": {"1": {"a": 1, "time": NaN}}, "tune_params_keys": ["a"], "tune_params": {"a": [1]}}',
            "no config with",
        ),
        ("SQLite format 3\0 and then nothing", "not an SQLite file"),
    ],
)
def test_a_malformed_file_is_one_line(autotune: Command, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "space.json").write_text(text)
    finished = autotune("replay", "space.json")
    assert says in finished.complaint
    assert "space.json" in finished.complaint


def test_what_is_no_file_is_one_line(autotune: Command, tmp_path: Path, filled: Path) -> None:
    assert "nothing.json: cannot be read" in autotune("replay", "nothing.json").complaint
    assert "families: cannot be read" in autotune("replay", "families").complaint
    space(tmp_path / "one.json")
    assert "cannot be written" in autotune("replay", "one.json", "--trace", "no/such/folder").complaint


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("one.json", "--sampler", "annealing"),
        ("one.json", "--evaluations", "0"),
        ("one.json", "--evaluations", "50,,100"),
        ("one.json", "--evaluations", "many"),
        ("one.json", "--seeds", "0"),
        ("one.json", "--jobs", "0"),
        ("one.json", "--in-flight", "0"),
        ("one.json", "--trace", "one.json"),
    ],
)
def test_wrong_usage_exits_with_2_and_harms_nothing(autotune: Command, tmp_path: Path, words: tuple[str, ...]) -> None:
    space(tmp_path / "one.json")
    before = (tmp_path / "one.json").read_bytes()
    finished = autotune("replay", *words)
    assert finished.code == 2
    assert finished.out == ""
    assert (tmp_path / "one.json").read_bytes() == before
