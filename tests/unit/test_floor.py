"""The floor: no kernel is faster than its memory traffic or its arithmetic."""

from __future__ import annotations

import dataclasses

import pytest

from autotune.measurement.floor import ARITHMETIC_RATE, floor, floor_us
from autotune.problem import Conv2dProblem
from autotune.trial import ACCURACY_CLASSES

RATES = {"copy": 4e12, "fp32": 60e12, "tf32": 400e12, "fp16": 800e12}
CONV1 = Conv2dProblem(10000, 1, 70, 70, 12, 5, 5)
CONV2 = Conv2dProblem(10000, 12, 33, 33, 24, 5, 5)


def test_a_layer_with_little_arithmetic_is_bounded_by_its_bytes() -> None:
    assert floor_us(CONV1, "fp32", RATES) == pytest.approx(4 * (10000 * 70 * 70 + 300 + 522_720_000) / 4e12 * 1e6)


def test_a_layer_with_much_arithmetic_is_bounded_by_its_operations() -> None:
    assert floor_us(CONV2, "fp32", RATES) == pytest.approx(2 * 10000 * 24 * 29 * 29 * 300 / 60e12 * 1e6)


def test_half_the_bytes_take_half_the_time() -> None:
    halved = dataclasses.replace(CONV1, dtype="f16")
    assert floor_us(halved, "fp16", RATES) == pytest.approx((floor_us(CONV1, "fp32", RATES) or 0) / 2)


@pytest.mark.parametrize(
    ("accuracy", "rate"),
    [("fp32", 60e12), ("fp32-3xtf32", 400e12 / 3), ("tf32", 400e12), ("fp16", 800e12), ("bf16", 800e12)],
)
def test_the_unit_follows_the_accuracy_class(accuracy: str, rate: float) -> None:
    busy = dataclasses.replace(CONV2, c=1200)
    assert floor_us(busy, accuracy, RATES) == pytest.approx(busy.flops / rate * 1e6)


def test_tensor_cores_are_no_limit_where_plain_arithmetic_is_faster() -> None:
    rates = {**RATES, "tf32": 90e12}
    assert floor_us(CONV2, "fp32-3xtf32", rates) == floor_us(CONV2, "fp32", rates)


def test_a_gpu_without_tensor_cores_is_bounded_by_plain_arithmetic() -> None:
    rates = {"copy": 4e12, "fp32": 60e12}
    assert floor_us(CONV2, "tf32", rates) == floor_us(CONV2, "fp32", rates)


def test_without_calibration_there_is_no_floor() -> None:
    assert floor_us(CONV1, "fp32", {}) is None
    assert floor_us(CONV1, "fp32", {"fp32": 60e12}) is None


def test_arithmetic_that_was_not_calibrated_does_not_bound() -> None:
    assert floor_us(CONV2, "fp32", {"copy": 4e12}) == pytest.approx(CONV2.minimal_bytes / 4e12 * 1e6)


def test_every_accuracy_class_has_a_unit() -> None:
    assert ARITHMETIC_RATE.keys() == set(ACCURACY_CLASSES)


def test_the_floor_follows_the_algorithm() -> None:
    direct, winograd = floor(CONV2, "fp32", RATES), floor(CONV2, "fp32", RATES, CONV2.flops * 4 // 9)
    assert direct is not None
    assert winograd is not None
    assert winograd.arithmetic_us == pytest.approx(direct.arithmetic_us * 4 / 9)
    assert winograd.memory_us == direct.memory_us
