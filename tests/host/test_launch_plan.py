"""A library's launches equal the tuner's: its compiled plans against `launches`, for every family and many n."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from functools import cache
from typing import TypedDict

import pytest

from autotune.autotune_runtime.driver import TensorMap
from autotune.autotune_runtime.interface import LibraryError, Status
from autotune.autotune_runtime.planned_launches import DeviceLimits, Plan, launches_of
from autotune.devices.device import DeviceInfo
from autotune.errors import Rejected
from autotune.exporting import SelectedKernel, export_library
from autotune.exporting.launch_plan import plan_of
from autotune.family.render import launches, tensor_maps
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.operation.registry import CONV2D
from autotune.problem import Conv2dProblem, make_problem
from autotune.trial import Value
from tests.exports import H200, chosen
from tests.exports import kernel as pinned
from tests.problems import FILTER_GRADIENT
from tests.templates.shipped_families import FAMILIES, family, supported

pytestmark = pytest.mark.cxx

IMAGES = (1, 10, 101, 1_000_003, 2**31 - 1)
CONFIGS = 2  # configs of each family, on as many problems
A100 = DeviceInfo("cuda", "A100", 80, 108, 40_000_000_000, smem_per_block_bytes=166_912, l2_bytes=41_943_040)
DEVICES = (H200, A100)  # the first is the tuned one
SHOW = r"""
#include <cstdio>

#include "kernel.h"
using namespace autotune_runtime;

void show(Int number) { std::printf(", %lld", static_cast<long long>(number.value())); }

void show(const Kernel &kernel, const Launch &launch, bool first) {
    std::printf("%s[\"%s\"", first ? "" : ", ", kernel.entries[launch.entry]);
    for (const Extents extents : {launch.grid, launch.block}) show(extents.x), show(extents.y), show(extents.z);
    show(launch.smem_bytes);
    std::printf("]");
}

void show(const TensorMap &map, bool first) {
    std::printf("%s[%d, %d", first ? "" : ", ", static_cast<int>(map.data_type), map.swizzle_bytes);
    for (int i = 0; i < map.rank; ++i) show(map.global_dim[i]), show(map.element_strides[i]);
    for (int i = 0; i < (map.im2col ? 2 : map.rank); ++i) show(map.box_dim[i]);
    for (int i = 0; i < (map.im2col ? 2 : 0); ++i) show(map.lower_corner[i]), show(map.upper_corner[i]);
    std::printf("]");
}

