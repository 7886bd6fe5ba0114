"""Replaying recorded spaces: runs are reproducible, scored by their evaluations, and the default sampler finds the
best.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.trial import Config
from tests.benchmarks.replay import Run, replay, replay_once, score
from tests.recorded_spaces import Recording, read_recording, read_recordings

DATA = Path(__file__).parents[1] / "data" / "recorded-spaces"
H200 = DATA.parent / "databases" / "report-layers.db"
FILES = ["convolution-RTX_3090.json.gz", "convolution_milo-A6000.json.gz"]


@pytest.fixture(scope="module", params=FILES)
def recording(request: pytest.FixtureRequest) -> Recording:
    return read_recording(DATA / str(request.param))


def test_a_run_is_reproducible_and_its_curve_is_that_of_its_configs(recording: Recording) -> None:
    run = replay_once(recording, sampler="random", seed=3, evaluations=40)
    assert run.configs == replay_once(recording, sampler="random", seed=3, evaluations=40).configs
    assert len(set(run.configs)) == 40
    times = [recording.trial(0, config).median_us or math.inf for config in run.configs]
    for evaluations in (1, 10, 40):
        assert run.after(evaluations) == pytest.approx(min(times[:evaluations]) / recording.optimum_us)


def test_a_t4_file_says_what_its_cache_file_says() -> None:
    cache = read_recording(DATA / "convolution_milo-A6000.json.gz")
    t4 = read_recording(DATA / "convolution_milo-A6000.t4.json.gz")
    assert len(t4.rows) == len(cache.rows) == 4362
    for row in range(len(cache.rows)):
        place = t4.row_of(Config(t4.template, cache.config(row).pairs))
        assert place is not None
        assert t4.times_us[place] == pytest.approx(cache.times_us[row])


def test_each_layer_of_a_database_is_a_recording_with_all_its_families() -> None:
    recordings = {recording.name.partition("#")[2]: recording for recording in read_recordings(H200)}
    assert len(recordings) == 8
    assert len(recordings["lenet-k5.conv1 on NVIDIA H200"].spaces) > 5


def test_scores_are_medians_percentiles_and_means_over_files() -> None:
    runs = [
        Run(file, "random", seed, (), (2.0, 1.0 + offset + 0.1 * seed), (0.5, 2.0))
        for file, offset in (("a", 0.0), ("b", 1.0))
        for seed in range(3)
    ]
    by_file = {(row.file, row.evaluations): row for row in score(runs, [1, 2])}
    assert by_file["a", 1].median == by_file["b", 1].median == 2.0
    assert by_file["a", 2].median == pytest.approx(1.1)
    assert by_file["b", 2].median == pytest.approx(2.1)
    assert by_file["a", 2].p90 == pytest.approx(1.18)
    assert by_file["a", 2].within_5_percent == pytest.approx(1 / 3)
    assert by_file["a", 1].seconds_per_evaluation == 0.5
    assert by_file["a", 2].seconds_per_evaluation == 1.0
    assert by_file["geomean", 2].median == pytest.approx((1.1 * 2.1) ** 0.5)


def test_replay_covers_every_file_sampler_and_budget() -> None:
    recordings = [read_recording(DATA / name) for name in FILES]
    scores = replay(recordings, samplers=["random", "default"], seeds=2, budgets=[5, 12], jobs=2)
    assert len(scores) == 2 * 2 * 3
    assert all(row.median >= 1.0 and row.seconds_per_evaluation > 0 for row in scores)


def test_configs_in_flight_are_all_answered(recording: Recording) -> None:
    run = replay_once(recording, sampler="default", seed=0, evaluations=40, in_flight=8)
    assert len(set(run.configs)) == 40


def mean_after(evaluations: int, runs: Sequence[Run]) -> float:
    """The geometric mean over files of the geometric mean over seeds of best / optimum."""
    files = dict.fromkeys(run.file for run in runs)
    means = [statistics.geometric_mean(run.after(evaluations) for run in runs if run.file == file) for file in files]
    return statistics.geometric_mean(means)


@pytest.mark.long
def test_the_default_sampler_comes_close_on_recorded_spaces() -> None:
    """Guards against regressions; docs/search.md shows how good the sampler is on other spaces.

    After 80 evaluations a run on convolution_milo has either found the few fastest configs or is at 1.285, so the
    median of few runs is a matter of luck. Their mean is not: 1.07 for both files, with a standard error of 0.02.
    """
    runs: dict[str, list[Run]] = {"default": [], "random": []}
    for name, seeds in zip(FILES, (2, 10), strict=True):
        recording = read_recording(DATA / name)
        for sampler, of_sampler in runs.items():
            of_sampler += [replay_once(recording, sampler=sampler, seed=seed, evaluations=80) for seed in range(seeds)]
    assert mean_after(50, runs["default"]) <= 1.20
    assert mean_after(80, runs["default"]) <= 1.12
    assert mean_after(80, runs["random"]) > 1.12, "they are not easy"


@pytest.mark.long
def test_the_default_sampler_finds_the_best_kernels_of_the_recorded_families() -> None:
    recordings = [read_recording(path) for path in sorted((DATA / "h200").glob("*.t4.json.gz"))]
    assert len(recordings) == 6
    scores = replay(recordings, samplers=["default", "random"], seeds=3, budgets=[50])
    mean = {row.sampler: row for row in scores if row.file == "geomean"}
    assert mean["default"].median <= 1.01
    assert mean["random"].median > 1.05, "they are not easy"
