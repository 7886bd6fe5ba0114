"""A kernel's launches for any run-time sizes, as expressions in the language of a family's header.

autotune writes these plans in C++ for exported libraries, and as text for libraries that only Python loads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import CodeType
from typing import Any, TypeAlias

from .driver import TensorMap
from .interface import LibraryError, Status

Value: TypeAlias = int | str | bool


@dataclass(frozen=True, slots=True)
class Need:
    """A condition under which a kernel may be launched."""

    holds: str
    """the condition"""
    reason: str


@dataclass(frozen=True, slots=True)
class PlanStage:
    """A stage's launch, with sizes and conditions as expressions."""

    entry: int
    """index into the program's entries"""
    args: tuple[str, ...]
    when: str
    """condition for launching the stage; empty: always"""
    grid: tuple[str, ...]
    block: tuple[str, ...]
    smem_bytes: str


@dataclass(frozen=True, slots=True)
class PlanTensorMap:
    """A tensor map whose numbers are expressions."""

    array: str
    data_type: str
    """f32, f16, bf16 or tf32"""
    global_dim: tuple[str, ...]
    box_dim: tuple[str, ...]
    element_strides: tuple[str, ...]
    lower_corner: tuple[str, ...]
    upper_corner: tuple[str, ...]
    swizzle_bytes: str
    im2col: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A kernel's launches as expressions of the run-time sizes and the device."""

    locals: tuple[tuple[str, str], ...]
    """derived values that depend on the run-time sizes or the device, each before the values that use it"""
    device_needs: tuple[Need, ...]
    n_needs: tuple[Need, ...]
    """rules that are only checked for run-time sizes larger than the tuned ones: a header's rules exclude overflows for
    many images and wasteful configs for few, but a kernel must run for any number (docs/templates.md)
    """
    prepare: tuple[PlanStage, ...]
    stages: tuple[PlanStage, ...]
    packed_w_bytes: str
    workspace_bytes: str
    loop_count: str
    tensor_maps: tuple[PlanTensorMap, ...]
    """tensor maps, which stages take as map0, map1, ..."""


def plan_of(read: Any) -> Plan:
    """Return a plan from its fields, as read from JSON."""
    lists = {
        "device_needs": Need,
        "n_needs": Need,
        "prepare": PlanStage,
        "stages": PlanStage,
        "tensor_maps": PlanTensorMap,
    }
    return Plan(**{**read, **{name: tuple(each(**one) for one in read[name]) for name, each in lists.items()}})


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The properties of a device in the expressions of a plan, and the limits of its launches."""

    arch: int
    """compute capability times ten"""
    sm_count: int
    smem_per_block_bytes: int
    """maximum of a block after opt-in"""
    l2_bytes: int
    most_threads: int
    grid: tuple[int, ...]
    """largest extents"""
    block: tuple[int, ...]
    """largest extents"""


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of one of a program's kernels."""

    entry: int
    args: tuple[str, ...]
    sizes: tuple[int, ...]
    """extents of the grid and of the block, and bytes of dynamic shared memory"""
    early: bool = False
    """whether the kernel may start before preceding kernels have ended"""


@dataclass(frozen=True, slots=True)
class Launches:
    """A plan, evaluated for run-time sizes and a device."""

    prepare: tuple[Launch, ...]
    stages: tuple[Launch, ...]
    packed_w_bytes: int
    workspace_bytes: int
    loop_count: int
    tensor_maps: tuple[tuple[str, TensorMap], ...]
    """each map with the name of its array"""

    @property
    def preparation(self) -> Launches:
        """The launches that prepare the weights of passes."""
        return replace(self, stages=self.prepare, loop_count=1, tensor_maps=())

    def takes(self, argument: str) -> bool:
        """Return whether a pass reads or writes an array."""
        launched = any(argument in launch.args for launch in self.stages)
        return launched or any(argument == array for array, _ in self.tensor_maps)


