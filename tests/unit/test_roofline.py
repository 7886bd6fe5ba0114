"""The floor: no kernel is faster than its memory traffic or its arithmetic."""

from __future__ import annotations

import dataclasses
import functools
import operator
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.measurement.roofline import ARITHMETIC_RATE, floor, floor_us, tensor_share
from autotune.measurement.traffic import minimal_bytes
from autotune.operation.registry import operation
from autotune.problem import Conv2dProblem, make_problem
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
    assert floor_us(CONV2, "fp32", {"copy": 4e12}) == pytest.approx(minimal_bytes(CONV2) / 4e12 * 1e6)


def test_what_is_read_more_than_is_written_takes_the_rate_of_reads() -> None:
    """Pooling reads four times as much as it writes; a read rate below the copy rate, or none, changes nothing."""
    sizes = {"n": 8, "c": 64, "h": 112, "w": 112, "r": 2, "s": 2, "stride_h": 2, "stride_w": 2}
    pooling = make_problem(operation("max_pool2d"), sizes)
    y = pooling.output.size_bytes
    assert floor_us(pooling, "fp32", {"copy": 4e12}) == pytest.approx(5 * y / 4e12 * 1e6)
    assert floor_us(pooling, "fp32", {"copy": 4e12, "read": 3e12}) == floor_us(pooling, "fp32", {"copy": 4e12})
    assert floor_us(pooling, "fp32", {"copy": 4e12, "read": 5e12}) == pytest.approx((2 * y / 4e12 + 3 * y / 5e12) * 1e6)
    widened = Conv2dProblem(8, 4, 56, 56, 64, 1, 1)
    assert floor_us(widened, "fp32", {"copy": 4e12, "read": 8e12}) == floor_us(widened, "fp32", {"copy": 4e12})


DEPTHWISE = Conv2dProblem(64, 96, 56, 56, 96, 7, 7, pad_h=3, pad_w=3, groups=96, dtype="f16", layout="nhwc")


def test_a_depthwise_layer_of_strict_fp32_is_bounded_by_ffma() -> None:
    layer = dataclasses.replace(DEPTHWISE, r=9, s=9, dtype="f32")
    assert floor_us(layer, "fp32", RATES) == pytest.approx(layer.flops / 60e12 * 1e6)


def test_a_depthwise_layer_uses_a_part_of_a_tensor_core() -> None:
    """Eight pixels in three rows need 9 rows of 7 + 8/3 - 1 inputs, 78 in all, of which each pixel needs 49."""
    found = floor(DEPTHWISE, "fp16", {**RATES, "copy": 4e15})
    assert found is not None
    assert found.arithmetic_us == pytest.approx(DEPTHWISE.flops / (800e12 * 49 / 78) * 1e6)
    assert found.ffma_us == pytest.approx(DEPTHWISE.flops / 60e12 * 1e6)
    assert found.term == "arithmetic"


def test_ffma_bounds_where_a_tensor_core_is_mostly_idle() -> None:
    """Each of eight outputs has its own pixel: an eighth of 400 TFLOP/s is less than 60."""
    layer = dataclasses.replace(DEPTHWISE, r=1, s=1, pad_h=0, pad_w=0)
    rates = {**RATES, "copy": 4e16}
    assert floor_us(layer, "tf32", rates) == pytest.approx(layer.flops / 60e12 * 1e6)
    assert floor_us(layer, "fp16", rates) == pytest.approx(layer.flops / 100e12 * 1e6)
    assert floor_us(layer, "fp16-acc16", rates) == pytest.approx(layer.flops / 240e12 * 1e6), "HFMA2"


@pytest.mark.parametrize(("k", "groups"), [(8, 1), (64, 1), (768, 96)])
def test_eight_output_channels_of_a_group_fill_a_tensor_core(k: int, groups: int) -> None:
    assert tensor_share(dataclasses.replace(DEPTHWISE, k=k, groups=groups)) == 1.0


axis = st.integers(1, 3)


@settings(max_examples=40, deadline=None)
@given(r=axis, s=axis, strides=st.tuples(axis, axis), dilations=st.tuples(axis, axis), channels=st.integers(1, 7))
def test_no_choice_of_pixels_uses_more_of_a_tensor_core(
    r: int, s: int, strides: tuple[int, int], dilations: tuple[int, int], channels: int
) -> None:
    """All choices of up to eight of 3 x 4 neighbouring outputs, and the inputs that they need together."""
    problem = Conv2dProblem(1, 1, 20, 20, channels, r, s, *strides, 0, 0, *dilations)
    needs = [
        sum(
            1 << ((p * strides[0] + i * dilations[0]) * 32 + q * strides[1] + j * dilations[1])
            for i in range(r)
            for j in range(s)
        )
        for p in range(3)
        for q in range(4)
    ]
    best = 0.0
    for pixels in range(1, 9):
        least = min(functools.reduce(operator.or_, chosen).bit_count() for chosen in combinations(needs, pixels))
        best = max(best, min(8, pixels * channels) / 8 * r * s / least)
    assert best <= tensor_share(problem) * (1 + 1e-12)


def test_every_accuracy_class_has_a_unit() -> None:
    assert ARITHMETIC_RATE.keys() == set(ACCURACY_CLASSES)


def test_the_floor_follows_the_algorithm() -> None:
    direct, winograd = floor(CONV2, "fp32", RATES), floor(CONV2, "fp32", RATES, CONV2.flops * 4 // 9)
    assert direct is not None
    assert winograd is not None
    assert winograd.arithmetic_us == pytest.approx(direct.arithmetic_us * 4 / 9)
    assert winograd.memory_us == direct.memory_us
