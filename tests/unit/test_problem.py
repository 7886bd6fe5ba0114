"""Conv2dProblem: derived sizes against brute force, and a clear message about every impossible problem."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import StudyError
from autotune.operation.declarations import MAX_SIZE
from autotune.problem import Conv2dProblem

LENET_K5_CONV1 = Conv2dProblem(10000, 1, 70, 70, 12, 5, 5)
LENET_K5_CONV2 = Conv2dProblem(10000, 12, 33, 33, 24, 5, 5)


def places(size: int, taps: int, stride: int, pad: int, dilation: int) -> int:
    """Placements of a dilated filter on a padded line, counted one by one."""
    count, start = 0, -pad
    while start + (taps - 1) * dilation < size + pad:
        count, start = count + 1, start + stride
    return count


small = st.integers(1, 6)


@given(
    h=st.integers(1, 30), w=st.integers(1, 30), r=small, s=small, stride=small, pad=st.integers(0, 4), dilation=small
)
def test_p_and_q_count_the_placements_of_the_filter(
    h: int, w: int, r: int, s: int, stride: int, pad: int, dilation: int
) -> None:
    expected = (places(h, r, stride, pad, dilation), places(w, s, stride, pad, dilation))
    geometry = (1, 1, h, w, 1, r, s, stride, stride, pad, pad, dilation, dilation)
    if 0 in expected:
        with pytest.raises(StudyError, match="filter larger than the padded input"):
            Conv2dProblem(*geometry)
    else:
        problem = Conv2dProblem(*geometry)
        assert (problem.p, problem.q) == expected


def test_height_and_width_do_not_mix() -> None:
    problem = Conv2dProblem(1, 1, 20, 30, 1, 3, 5, stride_h=2, stride_w=3, pad_h=1, pad_w=0, dilation_h=1, dilation_w=4)
    assert (problem.p, problem.q) == (places(20, 3, 2, 1, 1), places(30, 5, 3, 0, 4)) == (10, 5)


def test_the_reports_first_layer() -> None:
    assert (LENET_K5_CONV1.p, LENET_K5_CONV1.q) == (66, 66)
    assert LENET_K5_CONV1.array("y").elements == 522_720_000
    assert LENET_K5_CONV1.flops == 2 * 522_720_000 * 25
    assert LENET_K5_CONV1.tensor_bytes == 4 * (10000 * 70 * 70 + 12 * 25 + 522_720_000)


def test_the_reports_second_layer() -> None:
    assert (LENET_K5_CONV2.p, LENET_K5_CONV2.q) == (29, 29)
    assert LENET_K5_CONV2.reduction == 12 * 25
    assert LENET_K5_CONV2.flops == 2 * 10000 * 24 * 29 * 29 * 300


def test_groups_share_out_the_input_channels() -> None:
    dense = Conv2dProblem(2, 8, 9, 9, 12, 3, 3)
    grouped = dataclasses.replace(dense, groups=4)
    assert grouped.reduction == 2 * 9
    assert 4 * grouped.flops == dense.flops
    assert 4 * grouped.array("w").elements == dense.array("w").elements
    assert grouped.array("x").elements == dense.array("x").elements


@pytest.mark.parametrize(("dtype", "size"), [("f32", 4), ("f16", 2), ("bf16", 2)])
def test_bytes_follow_the_storage_type(dtype: str, size: int) -> None:
    problem = Conv2dProblem(2, 3, 5, 5, 7, 1, 1, dtype=dtype)
    assert problem.tensor_bytes == size * (2 * 3 * 25 + 7 * 3 + 2 * 7 * 25)


@pytest.mark.parametrize("epilogue", ["bias", "bias_relu"])
def test_a_bias_is_read_once(epilogue: str) -> None:
    plain = Conv2dProblem(2, 3, 5, 5, 7, 1, 1)
    assert dataclasses.replace(plain, epilogue=epilogue).tensor_bytes == plain.tensor_bytes + 7 * 4


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("n", 0, "n = 0: expected 1 to 2147483647"),
        ("c", -1, "c = -1: expected 1 to"),
        ("h", 2**31, "h = 2147483648: expected 1 to 2147483647"),
        ("stride_h", 0, "stride_h = 0: expected 1 to"),
        ("dilation_w", 0, "dilation_w = 0: expected 1 to"),
        ("groups", 0, "groups = 0: expected 1 to"),
        ("pad_w", -1, "pad_w = -1: expected 0 to"),
        ("k", True, "k = True: expected a whole number"),
        ("k", 2.0, "k = 2.0: expected a whole number"),
        ("dtype", "f64", "dtype = 'f64': expected one of f32, f16, bf16"),
        ("layout", "NCHW", "layout = 'NCHW': expected one of nchw, nhwc"),
        ("epilogue", "relu", "epilogue = 'relu': expected one of none, bias, bias_relu"),
        ("epilogue", "silu", r"bias_add_leaky_relu \(did you mean 'bias_silu'\?\)$"),
        ("r", 9, r"height \(r against h\): a filter of 9 with dilation 1 spans 9, the padded input 8"),
        ("dilation_w", 4, r"width \(s against w\): a filter of 3 with dilation 4 spans 9, the padded input 8"),
        ("groups", 4, "groups = 4 does not divide c = 6"),
        ("groups", 3, "groups = 3 does not divide k = 4"),
    ],
)
def test_what_a_problem_cannot_be(name: str, value: int | str, words: str) -> None:
    fields = dataclasses.asdict(Conv2dProblem(2, 6, 8, 8, 4, 3, 3))
    with pytest.raises(StudyError, match=words):
        Conv2dProblem(**{**fields, name: value})


def test_the_largest_sizes_are_taken() -> None:
    assert Conv2dProblem(MAX_SIZE, 1, 3, 3, 1, 3, 3).flops == 2 * MAX_SIZE * 9


def test_names_are_what_expressions_see() -> None:
    names = Conv2dProblem(2, 6, 8, 9, 4, 3, 3, pad_w=1).names()
    assert names["pad_w"] == 1
    assert (names["p"], names["q"]) == (6, 9)
    assert names["dtype"] == "f32"


def test_another_batch_size_changes_nothing_else() -> None:
    problem = Conv2dProblem(2, 6, 8, 9, 4, 3, 3, pad_w=1)
    other = problem.with_runtime(7)
    assert other.n == 7
    assert other.with_runtime(2) == problem


def test_in_words_only_what_is_special_is_said() -> None:
    assert str(LENET_K5_CONV1) == "n10000 c1 70x70 k12 5x5 f32 nchw"
    problem = Conv2dProblem(
        1, 4, 9, 9, 4, 3, 3, stride_h=2, stride_w=2, pad_h=1, dilation_w=2, groups=2, epilogue="bias"
    )
    assert str(problem) == "n1 c4 9x9 k4 3x3 stride 2 pad 1x0 dilation 1x2 groups 2 f32 nchw bias"
