"""template -> space: the feasible configs of one family for one problem on one device.

Parameters are nested in the header's order; each constraint is checked at the first depth where everything it
needs is known, so a subtree that cannot hold a feasible config is never entered.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autotune.device import DeviceInfo
from autotune.errors import Rejected, StudyError, TemplateError
from autotune.expression import Bound, Expression
from autotune.problem import Conv2dProblem
from autotune.template import Body, KernelTemplate, Param, compile_body
from autotune.trial import ACCURACY_CLASSES, Config, Outcome, Value

MAX_ROWS = 200_000  # configs; a larger space is sampled
MAX_VISITS = 4_000_000  # partial configs tried before a space counts as too large to enumerate
SAMPLED_ROWS = 20_000  # configs drawn from a space too large to enumerate


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition with everything but the parameters folded in."""

    reason: str
    kind: str
    """the trial's reason: `constraint` (of the header), `resource_limit` (of the device) or `accuracy_class`"""
    needs: frozenset[str]
    """parameters it depends on, also through derived values"""
    holds: Bound
    limit: int | None = None
    """when set, the rule is: the value of `holds` is at most this"""

    def met(self, names: Mapping[str, Value]) -> bool:
        """Whether the rule holds."""
        value = self.holds.integer(names)
        return value <= self.limit if self.limit is not None else bool(value)

    def violated(self, names: Mapping[str, Value]) -> str:
        """Empty when the rule holds, else what is wrong."""
        if self.limit is None:
            return "" if self.holds.integer(names) else self.reason
        value = self.holds.integer(names)
        return "" if value <= self.limit else f"{self.reason}: {value} exceeds {self.limit}"


@dataclass(frozen=True, slots=True)
class Admission:
    """What a study lets in besides what the families allow."""

    accuracy: tuple[str, ...] = ACCURACY_CLASSES
    workspace_limit_bytes: int = 1 << 62
    listed: frozenset[Config] | None = None
    """the only configs let in, where a device can evaluate no others; None: all"""


