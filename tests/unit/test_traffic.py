"""The bytes that any implementation moves: the touched sectors, counted one by one."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import StudyError
from autotune.measurement.traffic import minimal_bytes, needed_sectors
from autotune.operation.declarations import Array, Window
from autotune.problem import Conv2dProblem

POINTWISE = Conv2dProblem(64, 256, 64, 64, 512, 1, 1, stride_h=2, stride_w=2, dtype="f16", layout="nhwc")


def touched(problem: Conv2dProblem) -> set[int]:
    """Sectors of x that contain an element that an output reads, found by visiting all outputs and taps."""
    p, found = problem, set()
    rows = {i * p.stride_h + tap * p.dilation_h - p.pad_h for i in range(p.p) for tap in range(p.r)}
    columns = {i * p.stride_w + tap * p.dilation_w - p.pad_w for i in range(p.q) for tap in range(p.s)}
    for n in range(p.n):
        for c in range(p.c):
            for row in rows & set(range(p.h)):
                for column in columns & set(range(p.w)):
                    nchw, nhwc = ((n * p.c + c) * p.h + row) * p.w + column, ((n * p.h + row) * p.w + column) * p.c + c
                    found.add((nhwc if p.layout == "nhwc" else nchw) * p.element_bytes // 32)
    return found


small = st.integers(1, 5)
side = st.integers(1, 20)
pad = st.integers(0, 4)


@settings(max_examples=150, deadline=None)
@given(
    images=st.tuples(st.integers(1, 20), st.integers(1, 9), side, side),
    taps=st.tuples(small, small),
    strides=st.tuples(small, small),
    pads=st.tuples(pad, pad),
    dilations=st.tuples(small, small),
    dtype=st.sampled_from(["f32", "f16", "bf16"]),
    layout=st.sampled_from(["nchw", "nhwc"]),
)
def test_the_sectors_of_x_are_those_that_some_output_reads(
    images: tuple[int, int, int, int],
    taps: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int],
    dilations: tuple[int, int],
    dtype: str,
    layout: str,
) -> None:
    try:
        problem = Conv2dProblem(*images, 1, *taps, *strides, *pads, *dilations, dtype=dtype, layout=layout)
    except StudyError:
        return  # the filter is larger than the input
    assert needed_sectors(problem.array("x")) == len(touched(problem))


@pytest.mark.parametrize(("layout", "share"), [("nhwc", 1 / 4), ("nchw", 1 / 2)])
def test_a_pointwise_convolution_of_stride_2_reads_a_part_of_x(layout: str, share: float) -> None:
    problem = dataclasses.replace(POINTWISE, layout=layout)
    assert 32 * needed_sectors(problem.array("x")) == share * problem.array("x").elements * 2


def test_few_channels_share_a_sector_with_their_neighbours() -> None:
    assert 32 * needed_sectors(dataclasses.replace(POINTWISE, c=8).array("x")) == 64 * 8 * 64 * 64  # every second row


def test_rows_behind_the_last_output_are_not_read() -> None:
    problem = Conv2dProblem(3, 2, 10, 16, 4, 3, 3, stride_h=4, pad_w=1)  # rows 0 to 2 and 4 to 6 of 10
    assert needed_sectors(problem.array("x")) == 3 * 2 * 6 * 2


def test_filters_and_outputs_and_bias_count_whole() -> None:
    plain = Conv2dProblem(2, 16, 8, 8, 24, 3, 3, pad_h=1, pad_w=1)
    assert minimal_bytes(plain) == plain.tensor_bytes
    assert minimal_bytes(dataclasses.replace(plain, epilogue="bias_relu")) == plain.tensor_bytes + 24 * 4
    assert minimal_bytes(Conv2dProblem(1, 1, 1, 1, 1, 1, 1)) == 3 * 32, "a sector is the least"


def test_windows_with_an_axis_between_them_and_a_single_one() -> None:
    window = Window(outputs=2, taps=1, stride=2, dilation=1, pad=0)  # positions 0 and 2
    shape, windows = (3, 4, 5, 4, 8), (None, window, None, window, None)
    array = Array("v", "in", ("a", "b", "c", "d", "e"), shape, "f32", True, True, "normal", -1, 1, 0.0, 1.0, windows)
    assert needed_sectors(array) == 3 * 2 * 5 * 2  # eight floats are a sector
    single = dataclasses.replace(array, windows=(None, None, window, None, None))
    assert needed_sectors(single) == 3 * 4 * 2 * 4


def test_padding_alone_is_not_read() -> None:
    problem = Conv2dProblem(1, 1, 2, 2, 1, 2, 2, pad_h=3, pad_w=3, dilation_h=6, dilation_w=6)
    assert needed_sectors(problem.array("x")) == 0


def test_the_largest_layer_is_bounded_without_walking_over_it() -> None:
    side = 1 << 24
    problem = Conv2dProblem(1, 1, side, 64, 1, 1, 1, stride_h=2)
    assert 32 * (1 << 20) * 4 <= 32 * needed_sectors(problem.array("x")) <= 4 * problem.array("x").elements // 2
