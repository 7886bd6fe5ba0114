"""The table of the script that times ResNet-50 shape by shape: rows, sums over the network, verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", exc_type=ImportError)

from tests.benchmarks.resnet50 import Shape, lines

OWN = {"ours": 10.0, "plain": 20.0, "separate": 30.0, "fused": 20.0}
FINALS = {"ours": 10.0, "cudnn nhwc fused": 20.0, "cudnn nhwc": 15.0, "inductor nhwc": 40.0}
PLAIN = Shape("layer1.0.conv3", 1, "bias", FINALS, OWN, (10.0, 20.0))
ADDED = Shape(
    "layer1.0.downsample.0",
    3,
    "bias_add_relu",
    {**FINALS, "ours": 100.0, "cudnn nhwc fused": 90.0},
    {**OWN, "ours": 20.0},
    (100.0, 90.0),
)


def test_sums_have_each_convolution_with_its_epilogue() -> None:
    table = list(lines([PLAIN, ADDED]))
    assert [line.split(" | ")[:3] for line in table[2:5]] == [
        ["| layer1.0.conv3", "bias", "1"],
        ["| layer1.0.downsample.0", "bias_add_relu", "3"],
        ["| sum", "", "4"],
    ]
    assert table[4].split(" | ")[3] == "310.0"
    assert (
        table[5]
        == "\n4 convolutions, 3 with a residual: ours 0.310 ms, cuDNN fused 0.290 ms, cuDNN 0.060 ms, Inductor 0.160 ms"
    )


def test_a_sum_with_a_missing_time_is_none() -> None:
    less = replace(PLAIN, compared={name: us for name, us in FINALS.items() if name != "inductor nhwc"}, converted=None)
    table = list(lines([less, ADDED]))
    assert table[5].endswith("Inductor -")
    assert table[4].split(" | ")[-3:-1] == ["-", "-"], "convert timed only one of the two"


def test_verdicts_are_compared() -> None:
    assert PLAIN.verdicts == {"finals": "win", "script": "win", "convert": "win"}
    assert (PLAIN.equal, PLAIN.opposed) == (True, False)
    assert ADDED.verdicts == {"finals": "loss", "script": "tie", "convert": "loss"}
    assert (ADDED.equal, ADDED.opposed) == (False, False)
    assert replace(ADDED, converted=(10.0, 90.0)).opposed
    assert list(lines([PLAIN, ADDED]))[-1].endswith("equal on 1 of 2, opposed on 0")
