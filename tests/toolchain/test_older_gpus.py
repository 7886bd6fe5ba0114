"""Tensor-core families on GPUs before Hopper, which we do not have: their kernels compile for them and fit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from autotune.compilation.compile import compile_cubin
from autotune.compilation.toolchain import find_nvcc
from autotune.devices.device import DeviceInfo
from autotune.errors import Rejected
from autotune.family.render import render
from autotune.family.space import Admission, BoundTemplate, SearchSpace
from autotune.problem import Conv2dProblem, as_conv2d
from autotune.resources import shipped
from autotune.store import Store
from autotune.trial import Config
from tests.long_run import every
from tests.problems import PROBLEMS
from tests.templates.shipped_families import FAMILIES, family

A100 = DeviceInfo(
    *("cuda", "NVIDIA A100-SXM4-80GB", 80, 108, 80_000_000_000),
    smem_per_block_bytes=166_912,
    smem_per_sm_bytes=167_936,
    l2_bytes=41_943_040,
)
RTX_4090 = DeviceInfo(
    *("cuda", "NVIDIA GeForce RTX 4090", 89, 128, 24_000_000_000),
    smem_per_block_bytes=101_376,
    smem_per_sm_bytes=102_400,
    max_warps_per_sm=48,
    max_blocks_per_sm=24,
    l2_bytes=75_497_472,
)
GPUS = {"A100": A100, "RTX 4090": RTX_4090}
"""Limits of compute capabilities 8.0 and 8.9 (CUDA C++ Programming Guide, compute capabilities)."""
HOPPER_ONLY = {name for name in FAMILIES if any("== 90" in condition.holds.text for condition in family(name).arch)}
SOURCES = (
    "lenet-k5-conv1",
    "lenet-k5-conv2",
    "lenet-k7-conv1",
    "lenet-k7-conv2",
    "fashion-k7-conv1",
    "fashion-k7-conv2",
)
RECORDED = [f"{study}.{layer}" for study in ("fp16", "tf32") for layer in SOURCES]
RECORDED += [f"fp32-class.{layer}" for layer in SOURCES[1::2]]
HALF = Conv2dProblem(64, 64, 56, 56, 64, 3, 3, pad_h=1, pad_w=1, dtype="f16", layout="nhwc", epilogue="bias_relu")
POINTS = replace(HALF, r=1, s=1, pad_h=0, pad_w=0)
NHWC = [
    HALF,
    replace(POINTS, c=256, k=128),
    replace(HALF, c=512, h=14, w=14, k=512, stride_h=2, stride_w=2),
    replace(HALF, c=3, h=224, w=224, r=7, s=7, stride_h=2, stride_w=2, pad_h=3, pad_w=3),
    replace(POINTS, c=2048, h=7, w=7, k=512),
]
"""Layers of ResNet-50."""
FAST = 5


@cache
def recorded(layer: str) -> tuple[Conv2dProblem, tuple[Config, ...]]:
    """The configs with which `mma_strip` was measured on a layer by mma.sync, fastest first."""
    with Store(shipped("studies") / "recorded" / "h200.db", create=False) as store:
        rows = [row for row in store.trials.list(layer, generations="all") if row.trial.config.template == "mma_strip"]
    rows = [row for row in rows if row.trial.median_us is not None and row.trial.config.params["mma"] == "warp"]
    rows.sort(key=lambda row: row.trial.median_us or 0.0)
    return as_conv2d(rows[0].problem, "a recorded layer"), tuple(row.trial.config for row in rows)


def spilled(bound: BoundTemplate, config: Config) -> int:
    """The bytes that a kernel spills, if its registers and shared memory fit a block on the device."""
    source = render(bound, config)
    device = bound.device
    resources = compile_cubin(source.program, device.arch, find_nvcc()).resources
    for stage in source.stages:
        x, y, z = stage.block
        assert resources.registers * x * y * z <= device.registers_per_sm
        assert x * y * z <= 32 * device.max_warps_per_sm
        assert resources.static_smem_bytes + stage.smem_bytes <= device.smem_per_block_bytes
    return resources.spill_bytes


def admitted(bound: BoundTemplate, config: Config) -> bool:
    """Whether this GPU has enough shared memory and warps for a config."""
    try:
        bound.check(config)
    except Rejected:
        return False
    return True


@pytest.mark.nvcc
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("layer", every(24, RECORDED))
def test_a_fast_recorded_kernel_does_not_spill(layer: str, gpu: str) -> None:
    problem, configs = recorded(layer)
    bound = BoundTemplate(family("mma_strip"), problem, GPUS[gpu], Admission(prune=True))
    fast = [config for config in configs if admitted(bound, config)][:FAST]
    if not fast:  # each needs more shared memory than this GPU has, so use the config with which a search begins
        space = SearchSpace(bound, most_rows=2000, sampled_rows=200)
        fast = [config for config in [space.default] if config is not None]
    assert any(spilled(bound, config) == 0 for config in fast)


@pytest.mark.nvcc
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("problem", every(6, NHWC), ids=str)
def test_resnet_begins_with_a_kernel_that_fits(problem: Conv2dProblem, gpu: str) -> None:
    bound = BoundTemplate(family("mma_gemm"), problem, GPUS[gpu], Admission(prune=True))
    space = SearchSpace(bound, most_rows=2000, sampled_rows=200)
    assert space.default is not None
    assert spilled(bound, space.default) == 0


@pytest.mark.parametrize("gpu", GPUS)
def test_what_needs_hopper_is_offered_to_no_other(gpu: str) -> None:
    assert {"implicit_gemm_sm90", "mma_pair", "mma_sweep"} <= HOPPER_ONLY
    offered = {
        name
        for name in FAMILIES
        if any(BoundTemplate(family(name), problem, GPUS[gpu]).supported for problem in PROBLEMS.values())
    }
    assert not offered & HOPPER_ONLY
    assert {"mma_strip", "mma_gemm", "implicit_gemm", "direct"} <= offered
