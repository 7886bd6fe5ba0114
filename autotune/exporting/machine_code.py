"""What affects an exported kernel's machine code, besides its text."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.compilation.compile import NVCC_FLAGS as TUNED_FLAGS
from autotune.compilation.compile import architecture

DEPENDENT = "-DAUTOTUNE_DEPENDENT_LAUNCH"
NVCC_FLAGS = (*(flag for flag in TUNED_FLAGS if flag != "-Xptxas=-v"), DEPENDENT)
"""for every architecture"""
ARCHS = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
"""Compute capabilities times ten that nvcc 12 or 13 compiles for."""


def gencode(archs: Iterable[int], text: str) -> list[str]:
    """nvcc's options for the machine code of these architectures."""
    numbers = [architecture(arch, text) for arch in archs]
    return [f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers]
