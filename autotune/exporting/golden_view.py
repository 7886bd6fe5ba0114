"""A kernel's golden values, and what else its self-test needs to know, as the template prints them."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.exporting.golden import Samples, golden
from autotune.family.source import KernelSource
from autotune.measurement.bounds import bound_factor, exact_on_integers
from autotune.problem import Problem


@dataclass(frozen=True, slots=True)
class GoldenView:
    """A kernel's golden values as the template prints them."""

    identifier: str
    name: str
    n: int
    least_n: int
    factor: str
    exact_on_integers: bool
    most_outputs: int
    sets: tuple[SamplesView, ...]


@dataclass(frozen=True, slots=True)
class SamplesView:
    """One set of them."""

    output: int
    n: int
    whole: bool
    lines: tuple[str, ...]
    """initialisers"""
    count: int


def golden_view(problem: Problem, source: KernelSource, identifier: str, name: str) -> GoldenView:
    """The golden values of a kernel's problem. Raises TemplateError where its reference fails."""
    values = golden(problem)
    return GoldenView(
        identifier=identifier,
        name=name,
        n=values.n,
        least_n=values.least_n,
        factor=(source.error_factor * bound_factor(source.accuracy, problem)).hex(),
        exact_on_integers=source.error_factor == 1 and exact_on_integers(source.accuracy, problem),
        most_outputs=values.most_outputs,
        sets=tuple(
            SamplesView(problem.operation.seed(each.output), each.n, each.integers, _samples(each), len(each.indices))
            for each in values.sets
        ),
    )


def _samples(golden: Samples) -> tuple[str, ...]:
    """Initialisers, four to a line."""
    words = [
        f"{{{index}, {value.hex()}, {unit.hex()}}},"
        for index, value, unit in zip(golden.indices, golden.values, golden.units, strict=True)
    ]
    return tuple(" ".join(words[at : at + 4]) for at in range(0, len(words), 4))
