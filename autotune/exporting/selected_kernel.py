"""A kernel for an export, and the choice among several for one problem."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from autotune.exporting.kernel import Origin, stem
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.family.template_header import template_of_header
from autotune.problem import Problem
from autotune.trial import ACCURACY_CLASSES


@dataclass(frozen=True)
class SelectedKernel:
    """A kernel to be exported."""

    origin: Origin
    source: KernelSource
    header: str
    """its family's, at the time when it was rendered"""
    admitted: tuple[str, ...]
    """accuracy classes that its study admits"""

    @property
    def name(self) -> str:
        """`study.layer`."""
        return self.origin.name

    @property
    def stem(self) -> str:
        """Name of its file without `.cu`."""
        source = self.source
        return stem(self.name, self.origin.device, source.accuracy, deterministic=source.deterministic)

    @property
    def problem(self) -> Problem:
        """The layer's problem."""
        return self.source.problem

    @cached_property
    def bound(self) -> BoundTemplate:
        """Its family's header with the problem and the device filled in."""
        return BoundTemplate(
            template_of_header(self.source.config.template, self.header, self.problem.operation),
            self.problem,
            self.origin.device,
        )


def serving(chosen: Iterable[SelectedKernel]) -> tuple[SelectedKernel, ...]:
    """One kernel for each problem: the fastest that its study admits, in the given order.

    Deterministic kernels come before others, and kernels for a cold cache before those for a hot one, because their
    times are not comparable. If the study admits none, the one with the strictest accuracy class is chosen.
    """
    best: dict[Problem, SelectedKernel] = {}
    for kernel in chosen:
        if kernel.problem not in best or _rank(kernel) < _rank(best[kernel.problem]):
            best[kernel.problem] = kernel
    return tuple(best.values())


def _rank(kernel: SelectedKernel) -> tuple[int, bool, bool, float]:
    source, hot = kernel.source, kernel.origin.cache != "cold"
    strictness = -1 if source.accuracy in kernel.admitted else ACCURACY_CLASSES.index(source.accuracy)
    return (strictness, not source.deterministic, hot, kernel.origin.time_us)
