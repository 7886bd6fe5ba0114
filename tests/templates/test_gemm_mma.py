"""Possible errors of gemm_mma: tiles at the ends, rows of odd length, transposed fragments, stages."""

from __future__ import annotations

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.problem import Problem
from tests.long_run import every, long_run

from .shipped_families import refuses_changed, verify
from .test_gemm_sm90 import product

NAME = "gemm_mma"
BASE: dict[str, int | str] = {"warps_m": 2, "warps_n": 1, "warp_m": 16, "warp_n": 32, "tile_k": 32, "stages": 3}
ODD = product("nn", 37, 51, 93)
"""Rows of odd length; two tiles of rows and of columns, and three of the depth, all of them partly empty."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (ODD, BASE),
        (product("tn", 40, 56, 90, dtype="bf16"), {**BASE, "stages": 2, "tile_k": 16}),
        *long_run(
            (product("nt", 37, 50, 92), {**BASE, "warps_n": 2, "stages": 4}),
            (product("tn", 19, 33, 65), {**BASE, "warps_m": 1, "warp_n": 16, "tile_k": 64}),
            (product("nt", 5, 9, 1, epilogue="bias_gelu"), {**BASE, "warps_m": 1, "warp_n": 16}),
        ),
    ],
)
def test_config_is_right(problem: Problem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify(NAME, problem, values, checked)


FAULTS = {
    "what lies behind a row is multiplied": ("&& inner < INNER_SIZE", "&& inner <= INNER_SIZE"),
    "fragments of b are a's": ("k, matrix / 2 * 8, matrix % 2 * 8, j", "k, matrix % 2 * 8, matrix / 2 * 8, j"),
    "a stage is loaded while it is multiplied": ("load(k_tile + STAGES - 1);", "load(k_tile + STAGES);"),
    "the barrier is left out": ("        __syncthreads();\n", ""),
    "the last column of an odd number is not stored": ("if (column + 1 < N) to[column + 1]", "to[column]"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(3, FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    assert refuses_changed(NAME, ODD, BASE, FAULTS[what], host)
