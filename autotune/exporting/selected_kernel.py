"""A recorded kernel that is to be exported, and which of several serves a problem."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from autotune.exporting.kernel import stem
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.family.template_header import template_of_header
from autotune.problem import Problem
from autotune.store import BestRow
from autotune.trial import ACCURACY_CLASSES


@dataclass(frozen=True)
class SelectedKernel:
    """A recorded kernel to be exported."""

    row: BestRow
    source: KernelSource
    header: str
    """its family's, as it was when the kernel was tuned"""
    admitted: tuple[str, ...]
    """accuracy classes that its study lets win"""
    floor_us: float | None

    @property
    def stem(self) -> str:
        """Name of its file without `.cu`."""
        return stem(self.row)

    @property
    def problem(self) -> Problem:
        """What it was tuned on."""
        return self.row.layer.problem

    @cached_property
    def bound(self) -> BoundTemplate:
        """The recorded header with problem and device filled in."""
        return BoundTemplate(
            template_of_header(self.source.config.template, self.header, self.problem.operation),
            self.problem,
            self.row.row.device,
        )


def serving(chosen: Iterable[SelectedKernel]) -> tuple[SelectedKernel, ...]:
    """One kernel for each problem: the fastest that its study admits, in the order given.

    What is deterministic comes before what is not, and what was tuned for a cold cache before what was for a hot one,
    whose times are not comparable. Where the study admits none, the strictest accuracy class serves.
    """
    best: dict[Problem, SelectedKernel] = {}
    for kernel in chosen:
        if kernel.problem not in best or _rank(kernel) < _rank(best[kernel.problem]):
            best[kernel.problem] = kernel
    return tuple(best.values())


def _rank(kernel: SelectedKernel) -> tuple[int, bool, bool, float]:
    trial, hot = kernel.row.row.trial, kernel.row.row.measurement_mode != "cold"
    strictness = -1 if trial.accuracy in kernel.admitted else ACCURACY_CLASSES.index(trial.accuracy)
    return (strictness, not trial.deterministic, hot, kernel.row.median_us)
