"""Possible errors of gate_rows: the image whose factors a pixel gets, chunks and pixels beyond the last."""

from __future__ import annotations

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.operation.registry import operation
from autotune.problem import Problem, make_problem
from tests.long_run import every

from .shipped_families import refuses_changed, verify

Values = dict[str, int | str]
VALUES: Values = {"block": 128, "thread_pixels": 2, "vector": 4}


def gate(pixels: int, c: int, dtype: str = "f32") -> Problem:
    return make_problem(operation("gate"), {"n": 3, "pixels": pixels, "c": c, "dtype": dtype})


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (gate(37, 1032, "f16"), {**VALUES, "vector": 8}),
        (gate(70, 3), {**VALUES, "vector": 1, "thread_pixels": 1}),
    ],
)
def test_config_is_right(problem: Problem, values: Values, checked: DeviceEvaluator) -> None:
    verify("gate_rows", problem, values, checked)


FAULTS = {
    "the factors are the first image's": ("[image * CHUNKS + chunk]", "[chunk]"),
    "pixels of the next image": ("if (pixel >= PIXELS) break", "if (pixel > PIXELS) break"),
    "a block begins at another's pixels": ("% PIXEL_BLOCKS * (BLOCK_PIXELS", "% PIXEL_BLOCKS * (1 + BLOCK_PIXELS"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(2, FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    assert refuses_changed("gate_rows", gate(301, 20), VALUES, FAULTS[what], host)