int main() {
    for (int at = 0; at < kernel_count; ++at) {
        for (const Device &device : {kernels[at]->tuned_on, Device{DEVICE}})
        for (const int32_t n : {IMAGES}) {
            const Plan plan(*kernels[at], {{n}}, device);
            std::printf("{\"reason\": \"%s\", \"numbers\": [%d", plan.reason, plan.status);
            show(plan.packed_w_bytes), show(plan.workspace_bytes), show(plan.loop_count);
            std::printf("], \"launches\": [");
            for (int i = 0; i < plan.prepare_count; ++i) show(*kernels[at], plan.prepare_at(i), i == 0);
            for (int i = 0; i < plan.stage_count; ++i)
                show(*kernels[at], plan.stage_at(i), plan.prepare_count + i == 0);
            std::printf("], \"maps\": [");
            for (int i = 0; i < plan.map_count; ++i) show(plan.map_at(i), i == 0);
            std::printf("]}\n");
        }
    }
}
"""


class Shown(TypedDict):
    """A line that SHOW prints."""

    reason: str
    numbers: list[int]
    """status, bytes of packed filters and workspace, loop count"""
    launches: list[list[object]]
    maps: list[list[int]]


EXPORTED = tuple(name for name in FAMILIES if family(name).operation.name == CONV2D)


def sampled() -> Iterator[SelectedKernel]:
    """A few configs of every exported family, each on a problem of its own, tuned at a large n."""
    for at, name in enumerate(EXPORTED):
        for seed, (label, problem) in enumerate(list(supported(name, H200).items())[:CONFIGS]):
            bound = BoundTemplate(
                family(name), problem.with_runtime(200 + at), H200
            )  # a library has one kernel per problem
            space = SearchSpace(bound, seed=seed, most_rows=0, sampled_rows=6)
            if len(space.rows):
                config = space.config((3 * seed + 1) % len(space.rows))
                yield chosen(family(name), bound.problem, config, f"{name}-{label}")
    yield pinned("im2col_gemm", "whole", Conv2dProblem(150, 3, 20, 20, 4, 3, 3), chunk="all")
    floats = Conv2dProblem(150, 36, 9, 7, 16, 3, 3, layout="nhwc", epilogue="bias_add")
    yield pinned("implicit_gemm_sm90", "rounded", floats, tile_m=64, tile_n=64, epilogue_subtiles=1)
    layer = Conv2dProblem(150, 6, 20, 20, 6, 3, 3)  # two blocks fit into an H200's shared memory, not into an A100's
    yield pinned(
        "direct_strip", "roomy", layer, thread_p=19, warps_q=6, warps_k=2, stage_channels=3, stages=2, min_blocks=2
    )


@pytest.fixture(scope="module")
def kernels() -> tuple[SelectedKernel, ...]:
    return tuple(sampled())


@pytest.fixture(scope="module")
def plans(kernels: tuple[SelectedKernel, ...], cxx: str, tmp_path_factory: pytest.TempPathFactory) -> list[Shown]:
    """The output of the compiled plans, by kernel and n."""
    folder = tmp_path_factory.mktemp("plans")
    for kernel in export_library(kernels, folder, ()).served:
        (folder / f"{kernel.stem}.fatbin").touch()
    numbers = (A100.arch, A100.sm_count, A100.smem_per_block_bytes, A100.l2_bytes)
    program = SHOW.replace("IMAGES", ", ".join(map(str, IMAGES))).replace("DEVICE", ", ".join(map(str, numbers)))
    (folder / "show.cpp").write_text(program)
    command = [
        cxx,
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Wconversion",
        "-Werror",
        f"-Wa,-I,{folder}",
        "-o",
        "show",
    ]
    done = subprocess.run(
        [*command, "show.cpp", "kernels.cpp"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = subprocess.run([str(folder / "show")], capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in shown.splitlines()]


@cache
def bound_to(name: str, problem: Conv2dProblem, device: DeviceInfo) -> BoundTemplate:
    """A family bound to a problem that is used several times."""
    return BoundTemplate(family(name), problem, device)


def admitted(kernel: SelectedKernel, n: int, device: DeviceInfo) -> bool:
    """Whether the tuner would use a kernel for n images on a device."""
    bound = bound_to(kernel.source.config.template, kernel.problem.with_runtime(n), device)
    try:
        bound.check(kernel.source.config)
    except Rejected:
        return False
    return bound.supported


def map_numbers(tensor: TensorMap) -> list[int]:
    """A tensor map as SHOW prints it."""
    return [
        {"f16": 6, "f32": 7, "bf16": 9, "tf32": 11}[tensor.dtype],
        tensor.swizzle_bytes,
        *itertools.chain.from_iterable(zip(tensor.global_dim, tensor.element_strides, strict=True)),
        *tensor.box_dim,
        *itertools.chain.from_iterable(zip(tensor.lower_corner, tensor.upper_corner, strict=True)),
    ]


def launched(
    kernel: SelectedKernel, n: int, device: DeviceInfo
) -> tuple[list[int], list[list[object]], list[list[int]]]:
    """What the tuner would launch: bytes of packed filters and workspace, rounds; the launches of a round, and maps."""
    bound = bound_to(kernel.source.config.template, kernel.problem.with_runtime(n), device)
    template = bound.template
    names: dict[str, Value] = dict(kernel.source.config.params)
    for name, derived in bound.derived:
        names[name] = derived.value(names)
    sizes = [
        bound.bind(expression).integer(names)
        for expression in (template.packed_w_bytes, template.workspace_bytes, template.loop_count)
    ]
    stages = (*launches(bound, template.prepare, names), *launches(bound, template.stages, names))
    maps = [each.tensor for each in tensor_maps(bound, names)]
    return (
        sizes,
        [[stage.entry, *stage.grid, *stage.block, stage.smem_bytes] for stage in stages],
        [map_numbers(each) for each in maps],
    )


def test_every_family_is_there(kernels: tuple[SelectedKernel, ...]) -> None:
    assert {kernel.source.config.template for kernel in kernels} == set(EXPORTED)
    assert {kernel.source.loop_count > 1 for kernel in kernels} == {True, False}
    assert any(kernel.source.prepare for kernel in kernels)
    assert any(each.tensor.im2col for kernel in kernels for each in kernel.source.tensor_maps)


def test_library_launches_what_the_tuner_would(kernels: tuple[SelectedKernel, ...], plans: list[Shown]) -> None:
    refused = set()
    cases = itertools.product(kernels, DEVICES, IMAGES)
    for (kernel, device, n), plan in zip(cases, plans, strict=True):
        status, *sizes = plan["numbers"]
        what = f"{kernel.source.config} tuned at {kernel.problem}, n = {n} on {device.name}: {plan['reason']}"
        # Fewer images than the tuned number are always supported: any kernel computes them, even if slowly.
        assert (status == 0) == admitted(kernel, max(n, kernel.problem.runtime_size), device), what
        if status == 0:
            assert (sizes, plan["launches"], plan["maps"]) == launched(kernel, n, device), what
        else:
            refused.add(plan["reason"])
    for reason in (
        "im2col_gemm requires: a chunk's column index fits 31 bits",
        "few_channels_sm90 requires: a tile's index fits 30 bits",
        "a grid exceeds the device's limits",
    ):
        assert reason in refused


def evaluated(kernel: SelectedKernel, plan: Plan, n: int, device: DeviceInfo) -> Shown:
    """What SHOW prints, of a plan that Python evaluates."""
    extents = (device.max_threads_per_block, device.grid_limits, device.block_limits)
    limits = DeviceLimits(device.arch, device.sm_count, device.smem_per_block_bytes, device.l2_bytes, *extents)
    names = kernel.problem.with_runtime(n).names()
    try:
        made = launches_of(plan, names, limits, larger=n > kernel.problem.runtime_size)
    except LibraryError as error:
        return {"reason": str(error), "numbers": [error.status], "launches": [], "maps": []}
    return {
        "reason": "",
        "numbers": [Status.OK, made.packed_w_bytes, made.workspace_bytes, made.loop_count],
        "launches": [
            [kernel.source.program.entries[each.entry], *each.sizes] for each in (*made.prepare, *made.stages)
        ],
        "maps": [map_numbers(each) for _, each in made.tensor_maps],
    }


def test_python_evaluates_plans_as_the_library_does(kernels: tuple[SelectedKernel, ...], plans: list[Shown]) -> None:
    written = {kernel.name: plan_of(kernel.bound, kernel.source, cpp=False) for kernel in kernels}
    for (kernel, device, n), expected in zip(itertools.product(kernels, DEVICES, IMAGES), plans, strict=True):
        found = evaluated(kernel, written[kernel.name], n, device)
        if found["reason"]:
            assert (found["numbers"][0], found["reason"]) == (expected["numbers"][0], expected["reason"])
        else:
            assert found == expected


def test_kernel_without_a_stage_is_for_devices_that_do_not_need_it() -> None:
    pointwise: dict[str, Value] = {"n": 128, "c": 256, "h": 7, "w": 7, "k": 1024, "r": 1, "s": 1, "dtype": "bf16"}
    problem = make_problem(FILTER_GRADIENT, pointwise)
    kernel = pinned("conv_filter_gradient_sm90", "whole", problem, tile_k=64, tile_boxes=1, shared_k=1, splits=2)
    bound = BoundTemplate(family("conv_filter_gradient_sm90"), problem, H200)
    plan = plan_of(bound, kernel.source)
    assert len(plan.stages) == len(kernel.source.stages) == 1
    assert "its code has no add_parts" in [need.reason for need in plan.device_needs]
