"""dispatch -> render: write a dispatcher as a C++ header, from `templates/dispatch.cu.j2`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autotune.compilation.compile import Program
from autotune.dispatch.dispatcher import (
    DEFAULT,
    FAMILY,
    Dispatcher,
    PortfolioKernel,
    Property,
    Split,
    ends,
)
from autotune.dispatch.predicate import Step, cpp_steps
from autotune.distance import SAME
from autotune.errors import TemplateError
from autotune.escape import in_comment
from autotune.expressions.expression import Expression
from autotune.family.codegen_cpp import fold
from autotune.family.template import SUFFIX
from autotune.family.text import Body, environment
from autotune.operation.registry import CONV2D, operation
from autotune.problem import Problem
from autotune.resources import shipped
from autotune.toml_table import read_toml

ENTRY = "dispatch_choices"
"""A test program's kernel, with the arguments (table, choices, count) and one thread per layer."""
_HEADER = re.compile(r"\s*/\*#\s*dispatch\b(.*?)#\*/", re.DOTALL)
_KEYS = {"summary", "properties", "params"}


@dataclass(frozen=True, slots=True)
class PropertyTemplate:
    """A property declared by `dispatch.cu.j2`."""

    name: str
    text: str
    reach: int
    """factor by which a problem may exceed the range of a rule's layers before the rule is no longer trusted"""
    power: int
    """rate at which the similarity of two problems decreases as their values of the property diverge"""
    doc: str

    @property
    def plain(self) -> Property:
        """The property without a range."""
        return Property(self.name, self.text, power=self.power)

    def around(self, values: Sequence[int]) -> Property:
        """Return the property with the range in which a rule is trusted, given the values of the rule's layers."""
        return Property(self.name, self.text, min(values) // self.reach, max(values) * self.reach, self.power)


@dataclass(frozen=True)
class DispatchTemplate:
    """A `dispatch.cu.j2` file with a checked header."""

    path: Path
    text: str
    header: str
    """the TOML header of the file"""
    properties: tuple[PropertyTemplate, ...]

    @property
    def hash(self) -> str:
        """SHA-256 of the file's text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def body(self) -> Body:
        """The file as a compiled Jinja template."""
        return environment().from_string(self.text)


def load_dispatch_template(path: Path | None = None) -> DispatchTemplate:
    """Load the bundled template or another one. Raises TemplateError with an error's dotted key."""
    path = path or shipped("templates") / f"{FAMILY}{SUFFIX}"
    text = path.read_text(encoding="utf-8")
    match = _HEADER.match(text)
    if match is None:
        raise TemplateError(f"{path}: line 1: expected the header, a comment that starts with /*# {FAMILY}")
    header = read_toml(
        match.group(1), TemplateError, str(path), what="header ", first=text[: match.start(1)].count("\n")
    )
    header.allow(_KEYS)
    declared = header.get("properties")
    if not isinstance(declared, dict) or not declared:
        raise header.error("properties", "expected a table with at least one property")
    properties = tuple(_property(path, name, content) for name, content in declared.items())
    return DispatchTemplate(path, text, match.group(1).strip(), properties)


def _property(path: Path, name: str, content: object) -> PropertyTemplate:
    match content:
        case {"value": str(text), "reach": int(reach), "power": int(power), "doc": str(doc)} if (
            reach >= 1 and power >= 0 and name.isidentifier()
        ):
            expression = Expression(text, f"{path}: properties.{name}")
            if unknown := sorted(expression.names - operation(CONV2D).names):
                raise expression.error(f"has an undeclared name {unknown[0]!r}")
            return PropertyTemplate(name, text, reach, power, doc)
    shape = "{ value = '...', reach = 1 or more, power = 0 or more, doc = '...' }"
    raise TemplateError(f"{path}: properties.{name}: expected {shape}")


def render_dispatch(template: DispatchTemplate, dispatcher: Dispatcher, *, checked: bool = False) -> str:
    """Render a dispatcher's C++ header.

    With `checked`, it includes the kernel that returns choices on a device. Raises TemplateError for a kernel whose
    conditions can't be written in C++.
    """
    docs = {item.name: item.doc for item in template.properties}
    return template.body.render(
        declared=operation(CONV2D).enumerations.items(),
        parts=operation(CONV2D).parts,
        derived=[
            (name, fold(bound.expression, {}, operation(CONV2D)).cpp) for name, bound in operation(CONV2D).derived
        ],
        words=dispatcher.words(),
        kernels=[_kernel(kernel) for kernel in dispatcher.all_kernels],
        split=dispatcher.rule if isinstance(dispatcher.rule, Split) else None,
        properties=[_property_values(item, docs.get(item.name, item.name)) for item in dispatcher.properties],
        ends=_ends(dispatcher),
        same=SAME,
        known=[
            {"numbers": numbers, "relative_times": relative_times}
            for numbers, *relative_times in zip(
                dispatcher.known, *(one.relative_times for one in dispatcher.all_kernels), strict=True
            )
        ],
        checked=checked,
        columns=len(operation(CONV2D).sizes) + len(operation(CONV2D).words),
    ).lstrip("\n")


def dispatch_program(template: DispatchTemplate, dispatcher: Dispatcher) -> Program:
    """Render a program that runs the compiled dispatcher on a device and returns its choices."""
    return Program(render_dispatch(template, dispatcher, checked=True), (ENTRY,))


def table_row(problem: Problem) -> tuple[int, ...]:
    """Return a problem as the integers read by the test program: its sizes, then its words' positions."""
    names = problem.names()
    sizes = (int(names[size.name]) for size in operation(CONV2D).sizes)
    return (*sizes, *(words.index(str(names[name])) for name, words in operation(CONV2D).words.items()))


def _kernel(kernel: PortfolioKernel) -> Mapping[str, object]:
    return {
        "name": kernel.name,
        "symbol": kernel.name.upper(),
        "config": in_comment(str(kernel.config)),
        "steps": _steps(kernel.predicate.steps),
        "padded_outputs": _steps(kernel.predicate.padded_outputs),
    }


def _steps(steps: tuple[Step, ...]) -> list[Mapping[str, str]]:
    return [{"name": step.name, "reason": in_comment(step.reason), "cpp": cpp} for step, cpp in cpp_steps(steps)]


def _property_values(item: Property, doc: str) -> Mapping[str, object]:
    cpp = fold(Expression(item.text, f"property {item.name}"), {}, operation(CONV2D)).cpp
    return {
        "function": f"{item.name}_of",
        "symbol": item.name.upper(),
        "cpp": cpp,
        "least": item.least,
        "most": item.most,
        "power": item.power,
        "doc": doc,
    }


def _ends(dispatcher: Dispatcher) -> list[Mapping[str, object]]:
    """Return the rule's ends, and the end for layers outside the range in which it is trusted."""
    inside = [
        {"words": words, "function": f"end_{number}", "kernels": [first] if first else []}
        for number, (words, first) in enumerate(zip(dispatcher.words(), ends(dispatcher.rule), strict=True), 1)
    ]
    outside = {
        "words": "a layer unlike the measured ones",
        "function": "out_of_range",
        "kernels": [DEFAULT],
    }
    return [*inside, outside]