def launches_of(plan: Plan, names: Mapping[str, object], device: DeviceLimits, *, larger: bool) -> Launches:
    """Evaluate a plan for a problem's values, by name, and a device.

    `larger`: whether a run-time size is larger than the tuned one. Raises LibraryError.
    """
    known: dict[str, object] = {**names, "device": device}
    for name, text in plan.locals:
        known[name] = evaluate(text, known)
    for need in plan.device_needs:
        if not evaluate(need.holds, known):
            raise LibraryError(Status.WRONG_DEVICE, need.reason)
    for need in plan.n_needs if larger else ():
        if not evaluate(need.holds, known):
            raise LibraryError(Status.UNSUPPORTED, need.reason)

    def numbers(texts: Sequence[str]) -> tuple[int, ...]:
        return tuple(number(text, known) for text in texts)

    def launches(stages: Sequence[PlanStage]) -> tuple[Launch, ...]:
        return tuple(
            Launch(stage.entry, stage.args, numbers((*stage.grid, *stage.block, stage.smem_bytes)))
            for stage in stages
            if not stage.when or evaluate(stage.when, known)
        )

    def tensor_map(planned: PlanTensorMap) -> TensorMap:
        return TensorMap(
            dtype=planned.data_type,
            global_dim=numbers(planned.global_dim),
            box_dim=numbers(planned.box_dim),
            element_strides=numbers(planned.element_strides),
            swizzle_bytes=number(planned.swizzle_bytes, known),
            lower_corner=numbers(planned.lower_corner),
            upper_corner=numbers(planned.upper_corner),
        )

    made = Launches(
        prepare=launches(plan.prepare),
        stages=launches(plan.stages),
        packed_w_bytes=number(plan.packed_w_bytes, known),
        workspace_bytes=number(plan.workspace_bytes, known),
        loop_count=number(plan.loop_count, known),
        tensor_maps=tuple((each.array, tensor_map(each)) for each in plan.tensor_maps),
    )
    for launch in (*made.prepare, *made.stages):
        _check_limits(launch, device)
    return made


def _check_limits(launch: Launch, device: DeviceLimits) -> None:
    grid, block, smem_bytes = launch.sizes[:3], launch.sizes[3:6], launch.sizes[6]
    if not all(1 <= extent <= most for extent, most in zip(grid, device.grid, strict=True)):
        raise LibraryError(Status.UNSUPPORTED, "a grid exceeds the device's limits")
    if not all(1 <= extent <= most for extent, most in zip(block, device.block, strict=True)):
        raise LibraryError(Status.WRONG_DEVICE, "a block exceeds the device's limits")
    if math.prod(block) > device.most_threads:
        raise LibraryError(Status.WRONG_DEVICE, "a block has more threads than the device runs")
    if not 0 <= smem_bytes <= device.smem_per_block_bytes:
        raise LibraryError(Status.WRONG_DEVICE, "a block needs more shared memory than the device has")


def ceil_div(numerator: int, denominator: int) -> int:
    """Return the smallest integer that is at least numerator / denominator."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `value`."""
    return ceil_div(value, multiple) * multiple


def is_pow2(value: int) -> bool:
    """Return whether a value is a power of two: 1, 2, 4, 8, ..."""
    return value > 0 and value & (value - 1) == 0


def max_registers(warps: int) -> int:
    """Return the maximum number of registers per thread if this many warps are resident on a multiprocessor.

    A multiprocessor has 65,536 registers. Warps are counted in multiples of 4 and registers in multiples of 8; a thread
    has at most 255 (CUDA C++ Programming Guide, compute capabilities 7.5 to 12.0).
    """
    return min(255, 65536 // (32 * round_up(warps, 4)) // 8 * 8)


FUNCTIONS: Mapping[str, Callable[..., int | bool]] = {
    "ceil_div": ceil_div,
    "round_up": round_up,
    "is_pow2": is_pow2,
    "max_registers": max_registers,
    "min": min,
    "max": max,
}
"""The functions that expressions can call."""
_GLOBALS: dict[str, object] = {"__builtins__": {}, "true": True, "false": False, **FUNCTIONS}


def evaluate(text: str, names: Mapping[str, object]) -> Value:
    """Evaluate an expression, which is also a Python expression.

    Its file is trusted, because the same folder contains the machine code.
    """
    found: Value = eval(_compiled(text), _GLOBALS, names)  # noqa: S307
    return found


@cache
def _compiled(text: str) -> CodeType:
    """Compile an expression. Kernels of an operation have many in common."""
    return compile(text, "plan", "eval")


def number(text: str, names: Mapping[str, object]) -> int:
    """Evaluate an expression whose value is a number."""
    return int(evaluate(text, names))
