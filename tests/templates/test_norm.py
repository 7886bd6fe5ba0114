"""Possible errors of norm_rows and norm_groups: statistics, digits of means far from zero, last rows and slices."""

from __future__ import annotations

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.operation.registry import operation
from autotune.problem import Problem, make_problem
from tests.long_run import every, long_run

from .shipped_families import refuses_changed, verify

Values = dict[str, int | str]
ROWS: Values = {"row_threads": 64, "block_rows": 2, "thread_rows": 2, "vector": 4, "keep": "registers"}
GROUPS: Values = {"block": 128, "slices": 4, "thread_pixels": 2, "vector": 4, "channel_slices": 1, "stores": "default"}


def norm(**given: int | str) -> Problem:
    return make_problem(operation("norm"), {"n": 5, "c": 600, "epilogue": "weight_bias_silu", **given})


def images(**given: int | str) -> Problem:
    """Five channels per group, so that chunks of four cross groups."""
    return norm(n=2, pixels=150, c=60, groups=12, **given)


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("name", "problem", "values"),
    [
        ("norm_rows", norm(), ROWS),
        ("norm_rows", norm(c=96, dtype="bf16"), {**ROWS, "row_threads": 4, "block_rows": 16, "vector": 8}),
        ("norm_rows", norm(c=4096, n=9), {**ROWS, "row_threads": 8, "block_rows": 4, "vector": 4, "keep": "nothing"}),
        ("norm_groups", images(), GROUPS),
        ("norm_groups", images(), {**GROUPS, "vector": 2, "channel_slices": 2, "stores": "streaming"}),
        ("norm_groups", norm(n=144, pixels=2, c=1, epilogue="none"), {**GROUPS, "slices": 2, "vector": 1}),
        ("norm_groups", norm(n=2, pixels=35, c=64, groups=64, dtype="f16"), {**GROUPS, "slices": 1, "vector": 8}),
        *long_run(
            ("norm_rows", norm(c=33, kind="rms", epilogue="none"), {**ROWS, "vector": 1, "keep": "nothing"}),
            ("norm_rows", norm(c=1, eps_e12=0, kind="rms", epilogue="weight"), {**ROWS, "vector": 1}),
            ("norm_groups", images(kind="rms", epilogue="weight_gelu"), GROUPS),
            ("norm_groups", norm(pixels=2, c=4096, groups=4, dtype="bf16"), {**GROUPS, "slices": 2, "vector": 8}),
        ),
    ],
)
def test_config_is_right(name: str, problem: Problem, values: Values, checked: DeviceEvaluator) -> None:
    verify(name, problem, values, checked)


FAULTS = {
    "a sample's variance": ("norm_rows", "inverse_deviation(scales[i] / C)", "inverse_deviation(scales[i] / (C - 1))"),
    "the warps' sums of a row have no barrier": ("norm_rows", "        __syncthreads();\n", ""),
    "the rows end too late": ("norm_rows", "row_of(i) < n", "row_of(i) <= n"),
    "the sums of groups are not shifted": (
        "norm_groups",
        "CENTERED ? to_float(image[channel / GROUP * GROUP])",
        "CENTERED ? 0.0f",
    ),
    "the last slice ends too early": (
        "norm_groups",
        "(slice + 1) * PIXELS / SLICES",
        "(slice + 1) * (PIXELS / SLICES)",
    ),
    "the mean is not squared": ("norm_groups", " - mean * mean;", ";"),
    "a chunk has one group": ("norm_groups", "mean_of[(channel + i * PART) / GROUP - ", "mean_of[channel / GROUP - "),
    "eps is left out": ("norm_groups", "sqrtf(variance + EPS)", "sqrtf(variance)"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(2, FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    name, correct, wrong = FAULTS[what]
    problem, values = (norm(), ROWS) if name == "norm_rows" else (images(eps_e12=1_000_000_000), GROUPS)
    assert refuses_changed(name, problem, values, (correct, wrong), host)
