"""space -> dispatch: the conditions under which a config supports a problem, independent of its family and device.

The conditions and their order are the same as in a search space: what the family supports, the family's constraints,
and the device's limits. Parameters and device limits become constants, so that only the problem is variable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from autotune.expressions.expression import Bound, Expression
from autotune.family.codegen_cpp import Folded, fold
from autotune.family.space import BoundTemplate, device_names
from autotune.operation.registry import CONV2D, operation
from autotune.problem import Problem
from autotune.trial import Config, Value


@dataclass(frozen=True, slots=True)
class Step:
    """A derived value, if it has a name; otherwise, a condition that the problem must meet, or a final value."""

    text: str
    """an expression over the problem and the earlier derived values"""
    name: str = ""
    """the name of the derived value"""
    reason: str = ""
    """the reason for refusing a problem that breaks the condition"""


def _all_busy() -> tuple[Step, ...]:
    """Return the padded outputs of a kernel that keeps the whole device busy."""
    return (Step(operation(CONV2D).outputs),)


@dataclass(frozen=True)
class Predicate:
    """The conditions under which a config supports a problem, and the idle share of the device."""

    steps: tuple[Step, ...]
    padded_outputs: tuple[Step, ...] = field(default_factory=_all_busy)
    """derived values, followed by the padded outputs: the outputs that the device could compute in the launch's time"""

    def holds(self, problem: Problem) -> bool:
        """Return whether the problem meets every condition."""
        return self.refusal(problem) is None

    def refusal(self, problem: Problem) -> str | None:
        """Return the reason of the first condition that the problem breaks, or None if it meets all of them."""
        names: dict[str, Value] = {**problem.names()}
        for step, bound in self._bound:
            value = bound.value(names)
            if step.name:
                names[step.name] = value
            elif not value:
                return step.reason
        return None

    def padded_outputs_for(self, problem: Problem) -> int:
        """Return the padded outputs of a problem that meets every condition."""
        names: dict[str, Value] = {**problem.names()}
        *derived, (_, last) = self._bound_padded_outputs
        for step, bound in derived:
            names[step.name] = bound.value(names)
        return last.integer(names)

    @cached_property
    def _bound(self) -> tuple[tuple[Step, Bound], ...]:
        return _bind(self.steps)

    @cached_property
    def _bound_padded_outputs(self) -> tuple[tuple[Step, Bound], ...]:
        return _bind(self.padded_outputs)


def _bind(steps: tuple[Step, ...]) -> tuple[tuple[Step, Bound], ...]:
    return tuple((step, Expression(step.text, step.name or step.reason).bind({})) for step in steps)


def predicate(bound: BoundTemplate, config: Config) -> Predicate:
    """Derive the predicate of a family's config on a device. The problem in `bound` doesn't matter.

    Raises TemplateError for a header whose conditions can't be written in C++.
    """
    template = bound.template
    known: dict[str, Value] = {**device_names(bound.device), **config.params}
    natural: set[str] = set()
    steps: list[Step] = []
    required: set[str] = set()

    def folded(expression: Expression) -> Folded:
        return fold(expression, known, template.operation, frozenset(natural))

    def require(expression: Expression, reason: str) -> None:
        result = folded(expression)
        if not result.value and result.text not in required:
            required.add(result.text)
            steps.append(Step(result.text, reason=reason))

    for condition in (*template.supports, *template.arch):
        require(condition.holds, f"{template.name} requires: {condition.reason}")
    for level in bound.levelled(bound.all_rules):
        for rule in level.before:
            require(rule.expression, rule.reason)
        for name, value in level.derived:
            result = folded(value.expression)
            if isinstance(result.value, (int, str)):
                known[name] = result.value
            else:
                steps.append(Step(result.text, name=name))
                natural |= {name} if result.natural else set()
        for rule in level.after:
            require(rule.expression, rule.reason)
    derived = [step for step in steps if step.name]
    return Predicate(_used(steps), _used([*derived, Step(folded(template.padded_work).text)]))


def _used(steps: list[Step]) -> tuple[Step, ...]:
    """Remove derived values that no step uses."""
    needed: set[str] = set()
    kept: list[Step] = []
    for step in reversed(steps):
        if not step.name or step.name in needed:
            kept.append(step)
            needed |= Expression(step.text, step.name or step.reason).names
    return tuple(reversed(kept))


def cpp_steps(steps: tuple[Step, ...]) -> tuple[tuple[Step, str], ...]:
    """Return each step with its C++ expression. Raises TemplateError for an expression that C++ can't express."""
    natural: set[str] = set()
    texts = []
    for step in steps:
        result = fold(Expression(step.text, step.name or step.reason), {}, operation(CONV2D), frozenset(natural))
        natural |= {step.name} if step.name and result.natural else set()
        texts.append((step, result.cpp))
    return tuple(texts)
