"""store -> dispatch: a dispatcher, which chooses a kernel for a problem and is stored as JSON.

A dispatcher contains a few kernels, a rule and a safe default. Each kernel has a predicate, which decides whether it
supports a problem, and relative times on the layers that the dispatcher knows. The rule may determine which kernel to
try first, by a threshold on a property of the problem. If that kernel supports the problem, the dispatcher chooses it.
Otherwise, it chooses the kernel with the smallest expected time: the mean of the kernel's relative times, weighted by
how similar each known layer is to the problem, times the kernel's padded outputs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from autotune.dispatch.predicate import Predicate, Step
from autotune.distance import Ints, property_similarity
from autotune.errors import StudyError
from autotune.expressions.expression import Bound, Expression
from autotune.problem import Problem
from autotune.trial import Config, Value

FAMILY = "dispatch"
"""The family name under which dispatchers' trials are stored."""
DEFAULT = "default"
"""The name of the safe default among a dispatcher's kernels."""


@dataclass(frozen=True)
class Property:
    """An integer property of a problem.

    Thresholds can test it, and the similarity of problems depends on it. The rule is trusted only within the property's
    range.
    """

    name: str
    text: str
    """an expression over the problem's names"""
    least: int = 0
    most: int = 2**63 - 1
    power: int = 0
    """rate at which the similarity of two problems decreases as their values of the property diverge"""
    reach: int = field(default=1, compare=False)
    """how far beyond the range of its layers a rule is trusted, as a factor; not recorded"""
    doc: str = field(default="", compare=False)
    """the property in words; not recorded"""

    def around(self, values: Sequence[int]) -> Property:
        """Return the property with a rule's trusted range, given the values of the rule's layers."""
        return replace(self, least=min(values) // self.reach, most=max(values) * self.reach)

    def of(self, problem: Problem) -> int:
        """Return the property's value for a problem."""
        return self._bound.integer(problem.names())

    def holds(self, problem: Problem) -> bool:
        """Return whether a problem's property is within the range."""
        return self.least <= self.of(problem) <= self.most

    @cached_property
    def _bound(self) -> Bound:
        return Expression(self.text, f"property {self.name}").bind({})


_MOVED_BYTES = (
    "(4 if dtype == 'f32' else 2) * (n * c * h * w + k * (c // groups) * r * s + n * k * p * q)"  # each element once
)
PROPERTIES = (
    Property("k", "k", power=4, reach=2, doc="output channels"),
    Property("c", "c", power=4, reach=2, doc="input channels"),
    Property("pixels", "h * w", power=2, reach=4, doc="input pixels"),
    Property("n", "n", power=1, reach=1024, doc="images"),
    Property("taps", "r * s", power=2, reach=4, doc="filter taps"),
    Property("stride", "stride_h * stride_w", power=2, reach=4, doc="input pixels per output pixel"),
    Property(
        "intensity",
        f"2 * n * k * p * q * (c // groups) * r * s // ({_MOVED_BYTES})",
        power=2,
        reach=4,
        doc="FLOP per byte that must be moved, rounded down",
    ),
)
"""The properties of every dispatcher."""


@dataclass(frozen=True, slots=True)
class PortfolioKernel:
    """A family's config that runs any problem admitted by its predicate, rendered for that problem."""

    name: str
    config: Config
    predicate: Predicate
    relative_times: tuple[int, ...] = ()
    """squared relative time on each known layer if no part of the device idles; 1000 squared for the layer's best
    kernel
    """


FASTEST = ""
"""A rule that doesn't try any kernel before the one with the smallest expected time."""


@dataclass(frozen=True, slots=True)
class Split:
    """A threshold on a property, and which kernel to try first below it and otherwise."""

    property: str
    threshold: int
    below: str
    above: str


Rule = str | Split
"""FASTEST, or the name of the kernel to try before the one with the smallest expected time, or a threshold."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel chosen for a problem, and why."""

    kernel: PortfolioKernel | None
    """the chosen kernel; None if no kernel supports the problem, which must then be tuned"""
    default_first: bool
    """whether the safe default was tried first, because the rule says so or does not cover the problem"""
    passed_over: tuple[str, ...]
    """kernels that the dispatcher preferred but that do not support the problem"""


@dataclass(frozen=True)
class Dispatcher:
    """Chooses a kernel for a problem. Raises StudyError if the rule refers to unknown kernels or an unknown
    property.
    """

    properties: tuple[Property, ...]
    kernels: tuple[PortfolioKernel, ...]
    default: PortfolioKernel
    rule: Rule
    known: tuple[tuple[int, ...], ...] = ()
    """the property values of each layer that kernels were measured on; if empty, kernels are tried in order"""

    def __post_init__(self) -> None:
        names = [kernel.name for kernel in self.kernels]
        if len({*names, DEFAULT}) <= len(names) or self.default.name != DEFAULT:
            raise StudyError(f"dispatcher: kernels {', '.join(names)}: each needs a name of its own, and {DEFAULT!r}")
        for kernel in self.all_kernels:
            if len(kernel.relative_times) != len(self.known):
                counts = f"{len(kernel.relative_times)} relative times for {len(self.known)} known layers"
                raise StudyError(f"dispatcher: {kernel.name} has {counts}; give one for each")
        known = {kernel.name for kernel in self.all_kernels}
        for name in ends(self.rule):
            if name not in {FASTEST, *known}:
                raise StudyError(f"dispatcher: its rule names the kernel {name!r}, which it does not have")
        properties = [item.name for item in self.properties]
        if isinstance(self.rule, Split) and self.rule.property not in properties:
            raise StudyError(
                f"dispatcher: its rule uses the property {self.rule.property!r}; "
                f"there are {', '.join(properties) or 'no properties'}"
            )

    def choose(self, problem: Problem) -> Choice:
        """Choose the kernel for a problem."""
        is_trusted = all(item.holds(problem) for item in self.properties)
        first = self.first(problem) if is_trusted else DEFAULT
        times = self.relative_times(problem)
        fitting = [kernel for kernel in self.all_kernels if kernel.predicate.holds(problem)]
        kernel = min(
            [kernel for kernel in fitting if kernel.name == first] or fitting,
            key=lambda one: times[one.name] * one.predicate.padded_outputs_for(problem),
            default=None,
        )
        order = sorted(times, key=lambda name: (name != first, times[name]))
        before = order if kernel is None else order[: order.index(kernel.name)]
        names = {one.name for one in fitting}
        return Choice(kernel, first == DEFAULT, tuple(name for name in before if name not in names))

    def relative_times(self, problem: Problem) -> Mapping[str, int]:
        """Return each kernel's expected relative time on a problem, or 0 for all of them if no layer is known."""
        names = [kernel.name for kernel in self.all_kernels]
        if not self.known:
            return dict.fromkeys(names, 0)
        values = np.array([[item.of(problem) for item in self.properties]], dtype=np.int64)
        similar = property_similarity(
            [item.power for item in self.properties], values, np.array(self.known, dtype=np.int64)
        )
        return dict(zip(names, expected_relative_times(similar, self._relative_times)[0].tolist(), strict=True))

    @cached_property
    def _relative_times(self) -> Ints:
        """[known, kernels]"""
        return np.array([kernel.relative_times for kernel in self.all_kernels], dtype=np.int64).T

    @property
    def all_kernels(self) -> tuple[PortfolioKernel, ...]:
        """The kernels in order, followed by the default."""
        return (*self.kernels, self.default)

    def first(self, problem: Problem) -> str:
        """Return the name of the kernel that the rule tries first for a problem."""
        rule = self.rule
        if isinstance(rule, str):
            return rule
        value = next(item.of(problem) for item in self.properties if item.name == rule.property)
        return rule.below if value < rule.threshold else rule.above

    def words(self) -> tuple[str, ...]:
        """Describe the rule in words, with a line for each side of the threshold."""
        then = ["the smallest expected time"] if self.known else []
        when = ["always"]
        if isinstance(self.rule, Split):
            when = [f"{self.rule.property} {side} {self.rule.threshold}" for side in ("<", ">=")]
        return tuple(
            f"{words}: {', then '.join([*([first] if first else []), *then])}"
            for words, first in zip(when, ends(self.rule), strict=True)
        )

    def config(self) -> Config:
        """Return the dispatcher as a config whose parameters are its kernels, a hash of the record, and its rule."""
        kernels = {kernel.name: str(kernel.config) for kernel in self.all_kernels}
        hashed = {"hash": hashlib.sha256(self.to_json().encode()).hexdigest()}
        return Config.of(FAMILY, {**kernels, **hashed, **_params(self.rule)})

    def to_json(self) -> str:
        """Return the record as JSON; equal dispatchers have equal JSON."""
        content = {
            "properties": [
                {"name": item.name, "text": item.text, "least": item.least, "most": item.most, "power": item.power}
                for item in self.properties
            ],
            "known": self.known,
            "kernels": [_kernel_json(kernel) for kernel in self.kernels],
            "default": _kernel_json(self.default),
            "rule": _params(self.rule),
        }
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Dispatcher:
        """Read a record written by `to_json`. Raises StudyError for any other text."""
        try:
            content = json.loads(text)
            return cls(
                properties=tuple(_property_of(**item) for item in content["properties"]),
                kernels=tuple(_kernel_of(**item) for item in content["kernels"]),
                default=_kernel_of(**content["default"]),
                rule=rule_of(content["rule"]),
                known=tuple(map(_integers, content["known"])),
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StudyError(f"dispatcher: its record cannot be read: {error}") from None


def expected_relative_times(similar: Ints, known: Ints) -> Ints:
    """Average the relative times [known, kernels], weighted by the similarity to each known layer.

    Returns [layers, kernels].
    """
    mean: Ints = similar @ known // similar.sum(axis=1, keepdims=True)
    return mean


def rule_of(params: Mapping[str, Value]) -> Rule:
    """Parse a rule from parameters: `kernels`, or `property`, `threshold`, `below_kernels` and `above_kernels`.

    Raises StudyError for any others.
    """
    match params:
        case {"kernels": str(kernels)}:
            return kernels
        case {
            "property": str(name),
            "threshold": int(threshold),
            "below_kernels": str(below),
            "above_kernels": str(above),
        }:
            return Split(name, threshold, below, above)
    raise StudyError(
        "dispatcher: its rule has neither kernels nor a property, a threshold, below_kernels and above_kernels"
    )


def ends(rule: Rule) -> tuple[str, ...]:
    """Return the kernels that a rule tries first, starting with the kernel below the threshold."""
    return (rule.below, rule.above) if isinstance(rule, Split) else (rule,)


def _params(rule: Rule) -> Mapping[str, Value]:
    if isinstance(rule, str):
        return {"kernels": rule}
    sides = {"below_kernels": rule.below, "above_kernels": rule.above}
    return {"property": rule.property, "threshold": rule.threshold, **sides}


def _symbol(name: object) -> str:
    """Return `name` if it is a valid C++ identifier. Raises ValueError otherwise."""
    if not isinstance(name, str) or not (name.isidentifier() and name.isascii()):
        raise ValueError(f"{name!r}: expected a name of letters, digits and _")
    return name


def _integers(values: Sequence[object]) -> tuple[int, ...]:
    """Return `values` if all of them are integers. Raises TypeError otherwise."""
    numbers = tuple(value for value in values if type(value) is int)
    if len(numbers) != len(values):
        raise TypeError(f"{values!r}: expected whole numbers")
    return numbers


def _property_of(name: str, text: str, **range_and_power: object) -> Property:
    least, most, power = _integers([range_and_power[key] for key in ("least", "most", "power")])
    return Property(_symbol(name), text, least, most, power)


def _kernel_json(kernel: PortfolioKernel) -> dict[str, object]:
    return {
        "name": kernel.name,
        "family": kernel.config.template,
        "params": kernel.config.params,
        "predicate": [[step.name, step.text, step.reason] for step in kernel.predicate.steps],
        "padded_outputs": [[step.name, step.text] for step in kernel.predicate.padded_outputs],
        "relative_times": kernel.relative_times,
    }


def _kernel_of(
    *,
    name: str,
    family: str,
    params: Mapping[str, Value],
    predicate: Sequence[tuple[str, str, str]],
    padded_outputs: Sequence[tuple[str, str]],
    relative_times: Sequence[int],
) -> PortfolioKernel:
    steps = tuple(Step(text, name and _symbol(name), reason) for name, text, reason in predicate)
    outputs = tuple(Step(text, name and _symbol(name)) for name, text in padded_outputs)
    return PortfolioKernel(
        _symbol(name), Config.of(family, params), Predicate(steps, outputs), _integers(relative_times)
    )
