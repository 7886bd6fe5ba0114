"""What an operation declares, as the templates of an export print it: in C++."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.declarations import ArrayTemplate, Part, Size
from autotune.expressions.expression import Expression
from autotune.family.folding import fold
from autotune.operation import Operation


@dataclass(frozen=True, slots=True)
class ArrayView:
    """An array that problems may have."""

    name: str
    role: str
    doc: str
    when: str
    elements: str
    least: int
    span: int
    """of whole numbers as test data"""


@dataclass(frozen=True, slots=True)
class OperationView:
    """An operation, its expressions in C++ on a `layer`."""

    sizes: tuple[Size, ...]
    words: tuple[tuple[str, tuple[str, ...]], ...]
    enumerations: tuple[tuple[str, tuple[str, ...]], ...]
    """the words, and what they are made of"""
    parts: tuple[Part, ...]
    derived: tuple[tuple[str, str], ...]
    rules: tuple[str, ...]
    arrays: tuple[ArrayView, ...]
    flops: str
    members: str
    """initialisers of a problem from the C interface's"""
    same_shape: str
    names: tuple[str, ...]
    """of the arrays"""
    output: int
    """index of the array that is computed"""
    input_data: str
    weights: str
    """the names of those that are prepared, in words"""
    launched: str
    """the names of those of each launch, in words"""


def operation_view(operation: Operation) -> OperationView:
    """An operation as the templates print it."""
    names = operation.names_of("in", "weights", "out")
    sizes = tuple(size.name for size in operation.sizes)
    members = (f"{name}(given.{name})" for name in sizes)
    words = (f"{kind}(static_cast<{kind.capitalize()}>(given.{kind}))" for kind in operation.words)
    fixed = (name for name in (*sizes, *operation.words) if name != operation.runtime)
    inputs = operation.names_of("in", "weights")
    return OperationView(
        sizes=operation.sizes,
        words=tuple(operation.words.items()),
        enumerations=tuple(operation.enumerations.items()),
        parts=operation.parts,
        derived=tuple((name, _cpp(bound.expression, operation)) for name, bound in operation.derived),
        rules=tuple(f"({_cpp(rule.holds.expression, operation)})" for rule in operation.rules),
        arrays=tuple(_array(array, operation) for array in operation.arrays),
        flops=_cpp(operation.flops.expression, operation),
        members=",\n          ".join((*members, *words)),
        same_shape=" &&\n           ".join(f"a.{name} == b.{name}" for name in fixed),
        names=names,
        output=names.index(operation.output.name),
        input_data=", ".join(f"data[{names.index(name)}]" for name in inputs),
        weights=_listed(operation.names_of("weights")),
        launched=_listed(operation.names_of("in", "out")),
    )


def _array(array: ArrayTemplate, operation: Operation) -> ArrayView:
    texts = {layout: [extent.expression.text for extent in extents] for layout, extents in array.shapes.items()}
    shapes = {layout: f"[{', '.join(extents)}]" for layout, extents in texts.items()}
    alike = len(set(shapes.values())) == 1
    shape = next(iter(shapes.values())) if alike else ", ".join(f"{layout} {text}" for layout, text in shapes.items())
    when = array.when.expression.text
    return ArrayView(
        name=array.name,
        role=array.role,
        doc=shape if when == "true" else f"{shape}, where {when}",
        when=_cpp(array.when.expression, operation),
        elements=_cpp(_elements(texts, array.name), operation),
        least=array.least,
        span=array.most - array.least + 1,
    )


def _elements(texts: Mapping[str, list[str]], name: str) -> Expression:
    """The product of an array's extents, whatever the layout."""
    products = {layout: " * ".join(f"({text})" for text in extents) for layout, extents in texts.items()}
    *others, last = products.items()
    text = "".join(f"{product} if layout == '{layout}' else " for layout, product in others) + last[1]
    return Expression(text, f"elements of {name}")


def _cpp(expression: Expression, operation: Operation) -> str:
    return fold(expression, {}, operation).cpp


def _listed(names: tuple[str, ...]) -> str:
    """Names in words."""
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last