class BoundTemplate:
    """A family with one problem's and one device's names folded into all its expressions."""

    def __init__(
        self,
        template: KernelTemplate,
        problem: Conv2dProblem,
        device: DeviceInfo,
        admission: Admission = Admission(),
    ) -> None:
        self.template = template
        self.problem = problem
        self.device = device
        self.admission = admission
        self._bound: dict[Expression, Bound] = {}
        self.known: dict[str, Value] = {**problem.names(), **device_names(device)}
        self.derived = tuple((name, expression.bind(self.known)) for name, expression in template.derived)
        self.needs: dict[str, frozenset[str]] = {param.name: frozenset({param.name}) for param in template.params}
        for name, expression in template.derived:
            self.needs[name] = self._needs(expression)

    def bind(self, expression: Expression) -> Bound:
        """One expression of the header, ready to be called with a config's names."""
        if expression not in self._bound:
            self._bound[expression] = expression.bind(self.known)
        return self._bound[expression]

    @cached_property
    def body(self) -> Body:
        """What renders the family's text."""
        return compile_body(self.template)

    @cached_property
    def supported(self) -> bool:
        """Whether the family serves this problem on this device at all."""
        return bool(
            self.bind(self.template.supports).integer({}) and self.bind(self.template.arch).integer({}),
        )

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The header's constraints and the device's limits on every launch."""
        rules = [
            Rule(constraint.reason, "constraint", self._needs(constraint.holds), self.bind(constraint.holds))
            for constraint in self.template.constraints
        ]
        rules.append(self._admitted())
        device = self.device
        limits: list[tuple[str, str, int]] = [
            ("workspace bytes", self.template.workspace_bytes.text, self.admission.workspace_limit_bytes),
        ]
        for stage in (*self.template.prepare, *self.template.stages):
            when = f"({stage.when.text})"
            threads = " * ".join(f"({extent.text})" for extent in stage.block)
            limits += [
                (f"threads per block of {stage.entry}", f"{threads} if {when} else 0", device.max_threads_per_block),
                (
                    f"shared memory of {stage.entry}",
                    f"({stage.smem_bytes.text}) if {when} else 0",
                    device.smem_per_block_bytes,
                ),
                *(
                    (f"{part} {axis} of {stage.entry}", f"({extent.text}) if {when} else 0", limit)
                    for part, extents, most in (
                        ("block", stage.block, device.block_limits),
                        ("grid", stage.grid, device.grid_limits),
                    )
                    for axis, extent, limit in zip("xyz", extents, most, strict=True)
                ),
            ]
        for reason, text, limit in limits:
            expression = Expression(text, f"{self.template.path}: {reason}")
            rule = Rule(reason, "resource_limit", self._needs(expression), self.bind(expression), limit)
            if expression.names - self.known.keys() or rule.violated({}):
                rules.append(rule)
        return tuple(rules)

    def _admitted(self) -> Rule:
        classes = self.admission.accuracy
        words = ", ".join(f"'{word}'" for word in classes)
        expression = Expression(f"({self.template.accuracy.text}) in ({words},)", f"{self.template.path}: accuracy")
        reason = f"accuracy class is one of {', '.join(classes)}"
        return Rule(reason, "accuracy_class", self._needs(expression), self.bind(expression))

    def _needs(self, expression: Expression) -> frozenset[str]:
        return frozenset().union(*(self.needs.get(name, frozenset()) for name in expression.names))

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """What becomes known as the parameters get their values in the header's order; the first needs none."""
        depth = {param.name: index + 1 for index, param in enumerate(self.template.params)}
        levels = tuple(Level() for _ in range(len(depth) + 1))
        for name, bound in self.derived:
            levels[max((depth[need] for need in self.needs[name]), default=0)].derived.append((name, bound))
        for rule in self.rules:
            level = levels[max((depth[need] for need in rule.needs), default=0)]
            waits = rule.holds.names & {name for name, _ in level.derived}
            (level.after if waits else level.before).append(rule)
        return levels

    def check(self, config: Config) -> dict[str, Value]:
        """The config's names. Raises Rejected('constraints', ...) with the reasons of the rules it breaks.

        Values and rules come in the order in which a space is walked, so what guards there guards here.
        """
        values = config.values()
        known = {param.name for param in self.template.params}
        if values.keys() != known:
            raise StudyError(
                f"config of {self.template.name}: parameters {', '.join(sorted(values.keys() ^ known))} do not match"
            )
        names: dict[str, Value] = {}
        for level, param in zip(self.levels, (None, *self.template.params), strict=True):
            if param is not None:
                names[param.name] = values[param.name]
            if (rule := level.broken(names)) is not None:
                reasons = dict.fromkeys([rule.violated(names), *self._broken(values)])
                raise Rejected(Outcome.CONSTRAINTS, rule.kind, "; ".join(reasons))
        return names

    def _broken(self, values: Mapping[str, Value]) -> list[str]:
        """Every broken rule's reason, but for rules that a broken one guards."""
        names = dict(values)
        for name, bound in self.derived:
            with contextlib.suppress(TemplateError):
                names[name] = bound.value(names)
        reasons = []
        for rule in self.rules:
            with contextlib.suppress(TemplateError):
                reasons.append(rule.violated(names))
        return [reason for reason in reasons if reason]


@dataclass(frozen=True, slots=True)
class Level:
    """The derived values and rules that become known when one more parameter has its value."""

    before: list[Rule] = field(default_factory=list)
    """rules that need no derived value of this level; they guard the derived expressions"""
    derived: list[tuple[str, Bound]] = field(default_factory=list)
    after: list[Rule] = field(default_factory=list)

    def broken(self, names: dict[str, Value]) -> Rule | None:
        """Compute the derived values into `names` and return the first rule that does not hold."""
        for rule in self.before:
            if not rule.met(names):
                return rule
        for name, bound in self.derived:
            names[name] = bound.value(names)
        for rule in self.after:
            if not rule.met(names):
                return rule
        return None


def device_names(device: DeviceInfo) -> dict[str, Value]:
    """The `device.NAME` values that expressions see."""
    return {
        "device.arch": device.arch,
        "device.sm_count": device.sm_count,
        "device.smem_per_block_bytes": device.smem_per_block_bytes,
        "device.l2_bytes": device.l2_bytes,
    }


