"""A layer's roofline: bytes divided by the memory rate, or operations divided by the arithmetic rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.measurement.traffic import read_bytes, written_bytes
from autotune.problem import Conv2dProblem, Problem

ARITHMETIC_RATE: Mapping[str, tuple[str, float]] = {
    "fp64": ("fp64", 1.0),  # not calibrated; no kernel exceeds the FFMA rate
    "fp32": ("fp32", 1.0),
    "fp32-3xtf32": ("tf32", 1 / 3),  # each product takes three TF32 products
    "tf32": ("tf32", 1.0),
    "fp16": ("fp16", 1.0),
    "fp16-acc16": ("fp16", 1.0),
    "bf16": ("fp16", 1.0),  # both types use the same tensor cores at the same rate
}
"""The calibrated rate that limits each accuracy class, and the usable share of that rate."""
_FFMA_SHARES = {"fp16-acc16": 4.0}
"""Factors on the FFMA rate for accuracy classes that are faster without tensor cores.

HFMA2 computes two products per instruction, and on 8.0 it issues twice as often as FFMA (CUDA C++ Programming Guide,
throughput of arithmetic instructions).
"""
_LEAST_COLUMNS = 8
"""Minimum number of outputs for which a tensor core uses each input: n of mma.sync and wgmma (PTX ISA)."""


@dataclass(frozen=True, slots=True)
class Floor:
    """A layer's minimum time on a device, in microseconds."""

    memory_us: float
    """time to move the layer's bytes at the copy rate, and additional reads at the read rate"""
    arithmetic_us: float
    """time of the layer's operations on tensor cores or with FFMA, whichever is faster; 0 if no rate is known"""
    ffma_us: float
    """time of the layer's operations without tensor cores; 0 if no rate is known"""

    @property
    def us(self) -> float:
        """The memory time or the arithmetic time, whichever is larger."""
        return max(self.memory_us, self.arithmetic_us)

    @property
    def term(self) -> str:
        """Which of the two times is larger, `memory` or `arithmetic`."""
        return "memory" if self.memory_us >= self.arithmetic_us else "arithmetic"


def floor(problem: Problem, accuracy: str, rates: Mapping[str, float], flops: int | None = None) -> Floor | None:
    """Return the minimum time of any kernel in an accuracy class, on a device with these rates.

    Returns None if the device wasn't calibrated or the class is unknown. `rates` come from the store: `copy` (read plus
    written) and `read` in bytes per second, arithmetic rates in FLOP per second. Units without a calibrated rate, such
    as tensor cores before 8.0, are ignored. `flops` is the number of operations in the kernel's algorithm, if it
    differs from the direct one.
    """
    if "copy" not in rates or accuracy not in ARITHMETIC_RATE:
        return None
    unit, share = ARITHMETIC_RATE[accuracy]
    ffma = rates.get("fp32", 0.0) * _FFMA_SHARES.get(accuracy, 1.0)
    tensor = 0.0 if unit == "fp32" else rates.get(unit, 0.0) * share * tensor_share(problem)

    def time_us(rate: float) -> float:
        return 1e6 * (flops or problem.flops) / rate if rate else 0.0

    return Floor(_memory_us(problem, rates), time_us(max(tensor, ffma)), time_us(ffma))


def _memory_us(problem: Problem, rates: Mapping[str, float]) -> float:
    """Return how long it takes to move a layer's bytes.

    Written bytes, and an equal number of read bytes, move at the copy rate. Any further reads move at the read rate, if
    that is known and higher.
    """
    written = written_bytes(problem)
    more = max(0, read_bytes(problem) - written)
    copied = read_bytes(problem) + written - more
    return 1e6 * (copied / rates["copy"] + more / max(rates["copy"], rates.get("read", 0.0)))


def floor_us(problem: Problem, accuracy: str, rates: Mapping[str, float]) -> float | None:
    """Return the floor in microseconds, or None if the device wasn't calibrated or the class is unknown."""
    bound = floor(problem, accuracy, rates)
    return None if bound is None else bound.us


def tensor_share(problem: Problem) -> float:
    """Return the largest share of a tensor core's products that a layer can use.

    The share is 1 except for convolutions whose groups have fewer than eight output channels.

    A tensor core multiplies each input by eight weights, for eight outputs. A group with fewer output channels has to
    fill the eight columns with neighbouring pixels, using a banded matrix of weights. Each pixel needs r * s inputs,
    but the matrix has a row for each input of any of the pixels. `pixels` pixels in `a` rows of the output need at
    least (r + (a - 1) * u) * (s + (pixels / a - 1) * v) inputs, where neighbouring pixels that share inputs are u rows
    or v columns apart. An output's products are summed in one accumulator.
    """
    if not isinstance(problem, Conv2dProblem):
        return 1.0
    p = problem
    channels = p.k // p.groups
    if channels >= _LEAST_COLUMNS:
        return 1.0
    down = min(p.r, p.stride_h // math.gcd(p.stride_h, p.dilation_h))
    right = min(p.s, p.stride_w // math.gcd(p.stride_w, p.dilation_w))

    def share(pixels: int) -> float:
        inputs = min((p.r + (a - 1) * down) * (p.s + (pixels / a - 1) * right) for a in range(1, pixels + 1))
        return min(1.0, pixels * channels / _LEAST_COLUMNS) * p.r * p.s / inputs

    return max(share(pixels) for pixels in range(1, _LEAST_COLUMNS + 1))
