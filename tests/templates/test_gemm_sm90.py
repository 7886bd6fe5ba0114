"""Possible errors of gemm_sm90: transposed operands, loads for two blocks, tiles at the ends, their order, barriers."""

from __future__ import annotations

import re

import pytest

from autotune.compilation.compile import compile_cubin
from autotune.compilation.toolchain import find_nvcc
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import BoundTemplate
from autotune.operation.registry import operation
from autotune.problem import Problem, make_problem
from autotune.trial import Config
from tests.long_run import every, long_run

from .shipped_families import H200, family, refuses_changed, verify

NAME = "gemm_sm90"
BASE: dict[str, int | str] = {
    "tile_n": 128,
    "tile_m": 16,
    "schedule": "pingpong",
    "cluster_n": 2,
    "raster": 2,
    "epilogue_subtiles": 1,
}
SHARED = {**BASE, "schedule": "cooperative"}
ALONE = {**BASE, "tile_m": 8, "cluster_n": 1}


def product(transposes: str, m: int, n: int, k: int, **others: int | str) -> Problem:
    """A product of FP16 with a bias, in a batch of two."""
    given = {"batch": 2, "dtype": "f16", "epilogue": "bias_relu", **others}
    return make_problem(operation("gemm"), {"transposes": transposes, "m": m, "n": n, "k": k, **given})


SMALL = product("nn", 40, 504, 344)
"""Three tiles of rows, the last of which is half empty; six stages; two pairs of columns."""
ODD = product("nn", 21, 99, 72)
"""Rows of b and y that TMA does not copy; outputs that end within a tile."""


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (SMALL, BASE),
        (ODD, {**ALONE, "tile_m": 16, "epilogue_subtiles": 2}),
        *long_run(
            (product("nn", 21, 72, 99, epilogue="none"), {**SHARED, "raster": 1}),
            (product("nt", 21, 99, 36, dtype="f32"), {**SHARED, "raster": 1}),
            (product("tn", 136, 248, 75), {**SHARED, "tile_m": 128, "epilogue_subtiles": 4}),
            (SMALL, SHARED),
            (product("nt", 40, 504, 344, dtype="bf16"), BASE),
            (product("nt", 37, 252, 84, dtype="f32"), {**SHARED, "tile_m": 48, "raster": 1, "epilogue_subtiles": 2}),
            (product("tn", 9, 104, 72, batch=3, epilogue="bias"), {**ALONE, "schedule": "cooperative", "tile_m": 32}),
            (product("tn", 8, 264, 200, batch=3), {**ALONE, "raster": 1}),
            (product("nn", 1, 72, 8, epilogue="bias_gelu"), {**ALONE, "tile_n": 64, "raster": 1}),
        ),
    ],
)
def test_config_is_right(problem: Problem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    verify(NAME, problem, values, checked)


@pytest.mark.parametrize(
    ("problem", "served"),
    [
        (product("nn", 7, 16, 24), True),
        (product("nn", 7, 16, 25), True),
        (product("nn", 7, 15, 25), False),
        (product("nt", 7, 15, 24), True),
        (product("nt", 7, 16, 25), False),
        (product("tn", 7, 16, 25), True),
        (product("tn", 7, 15, 24), False),
        (product("nt", 7, 16, 24, dtype="f32"), True),
        (product("nn", 7, 16, 24, dtype="f32"), False),
    ],
)
def test_it_serves_what_tma_copies_and_wgmma_transposes(problem: Problem, served: bool) -> None:
    assert BoundTemplate(family(NAME), problem, H200).supported is served


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("transposes", "values"),
    [
        ("nt", {**SHARED, "tile_m": 256, "epilogue_subtiles": 4}),
        *long_run(
            ("nn", {**BASE, "tile_m": 208, "epilogue_subtiles": 2}),
            ("tn", {**SHARED, "tile_m": 256, "epilogue_subtiles": 4}),
        ),
    ],
)
def test_the_largest_tiles_compile_without_spills_and_products_overlap(
    transposes: str, values: dict[str, int | str]
) -> None:
    problem = product(transposes, 8192, 8192, 8192, batch=1)
    source = render(BoundTemplate(family(NAME), problem, H200), Config.of(NAME, values))
    binary = compile_cubin(source.program, 90, find_nvcc())
    assert binary.resources.spill_bytes == 0
    assert not re.search(r"C7\d{3}", binary.log), binary.log


FAULTS = {
    "a block does not wait until the other has read": (
        "if (lane < BLOCKS) barrier_arrive_cluster(pipeline.empty + stage, lane);",
        "if (lane < BLOCKS) barrier_arrive(pipeline.empty + stage);",
    ),
    "a block ends while the other arrives at its barriers": ("    end_blocks();\n", ""),
    "both blocks load the same half of a": ("ALL, k, row + part", "ALL, k, row"),
    "the block's rank, in an address, takes the next 64 columns' place": ("& ~DISTANCE", "& ~0ull"),
    "half of a comes to this block alone": ("full, ALL, k, row", "full, 1 << rank, k, row"),
    "the next 64 columns are taken for these": ("NEXT_64 = TILE_K * ROW_STEP", "NEXT_64 = 0"),
    "depth goes on as where b is not transposed": (
        "OPERAND_STEP = TRANSPOSED ? 16 * ROW_STEP : DEPTH_STEP",
        "OPERAND_STEP = DEPTH_STEP",
    ),
    "a tile is left out of the last panel": ("TILES_M - above < RASTER ? TILES_M - above : RASTER", "RASTER"),
    "warpgroups multiply the same columns": (
        "operand_descriptor<B_TRANSPOSED, TILE_K>(stages + group_column * OPERAND_ROW_BYTES)",
        "operand_descriptor<B_TRANSPOSED, TILE_K>(stages)",
    ),
    "the producer does not wait": (
        "pipeline.producer_acquire(state, STAGE_BYTES);",
        "barrier_arrive_expect(pipeline.full + state.index, STAGE_BYTES);",
    ),
    "a stage is released while products read it": ("            wgmma_wait_group<1>();\n", ""),
    "outputs are stored without a fence": (
        "        fence_bulk();\n        sync_threads<128>",
        "        sync_threads<128>",
    ),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(len(FAULTS), FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    transposed_a = "next 64" in what
    problem = product("tn", 200, 504, 344) if transposed_a else SMALL
    values = {**SHARED, "tile_m": 128} if transposed_a else SHARED
    assert refuses_changed(NAME, problem, values, FAULTS[what], host)
