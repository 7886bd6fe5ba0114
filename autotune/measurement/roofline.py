"""The roofline of a layer: its bytes divided by the memory rate, or its operations divided by the arithmetic rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.measurement.traffic import read_bytes, written_bytes
from autotune.problem import Conv2dProblem, Problem

ARITHMETIC_RATE: Mapping[str, tuple[str, float]] = {
    "fp64": ("fp64", 1.0),  # not calibrated; no kernel beats the rate of FFMA
    "fp32": ("fp32", 1.0),
    "fp32-3xtf32": ("tf32", 1 / 3),  # three products for one
    "tf32": ("tf32", 1.0),
    "fp16": ("fp16", 1.0),
    "fp16-acc16": ("fp16", 1.0),
    "bf16": ("fp16", 1.0),  # the same units; an fp16 rate holds for both types
}
"""Accuracy class to the calibrated rate that bounds it, and the usable share of that rate."""
_FFMA_SHARES = {"fp16-acc16": 4.0}
"""The factor on FFMA's rate for a class without tensor cores, if not 1: HFMA2 computes two products per instruction,
and on 8.0 it issues twice as often (CUDA C++ Programming Guide, throughput of arithmetic instructions).
"""
_LEAST_COLUMNS = 8
"""The minimum number of outputs for which a tensor core uses one input: n of mma.sync and wgmma (PTX ISA)."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The minimum time of a layer on a device, microseconds."""

    memory_us: float
    """its bytes at the copy rate, and its additional reads at the read rate"""
    arithmetic_us: float
    """its operations at the faster unit's rate; 0 if no rate is known"""
    ffma_us: float
    """its operations without tensor cores; 0 if no rate is known"""

    @property
    def us(self) -> float:
        """The larger of memory and arithmetic."""
        return max(self.memory_us, self.arithmetic_us)

    @property
    def term(self) -> str:
        """Which of them is larger: memory or arithmetic."""
        return "memory" if self.memory_us >= self.arithmetic_us else "arithmetic"


def floor(problem: Problem, accuracy: str, rates: Mapping[str, float], flops: int | None = None) -> Floor | None:
    """The time that no kernel of this class can beat on a device with these rates; None if the device was not
    calibrated or the class is unknown.

    `rates` are those of the store: `copy` (read plus written) and `read` in bytes per second, arithmetic in FLOP per
    second. A unit without a calibrated rate (tensor cores before 8.0) is ignored. `flops` are those of the kernel's
    algorithm, if it is not the direct one.
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
    """The written bytes and as many read ones move at the copy rate; further reads move at the read rate, if it is
    known and higher.
    """
    written = written_bytes(problem)
    more = max(0, read_bytes(problem) - written)
    copied = read_bytes(problem) + written - more
    return 1e6 * (copied / rates["copy"] + more / max(rates["copy"], rates.get("read", 0.0)))


def floor_us(problem: Problem, accuracy: str, rates: Mapping[str, float]) -> float | None:
    """The floor in microseconds; None if not calibrated."""
    bound = floor(problem, accuracy, rates)
    return None if bound is None else bound.us


def tensor_share(problem: Problem) -> float:
    """The largest share of a tensor core's products that a layer can use.

    It is 1 except for convolutions whose groups have fewer than eight output channels.

    A tensor core multiplies each input by eight weights, for eight outputs. A group with fewer output channels has to
    fill the eight with neighbouring pixels, by a banded matrix of weights. Each pixel needs r * s inputs, but the
    matrix has rows for the inputs of all the pixels. For `pixels` pixels in `a` rows of the output, these are at least
    (r + (a - 1) * u) * (s + (pixels / a - 1) * v) inputs, where u rows and v columns are the distance between
    neighbouring pixels that share inputs. The products of an output are summed in one accumulator.
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
