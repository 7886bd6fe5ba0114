"""Possible errors of gemm_split_k_sm90: a block's part of the depth, a cluster's sums, stages, transposed operands."""

from __future__ import annotations

import re

import pytest

from autotune.compilation.compile import compile_cubin
from autotune.compilation.toolchain import find_nvcc
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import BoundTemplate
from autotune.problem import Problem
from autotune.trial import Config
from tests.long_run import every, long_run

from .shipped_families import H200, family, refuses_changed, verify
from .test_gemm_sm90 import product

NAME = "gemm_split_k_sm90"
BASE: dict[str, int | str] = {"tile_n": 128, "tile_m": 24, "splits": 2, "stages": 3}
DEEP = product("nn", 29, 200, 712)
"""12 parts of the depth, the last of which is shorter; two tiles of columns, the second half empty."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (DEEP, BASE),
        *long_run(
            (DEEP, {**BASE, "tile_m": 8, "splits": 8, "stages": 2}),
            (product("tn", 80, 72, 500, dtype="bf16"), {**BASE, "tile_n": 64, "tile_m": 80, "splits": 4, "stages": 2}),
            (product("nt", 5, 132, 260, dtype="f32", epilogue="bias_silu"), {**BASE, "tile_m": 8}),
            (product("nt", 13, 64, 16, batch=5), {"tile_n": 64, "tile_m": 16, "splits": 1, "stages": 1}),
        ),
    ],
)
def test_config_is_right(problem: Problem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify(NAME, problem, values, checked)


@pytest.mark.nvcc
def test_the_largest_tiles_compile_without_spills_and_products_overlap() -> None:
    problem = product("nn", 128, 4096, 4096)
    source = render(BoundTemplate(family(NAME), problem, H200), Config.of(NAME, {**BASE, "tile_m": 128}))
    binary = compile_cubin(source.program, 90, find_nvcc())
    assert binary.resources.spill_bytes == 0
    assert not re.search(r"C7\d{3}", binary.log), binary.log


FAULTS = {
    "a block takes the next one's products, too": ("K_TILES * (rank + 1) / SPLITS;", "K_TILES * (rank + 2) / SPLITS;"),
    "sums are read before the others have them": (
        "    cluster_sync();\n        if constexpr",
        "    __syncwarp();\n        if constexpr",
    ),
    "a block ends while others read its sums": ("    cluster_sync();  // the others have read", "    // read"),
    "sums lie where another warpgroup still reads": ("    sync_threads<128 * CONSUMERS>(CONSUMERS + 2);", ""),
    "a stage is released while products read it": ("            wgmma_wait_group<1>();\n", ""),
    "another product's rows are stored": ("column + i * 8, row, 0)", "column + i * 8, 0, 0)"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(8, FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    problem = product("nn", 77, 200, 712)  # whose sums use the memory of both operands
    assert refuses_changed(NAME, problem, {**BASE, "tile_m": 80, "stages": 2}, FAULTS[what], host)