class SearchSpace:
    """The feasible configs of one family, narrowed by a study, as rows of value indices.

    More than `most_rows` are not enumerated: then `sampled_rows` of them are drawn at random.
    """

    def __init__(
        self,
        bound: BoundTemplate,
        narrowed: Mapping[str, Sequence[Value]] | None = None,
        *,
        seed: int = 0,
        most_rows: int = MAX_ROWS,
        sampled_rows: int = SAMPLED_ROWS,
    ) -> None:
        self.bound = bound
        self.template = bound.template.name
        self.params = narrow(bound.template, narrowed or {})
        rows: list[tuple[int, ...]] = []
        if bound.admission.listed is None:
            visits = self._walk(rows, None, most=most_rows + 1, visits=MAX_VISITS)
            self.complete = len(rows) <= most_rows and visits > 0
        else:
            rows = self._listed(bound.admission.listed)
            self.complete = True
        if not self.complete:
            rows = self._sample(np.random.default_rng(seed), sampled_rows)
        self.rows: npt.NDArray[np.int16] = np.array(rows, dtype=np.int16).reshape(len(rows), len(self.params))
        self._position = {row: position for position, row in enumerate(rows)}

    @property
    def product(self) -> int:
        """Configs of the full product, feasible or not."""
        size = 1
        for param in self.params:
            size *= len(param.values)
        return size

    @property
    def default(self) -> Config | None:
        """Every parameter's first value if that is feasible, else the first feasible config; None when none is."""
        if not len(self.rows):
            return None
        first = (0,) * len(self.params)
        return self.config(self._position.get(first, 0))

    def config(self, row: int) -> Config:
        """The config in a row."""
        indices = self.rows[row]
        return Config(
            self.template,
            tuple((param.name, param.values[int(index)]) for param, index in zip(self.params, indices, strict=True)),
        )

    def row_of(self, config: Config) -> int | None:
        """The row of a config; None when it is not in this space."""
        indices = self._indices(config)
        return None if indices is None else self._position.get(indices)

    def _indices(self, config: Config) -> tuple[int, ...] | None:
        """The value indices of a config; None when it is another family's or has a value left out here."""
        values = config.values()
        if config.template != self.template or values.keys() != {param.name for param in self.params}:
            return None
        indices = []
        for param in self.params:
            value = values[param.name]
            if value not in param.values:
                return None
            indices.append(param.values.index(value))
        return tuple(indices)

    def _listed(self, configs: Iterable[Config]) -> list[tuple[int, ...]]:
        """The rows of those configs that are of this family and break no rule."""
        rows = []
        for config in configs:
            indices = self._indices(config)
            if indices is not None:
                with contextlib.suppress(Rejected):
                    self.bound.check(config)
                    rows.append(indices)
        return sorted(rows)

    def rejected(self, most: int) -> Iterator[Config]:
        """Configs of the full product that break a rule, for small spaces whose rejections are worth a record."""
        if self.product > most:
            return
        for row in itertools.product(*(range(len(param.values)) for param in self.params)):
            if row not in self._position:
                yield Config(
                    self.template,
                    tuple((param.name, param.values[at]) for param, at in zip(self.params, row, strict=True)),
                )

    def _walk(self, found: list[tuple[int, ...]], order: np.random.Generator | None, *, most: int, visits: int) -> int:
        """Append feasible rows to `found`, lexicographic, or in random order with a generator.

        Ends after `most` rows or `visits` partial configs; returns the visits that were left.
        """
        names: dict[str, Value] = {}
        levels, params, last = self.bound.levels, self.params, len(self.params)
        left = visits

        def visit(depth: int, row: tuple[int, ...]) -> None:
            nonlocal left
            left -= 1
            if levels[depth].broken(names) is not None:
                return
            if depth == last:
                found.append(row)
                return
            param = params[depth]
            indices = range(len(param.values)) if order is None else order.permutation(len(param.values)).tolist()
            for index in indices:
                if left <= 0 or len(found) >= most:
                    return
                names[param.name] = param.values[index]
                visit(depth + 1, (*row, index))

        visit(0, ())
        return left

    def _sample(self, rng: np.random.Generator, most: int) -> list[tuple[int, ...]]:
        """Random feasible rows, each the first found down a random path, and the first of all."""
        found: list[tuple[int, ...]] = []
        left = self._walk(found, None, most=1, visits=MAX_VISITS)
        while left > 0 and len(found) < most:
            left = self._walk(found, rng, most=len(found) + 1, visits=left)
        return sorted(set(found))


def narrow(template: KernelTemplate, narrowed: Mapping[str, Sequence[Value]]) -> tuple[Param, ...]:
    """The family's parameters with only the values that a study keeps. Raises StudyError for a foreign one."""
    known = {param.name: param for param in template.params}
    for name, values in narrowed.items():
        if name not in known:
            raise StudyError(f"space.{template.name}.{name}: no such parameter; {template.name} has {', '.join(known)}")
        for value in values:
            if not any(value == own and type(value) is type(own) for own in known[name].values):
                raise StudyError(
                    f"space.{template.name}.{name}: {value!r} is not a value of the family; "
                    f"it has {', '.join(map(str, known[name].values))}"
                )
    return tuple(
        Param(param.name, tuple(narrowed[param.name]), param.doc) if param.name in narrowed else param
        for param in template.params
    )
