"""Distances of layers and devices: symmetric, zero for the same, ordered as a kernel's author would order them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.devices.device import DeviceInfo
from autotune.distance import device_distance, layer_distance
from autotune.problem import Conv2dProblem

CONV = Conv2dProblem(64, 32, 28, 28, 64, 3, 3, pad_h=1, pad_w=1)
H200 = DeviceInfo("cuda", "NVIDIA H200", 90, 132, 1 << 37)


@st.composite
def problems(draw: st.DrawFn) -> Conv2dProblem:
    """Small problems of all kinds."""
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    return Conv2dProblem(
        n=draw(st.integers(1, 64)),
        c=groups * draw(st.integers(1, 8)),
        h=draw(st.integers(9, 40)),
        w=draw(st.integers(9, 40)),
        k=groups * draw(st.integers(1, 8)),
        r=draw(st.integers(1, 4)),
        s=draw(st.integers(1, 4)),
        stride_h=draw(st.integers(1, 2)),
        pad_w=draw(st.integers(0, 1)),
        dilation_h=draw(st.integers(1, 2)),
        groups=groups,
        dtype=draw(st.sampled_from(["f32", "f16"])),
        layout=draw(st.sampled_from(["nchw", "nhwc"])),
        epilogue=draw(st.sampled_from(["none", "bias"])),
    )


@given(problems(), problems(), problems())
def test_it_is_a_distance(one: Conv2dProblem, two: Conv2dProblem, three: Conv2dProblem) -> None:
    assert layer_distance(one, one) == 0
    assert layer_distance(one, two) == pytest.approx(layer_distance(two, one))
    assert layer_distance(one, three) <= layer_distance(one, two) + layer_distance(two, three) + 1e-9


@pytest.mark.parametrize(
    ("nearer", "farther"),
    [
        ({"n": 128}, {"k": 128}),  # the batch is a kernel's argument
        ({"k": 65}, {"k": 128}),
        ({"h": 30, "w": 30}, {"h": 112, "w": 112}),
        ({"k": 128}, {"layout": "nhwc"}),
        ({"epilogue": "bias"}, {"stride_h": 2, "stride_w": 2}),
        ({"c": 64}, {"dtype": "f16"}),
        ({"r": 5, "s": 5}, {"r": 5, "s": 5, "k": 128}),
        ({"c": 16}, {"groups": 32}),
    ],
)
def test_what_matters_more_is_farther(nearer: dict[str, object], farther: dict[str, object]) -> None:
    one, other = replace(CONV, **nearer), replace(CONV, **farther)  # type: ignore[arg-type]
    assert 0 < layer_distance(CONV, one) < layer_distance(CONV, other)


def test_the_reports_layers_are_near_their_likes() -> None:
    k5 = (Conv2dProblem(10000, 1, 70, 70, 12, 5, 5), Conv2dProblem(10000, 12, 33, 33, 24, 5, 5))
    fashion = (Conv2dProblem(10000, 1, 72, 72, 12, 7, 7), Conv2dProblem(10000, 12, 33, 33, 24, 7, 7))
    for first, second in (k5, fashion):
        for other in (*k5, *fashion):
            if other not in (first, second) and other.c == first.c:
                assert layer_distance(first, other) < layer_distance(first, second)


def test_devices_are_apart_by_architecture_and_size() -> None:
    assert device_distance(H200, replace(H200, kind="replay", name="replay of NVIDIA H200")) == 0
    smaller, older = replace(H200, sm_count=66), replace(H200, arch=80, sm_count=108)
    assert 0 < device_distance(H200, smaller) < device_distance(H200, older)
