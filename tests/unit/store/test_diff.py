"""Comparisons of two sides: the words that select them, the pairs of layers, and the reported differences."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from autotune.analysis.diff import diff_rows, resolve
from autotune.columns import Cells
from autotune.devices.device import DeviceInfo
from autotune.errors import StoreError
from autotune.problem import Layer
from autotune.store import Store, StudyRow
from autotune.trial import Timing, Trial

from .builders import (
    CONV1,
    CONV2,
    DIRECT,
    DRIVER_580,
    H200,
    HOST,
    correct,
    open_scope,
    run_trial,
    study_of,
    timing_of,
)

A100 = DeviceInfo("cuda", "NVIDIA A100-SXM4-40GB", 80, 108, 40_000_000_000)
LARGER = dataclasses.replace(A100, name="NVIDIA A100-SXM4-80GB", memory_bytes=80_000_000_000)


def study(name: str, generation: int = 1) -> StudyRow:
    return StudyRow(name, generation, 0, "", datetime(2026, 11, 20, tzinfo=UTC), 2, 10)


MERGED = dataclasses.replace(study("lenet", 3), imported_from="other.db")
STUDIES = [study("lenet"), study("lenet", 2), MERGED, study("h200"), study("a@b")]
DEVICES = [H200, A100, LARGER]


def test_words_stand_for_studies_and_devices() -> None:
    def side(word: str) -> object:
        found = resolve(word, STUDIES, DEVICES)
        return (found.study, found.generation) if found.study else found.device

    assert side("lenet") == ("lenet", 2), "the newest that was begun here"
    assert side("lenet@3") == ("lenet", 3)
    assert side("lenet@1") == ("lenet", 1)
    assert side("a@b") == ("a@b", 1), "a study may be called so"
    assert side("nvidia h200") == H200
    assert side("40GB") == A100
    assert side("h200@1") == ("h200", 1)
    assert str(resolve("lenet", STUDIES, DEVICES)) == "lenet generation 2"


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("h200", "'h200' fits the study h200 generation 1, the device NVIDIA H200; give NAME@GENERATION of a study"),
        ("a100", "'a100' fits the device NVIDIA A100-SXM4-40GB, the device NVIDIA A100-SXM4-80GB; "),
        ("lenet@4", "'lenet@4' is neither a study nor a device; there are the studies lenet@1 to lenet@3, h200, "),
        ("yesterday", "'yesterday' is neither a study nor a device; "),
    ],
)
def test_a_word_that_stands_for_nothing_or_too_much(word: str, words: str) -> None:
    with pytest.raises(StoreError) as caught:
        resolve(word, STUDIES, DEVICES)
    assert str(caught.value).startswith(words)


def test_an_empty_database_offers_nothing() -> None:
    with pytest.raises(StoreError, match=r"there are the studies \(none\), the devices \(none\)"):
        resolve("lenet", [], [])


def timed(number: int, median_us: float, half_width_us: float = 0.0, *, deterministic: bool = True) -> Trial:
    """A correct trial with five samples about a median."""
    samples = (median_us, median_us - half_width_us, median_us, median_us + half_width_us, median_us)
    timing = Timing(samples, median_us, median_us, median_us, "cold")
    return dataclasses.replace(correct(number, median_us, deterministic=deterministic), timing=timing)


def add(store: Store, study: str, trial: Trial, layer: Layer = CONV1, device: DeviceInfo = H200) -> None:
    """A stored trial of a study."""
    run_trial(store, open_scope(store, study=study, layer=layer, device=device), trial)


def differences(store: Store, a: str = "before", b: str = "after") -> list[Cells]:
    studies, devices = store.studies.list(), store.devices.list()
    return list(diff_rows(store.results.diff(resolve(a, studies, devices), resolve(b, studies, devices))))


def test_layers_are_paired_by_shape_and_device(store: Store) -> None:
    add(store, "before", timed(0, 10.0))
    add(store, "before", timed(0, 20.0), CONV2)
    add(store, "after", timed(0, 9.0))
    add(store, "after", timed(0, 5.0), device=HOST)
    assert [(row["layer"], row["device"], row["verdict"]) for row in differences(store)] == [
        ("after.conv1", "NVIDIA H200", "faster"),
        ("before.conv2", "NVIDIA H200", "only A"),
        ("after.conv1", "AMD EPYC", "only B"),
    ]
    across = differences(store, "H200", "EPYC")
    assert [(row["layer"], row["b_over_a"], row["verdict"]) for row in across] == [
        ("after.conv1", pytest.approx(5 / 9), "faster"),
        ("before.conv2", None, "only A"),
    ]


@pytest.mark.parametrize(
    ("after_us", "half_width_us", "floor", "verdict"),
    [
        (101.0, 0.0, None, "slower"),
        (99.0, 0.0, None, "faster"),
        (100.0, 0.0, None, "same"),
        (101.0, 0.0, 0.02, "same"),
        (103.0, 0.0, 0.02, "slower"),
        (103.0, 5.0, None, "same"),
    ],
)
def test_a_difference_counts_beyond_the_floor_and_the_samples_own_spread(
    store: Store, after_us: float, half_width_us: float, floor: float | None, verdict: str
) -> None:
    add(store, "before", timed(0, 100.0))
    add(store, "after", timed(0, after_us, half_width_us))
    if floor is not None:
        store.noise_floors.add(H200, DRIVER_580, "cold", 1.0, floor)
    (found,) = differences(store)
    assert found["verdict"] == verdict


def test_times_taken_in_different_ways_are_not_compared(store: Store) -> None:
    add(store, "before", timed(0, 100.0))
    trial = timed(0, 90.0)
    assert trial.timing is not None
    add(store, "after", dataclasses.replace(trial, timing=dataclasses.replace(trial.timing, launch="graph")))
    (found,) = differences(store)
    assert (found["verdict"], found["b_over_a"]) == ("not comparable", None)


def test_what_changed_in_the_config_is_said(store: Store) -> None:
    add(store, "before", correct(0, 10.0))
    (same,) = differences(store, "before", "before")
    assert (same["config_changed"], same["changes"]) == (False, None)
    add(store, "after", correct(3, 9.0))
    (found,) = differences(store)
    assert (found["config_changed"], found["changes"]) == (True, "block_p=0->3 vector=True->False")
    add(store, "after", correct(4, 8.0, family="implicit_gemm"))
    (found,) = differences(store)
    assert found["changes"] == "direct->implicit_gemm"


def test_twins_of_one_shape_are_paired_in_order(store: Store) -> None:
    key = store.studies.begin(study_of("twins", (CONV1, Layer("twin", CONV1.problem))))
    scope = store.scopes.open(key, CONV1, H200, DRIVER_580, "cold", [DIRECT])
    run_trial(store, scope, correct(0, 10.0))
    found = differences(store, "twins", "twins")
    assert [(row["layer_a"], row["layer_b"]) for row in found] == [
        ("twins.conv1", "twins.conv1"),
        ("twins.twin", "twins.twin"),
    ]


def test_a_kernel_that_is_not_deterministic_is_compared_where_it_beats_the_others(store: Store) -> None:
    for number, (median_us, deterministic) in enumerate(((10.0, True), (12.0, False))):
        add(store, "before", timed(number, median_us, deterministic=deterministic))
    assert [row["a_us"] for row in differences(store, "before", "before")] == [10.0]
    add(store, "before", timed(2, 9.0, deterministic=False))
    assert [row["a_us"] for row in differences(store, "before", "before")] == [9.0, 10.0]


def test_timing_without_samples_is_no_error(store: Store) -> None:
    add(store, "before", dataclasses.replace(correct(0, 10.0), timing=bare_timing()))
    (found,) = differences(store, "before", "before")
    assert (found["verdict"], found["noise_fraction"]) == ("same", 0.0)


def bare_timing() -> Timing:
    return dataclasses.replace(timing_of(10.0), samples_us=())
