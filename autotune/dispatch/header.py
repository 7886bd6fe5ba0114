"""dispatch -> render: write a dispatcher as a C++ header, from `templates/dispatch.cu.j2`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache

from autotune.compilation.compile import Program
from autotune.dispatch.dispatcher import (
    DEFAULT,
    FAMILY,
    PROPERTIES,
    Dispatcher,
    PortfolioKernel,
    Property,
    Split,
    ends,
)
from autotune.dispatch.predicate import Step, cpp_steps
from autotune.distance import SAME
from autotune.escape import in_comment
from autotune.expressions.expression import Expression
from autotune.family.codegen_cpp import fold
from autotune.family.template import SUFFIX
from autotune.family.text import compile_body
from autotune.operation.registry import CONV2D, operation
from autotune.problem import Problem
from autotune.resources import shipped
from autotune.store import TemplateRecord

ENTRY = "dispatch_choices"
"""A test program's kernel, with the arguments (table, choices, count) and one thread per layer."""
_HEADER = "summary = 'Which kernel computes a layer: the one with the smallest expected time.'"


@cache
def template_text() -> str:
    """Return the text of `templates/dispatch.cu.j2`."""
    return (shipped("templates") / f"{FAMILY}{SUFFIX}").read_text(encoding="utf-8")


def template_record() -> TemplateRecord:
    """Return the record that takes the place of a family in dispatchers' trials."""
    return TemplateRecord(FAMILY, hashlib.sha256(template_text().encode()).hexdigest(), _HEADER)


def render_dispatch(dispatcher: Dispatcher, *, checked: bool = False, text: str | None = None) -> str:
    """Render a dispatcher's C++ header, from the bundled template or another `text`.

    With `checked`, it includes the kernel that returns choices on a device. Raises TemplateError for a kernel whose
    conditions can't be written in C++.
    """
    docs = {item.name: item.doc for item in PROPERTIES}
    body = compile_body(template_text() if text is None else text)
    return body.render(
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


def dispatch_program(dispatcher: Dispatcher, text: str | None = None) -> Program:
    """Render a program that runs the compiled dispatcher on a device and returns its choices."""
    return Program(render_dispatch(dispatcher, checked=True, text=text), (ENTRY,))


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
    """Return the rule's ends, and the end for layers outside its trusted range."""
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
