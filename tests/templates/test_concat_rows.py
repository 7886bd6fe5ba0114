"""Possible errors of concat_rows: the tensor of a channel, the rows of a thread, the last rows."""

from __future__ import annotations

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.operation.registry import operation
from autotune.problem import Problem, make_problem
from tests.long_run import every

from .shipped_families import refuses_changed, verify

Values = dict[str, int | str]
VALUES: Values = {"block": 128, "thread_rows": 2, "vector": 4}


def concat(*channels: int, **given: int | str) -> Problem:
    sizes = {f"c{i}": size for i, size in enumerate(channels)}
    return make_problem(operation("concat"), {"n": 37, "epilogue": "weight_bias_relu", **sizes, **given})


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (concat(16, 8, 24, 8, 40, 8, 8, 600, dtype="f16"), {**VALUES, "vector": 8}),
        (concat(7, 3, epilogue="none"), {**VALUES, "vector": 1, "thread_rows": 1}),
    ],
)
def test_config_is_right(problem: Problem, values: Values, checked: DeviceEvaluator) -> None:
    verify("concat_rows", problem, values, checked)


FAULTS = {
    "the first channel of a tensor is the one before's": ("channel >= begin", "channel > begin"),
    "a tensor has the rows of another": ("x + row * channels", "x + row * CHANNELS[0]"),
    "the rows end too late": ("        if (row < n) {", "        if (row <= n) {"),
    "the biases are another chunk's": ("bias + channel", "bias + chunk"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(2, FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    assert refuses_changed("concat_rows", concat(8, 12, 4), VALUES, FAULTS[what], host)
