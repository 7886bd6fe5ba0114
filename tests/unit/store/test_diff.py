"""Two sides of a comparison: which words stand for them, how layers are paired, what counts as a difference."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from autotune.analysis.diff import DateSide, DeviceSide, StudySide, differences, resolve
from autotune.devices.device import DeviceInfo
from autotune.errors import StoreError
from autotune.problem import Layer
from autotune.store import BestRow, Store, StudyRow
from autotune.trial import Timing

from .builders import CONV1, CONV2, H200, HOST, correct, open_scope, run_trial, timing_of

A100 = DeviceInfo("cuda", "NVIDIA A100-SXM4-40GB", 80, 108, 40_000_000_000)
LARGER = dataclasses.replace(A100, name="NVIDIA A100-SXM4-80GB", memory_bytes=80_000_000_000)


def study(name: str, generation: int = 1) -> StudyRow:
    return StudyRow(name, generation, 0, "", datetime(2026, 11, 20, tzinfo=UTC), 2, 10)


MERGED = dataclasses.replace(study("lenet", 3), imported_from="other.db")
STUDIES = [study("lenet"), study("lenet", 2), MERGED, study("h200"), study("2026-11-20"), study("a@b")]
DEVICES = [H200, A100, LARGER]


def test_words_stand_for_studies_devices_and_dates() -> None:
    def side(word: str, by: str | None = None) -> object:
        return resolve(word, STUDIES, DEVICES, by)

    assert side("lenet") == StudySide("lenet", 2), "the newest that was begun here"
    assert side("lenet@3") == StudySide("lenet", 3)
    assert side("lenet@1") == StudySide("lenet", 1)
    assert side("a@b") == StudySide("a@b", 1), "a study may be called so"
    assert side("nvidia h200") == DeviceSide(H200)
    assert side("40GB") == DeviceSide(A100)
    assert side("h200", "device") == DeviceSide(H200)
    assert side("h200", "study") == StudySide("h200", 1)
    end = datetime(2026, 11, 19, 23, 59, 59, 999_999, UTC)
    assert side("2026-11-19") == DateSide(end), "a day stands for its end"
    assert side("9999-12-31") == DateSide(end.replace(9999, 12, 31))
    assert side("2026-11-19T14:00") == DateSide(datetime(2026, 11, 19, 14, tzinfo=UTC))
    assert side("2026-11-19T14:00+02:00") == DateSide(datetime(2026, 11, 19, 12, tzinfo=UTC))


@pytest.mark.parametrize(
    ("word", "by", "words"),
    [
        ("h200", None, "'h200' is a device and a study; say which with --by device or --by study"),
        ("2026-11-20", None, "'2026-11-20' is a date and a study; say which with --by date or --by study"),
        ("a100", None, "'a100' fits NVIDIA A100-SXM4-40GB, NVIDIA A100-SXM4-80GB; give more of the name"),
        ("lenet@4", None, "'lenet@4' is nothing to compare; there are the studies lenet@1 to lenet@3, h200, "),
        (
            "lenet",
            "device",
            "'lenet' is nothing to compare; there are the devices NVIDIA H200, NVIDIA A100-SXM4-40GB, ",
        ),
        ("0001-01-01T00:00+14:00", "date", "'0001-01-01T00:00+14:00' is nothing to compare; there are ISO dates"),
        ("yesterday", "date", "'yesterday' is nothing to compare; there are ISO dates such as 2026-11-20"),
    ],
)
def test_a_word_that_stands_for_nothing_or_too_much(word: str, by: str | None, words: str) -> None:
    with pytest.raises(StoreError) as caught:
        resolve(word, STUDIES, DEVICES, by)
    assert str(caught.value).startswith(words)


def test_an_empty_database_offers_nothing() -> None:
    with pytest.raises(StoreError, match=r"there are the studies \(none\), the devices \(none\), ISO dates"):
        resolve("lenet", [], [])


def best_of(store: Store, layer: Layer, median_us: float, **where: object) -> BestRow:
    """A stored best of a layer."""
    name = f"s{len(store.studies.list())}"
    scope = open_scope(store, study=name, layer=layer, **where)  # type: ignore[arg-type]
    run_trial(store, scope, correct(0, median_us))
    (row,) = store.best.of_study(name, 1)
    return row


def steady(row: BestRow, median_us: float, half_width_us: float = 0.0) -> BestRow:
    """The row with five samples about a median."""
    samples = (median_us, median_us - half_width_us, median_us, median_us + half_width_us, median_us)
    return dataclasses.replace(row, timing=Timing(samples, median_us, median_us, median_us, "cold"))


def test_layers_are_paired_by_shape_and_device(store: Store) -> None:
    one, two = best_of(store, CONV1, 10.0), best_of(store, CONV2, 20.0)
    elsewhere = best_of(store, CONV1, 5.0, device=HOST)
    found = differences([steady(one, 10.0), two], [elsewhere, steady(one, 9.0)], lambda row: None)
    assert [(difference.either.layer.name, difference.verdict) for difference in found] == [
        ("conv1", "faster"),
        ("conv2", "only A"),
        ("conv1", "only B"),
    ]
    (across,) = differences([steady(one, 10.0)], [steady(elsewhere, 5.0)], lambda row: None, across_devices=True)
    assert (across.ratio, across.verdict) == (0.5, "faster")


def test_a_difference_counts_beyond_the_floor_and_the_samples_own_spread(store: Store) -> None:
    row = best_of(store, CONV1, 100.0)

    def verdict(after_us: float, half_width_us: float = 0.0, floor: float | None = None) -> str:
        (found,) = differences([steady(row, 100.0)], [steady(row, after_us, half_width_us)], lambda best: floor)
        return found.verdict

    assert verdict(101.0) == "slower"
    assert verdict(99.0) == "faster"
    assert verdict(100.0) == "same"
    assert verdict(101.0, floor=0.02) == "same"
    assert verdict(103.0, floor=0.02) == "slower"
    assert verdict(103.0, half_width_us=5.0) == "same"


def test_what_changed_in_the_config_is_said(store: Store) -> None:
    first, second = best_of(store, CONV1, 10.0), best_of(store, CONV1, 10.0)
    (found,) = differences([first], [second], lambda row: None)
    assert (found.config_changed, found.changes) == (False, "")
    scope = open_scope(store, study="other", layer=CONV1)
    run_trial(store, scope, correct(3, 9.0))
    (third,) = store.best.of_study("other", 1)
    (found,) = differences([first], [third], lambda row: None)
    assert (found.config_changed, found.changes) == (True, "block_p=0->3 vector=True->False")
    run_trial(store, scope, correct(4, 8.0, family="implicit_gemm"))
    (found,) = differences([first], list(store.best.of_study("other", 1)), lambda row: None)
    assert found.changes == "direct->implicit_gemm"


def test_twins_of_one_shape_are_paired_in_order(store: Store) -> None:
    row = best_of(store, CONV1, 10.0)
    twin = dataclasses.replace(row, layer=Layer("twin", CONV1.problem))
    found = differences([row, twin], [row, twin], lambda best: None)
    assert [difference.either.layer.name for difference in found] == ["conv1", "twin"]


def test_timing_without_samples_is_no_error(store: Store) -> None:
    row = best_of(store, CONV1, 10.0)
    bare = dataclasses.replace(row, timing=dataclasses.replace(timing_of(10.0), samples_us=()))
    (found,) = differences([bare], [bare], lambda best: None)
    assert (found.verdict, found.noise) == ("same", 0.0)
