"""Possible errors of pixel_mean_blocks: the channels of a lane, chunks and pixels beyond the last, sums of warps."""

from __future__ import annotations

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.operation.registry import operation
from autotune.problem import Problem, make_problem
from tests.long_run import every

from .shipped_families import refuses_changed, verify

Values = dict[str, int | str]
VALUES: Values = {"block": 256, "chunk_threads": 4, "thread_pixels": 4, "vector": 4}


def pixel_mean(pixels: int, c: int, dtype: str = "f32") -> Problem:
    return make_problem(operation("pixel_mean"), {"n": 3, "pixels": pixels, "c": c, "dtype": dtype})


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (pixel_mean(300, 296, "f16"), {**VALUES, "vector": 8, "chunk_threads": 32}),
        (pixel_mean(70, 3), {**VALUES, "vector": 1, "chunk_threads": 1}),
    ],
)
def test_config_is_right(problem: Problem, values: Values, checked: DeviceEvaluator) -> None:
    verify("pixel_mean_blocks", problem, values, checked)


FAULTS = {
    "lanes of other channels are added": ("lanes >= CHUNK_THREADS", "lanes >= CHUNK_THREADS / 2"),
    "the last pixel is left out": ("if (pixel < PIXELS) loaded", "if (pixel < PIXELS - 1) loaded"),
    "a block writes the next one's channels": ("channel >= C", "channel > C"),
    "only half of the warps are added": ("warp < WARPS", "warp < WARPS / 2"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(2, FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    assert refuses_changed("pixel_mean_blocks", pixel_mean(301, 20), VALUES, FAULTS[what], host)
