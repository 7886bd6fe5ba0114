"""template -> space: a family's feasible configs for a problem on a device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autotune.devices.device import DeviceInfo
from autotune.errors import Rejected, StudyError, TemplateError, quoted, shortened
from autotune.expressions.expression import Bound, Expression
from autotune.expressions.vectorized import Columns, column_of
from autotune.family.feasible import Level, Rows, Rule, Tree
from autotune.family.template import KernelTemplate, Param, StageTemplate
from autotune.family.tensor_map_template import TensorMapTemplate
from autotune.family.text import Body, compile_body
from autotune.problem import Problem
from autotune.trial import ACCURACY_CLASSES, Config, Outcome, Value

MAX_ROWS = 200_000  # configs; a larger space is sampled
MAX_VISITS = 4_000_000  # partial configs visited before a space counts as too large to enumerate
SAMPLED_ROWS = 20_000  # configs drawn from a space too large to enumerate


@dataclass(frozen=True, slots=True)
class Admission:
    """A study's restrictions on configs, in addition to the families' own rules."""

    accuracy: tuple[str, ...] = ACCURACY_CLASSES
    workspace_limit_bytes: int = 1 << 62
    listed: frozenset[Config] | None = None
    """the only configs that are admitted, for a device that can evaluate no others; None: all configs"""
    prune: bool = False
    """whether the families' `[prune]` applies, which excludes legal configs that are not worth searching"""
    by_dtype: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """storage type to accuracy classes, for a predicate that covers several storage types"""


class BoundTemplate:
    """A family with the names of a problem and a device folded into all of its expressions."""

    def __init__(
        self, template: KernelTemplate, problem: Problem, device: DeviceInfo, admission: Admission = Admission()
    ) -> None:
        self.template = template
        self.problem = problem
        self.device = device
        self.admission = admission
        self._bound: dict[Expression, Bound] = {}
        self.known: dict[str, Value] = {**problem.names(), **device_names(device)}

    @cached_property
    def derived(self) -> tuple[tuple[str, Bound], ...]:
        """The header's derived values by name, in the header's order."""
        return tuple((name, expression.bind(self.known)) for name, expression in self.template.derived)

    @cached_property
    def needs(self) -> Mapping[str, frozenset[str]]:
        """The parameters on which each parameter and derived value depends."""
        needs = {param.name: frozenset({param.name}) for param in self.template.params}
        for name, expression in self.template.derived:
            needs[name] = frozenset().union(*(needs.get(other, frozenset()) for other in expression.names))
        return needs

    def bind(self, expression: Expression) -> Bound:
        """Prepare one of the header's expressions for evaluation with a config's names."""
        if expression not in self._bound:
            self._bound[expression] = expression.bind(self.known)
        return self._bound[expression]

    @cached_property
    def body(self) -> Body:
        """The renderer of the family's text."""
        return compile_body(self.template.text)

    @cached_property
    def listed(self) -> frozenset[Config] | None:
        """The family's only admitted configs, converted to its current parameters, or None for all configs."""
        if self.admission.listed is None:
            return None
        return frozenset(filter(None, map(self.template.current_config, self.admission.listed)))

    @property
    def supported(self) -> bool:
        """Whether the family supports this problem on this device."""
        return not self.unmet

    @cached_property
    def unmet(self) -> str:
        """The first of the family's conditions that the problem or device doesn't meet, or "" if it meets all of them.

        One condition is that the family reads all of the problem's inputs.
        """
        template = self.template
        if template.operation.name != self.problem.operation.name:
            return f"the operation is {template.operation.name}"
        for condition in (*template.supports, *template.arch):
            if not self.bind(condition.holds).integer({}):
                return condition.reason
        inputs = [array.name for array in self.problem.arrays if array.role in ("in", "inout")]
        unread = [name for name in inputs if name not in template.read]
        return f"the problem has no {unread[0]}" if unread else ""

    @cached_property
    def searched(self) -> bool:
        """Whether a study that doesn't mention the family searches it for this problem on this device."""
        return bool(self.bind(self.template.search_when).integer({}))

    @cached_property
    def _absent(self) -> frozenset[str]:
        """The operation's optional inputs that this problem lacks, and their tensor maps, by name."""
        absent = set(self.problem.operation.names_of("in", "inout")) - {array.name for array in self.problem.arrays}
        return frozenset(absent | {each.name for each in self.template.tensor_maps if each.array in absent})

    def arguments(self, stage: StageTemplate) -> tuple[str, ...]:
        """Return a stage's arguments, leaving out inputs that the problem doesn't have."""
        return tuple(argument for argument in stage.args if argument not in self._absent)

    def tensor_maps(self) -> tuple[TensorMapTemplate, ...]:
        """Return the family's tensor maps, leaving out those for inputs that the problem doesn't have."""
        return tuple(each for each in self.template.tensor_maps if each.name not in self._absent)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """All rules except for limits that no config exceeds."""
        return tuple(
            rule
            for rule in self.all_rules
            if rule.limit is None or rule.holds.names - self.known.keys() or rule.violated({})
        )

    @cached_property
    def all_rules(self) -> tuple[Rule, ...]:
        """The header's constraints, its prune rules if they apply, and the device's limits on every launch."""
        pruned = self.template.prune if self.admission.prune else ()
        rules = [
            Rule(condition.reason, kind, self._needs(condition.holds), self.bind(condition.holds))
            for kind, conditions in (("constraint", self.template.constraints), ("pruned", pruned))
            for condition in conditions
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
            rules.append(Rule(reason, "resource_limit", self._needs(expression), self.bind(expression), limit))
        return tuple(rules)

    def _admitted(self) -> Rule:
        admission, text = self.admission, self.template.accuracy.text

        def among(classes: Iterable[str]) -> str:
            quoted_classes = ", ".join(f"'{name}'" for name in classes)
            return f"(({text}) in ({quoted_classes},))"

        others = "".join(f"{among(classes)} if dtype == '{of}' else " for of, classes in admission.by_dtype.items())
        expression = Expression(others + among(admission.accuracy), f"{self.template.path}: accuracy")
        named = "that the study admits" if others else f"of {', '.join(admission.accuracy)}"
        reason = f"accuracy class is one {named}"
        return Rule(reason, "accuracy_class", self._needs(expression), self.bind(expression))

    def _needs(self, expression: Expression) -> frozenset[str]:
        return frozenset().union(*(self.needs.get(name, frozenset()) for name in expression.names))

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The derived values and rules that become known as the parameters, in the header's order, get their values."""
        return self.levelled(self.rules)

    def levelled(self, rules: Sequence[Rule]) -> tuple[Level, ...]:
        """Assign each derived value and each of these rules to the level at which everything that it needs is known."""
        depth = {param.name: index + 1 for index, param in enumerate(self.template.params)}
        levels = tuple(Level() for _ in range(len(depth) + 1))
        for name, bound in self.derived:
            levels[max((depth[need] for need in self.needs[name]), default=0)].derived.append((name, bound))
        for rule in rules:
            level = levels[max((depth[need] for need in rule.needs), default=0)]
            waits = rule.holds.names & {name for name, _ in level.derived}
            (level.after if waits else level.before).append(rule)
        return levels

    def check(self, config: Config) -> dict[str, Value]:
        """Return a config's parameters and derived values by name.

        Raises Rejected('invalid_config', ...) with the reasons of all rules that the config breaks. Values and rules
        are evaluated in the same order as in the search, so that a rule guards the same expressions here.
        """
        values = config.params
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
                raise Rejected(Outcome.INVALID_CONFIG, rule.kind, "; ".join(reasons))
        return names

    def allows(self, config: Config) -> bool:
        """Return whether the config doesn't break any rule."""
        try:
            self.check(config)
        except Rejected:
            return False
        return True

    def _broken(self, values: Mapping[str, Value]) -> list[str]:
        """Return the reasons of all broken rules, except for those guarded by a broken rule."""
        names = dict(values)
        for name, bound in self.derived:
            with contextlib.suppress(TemplateError):
                names[name] = bound.value(names)
        reasons = []
        for rule in self.rules:
            with contextlib.suppress(TemplateError):
                reasons.append(rule.violated(names))
        return [reason for reason in reasons if reason]

    def names(self, config: Config) -> dict[str, Value]:
        """Return a config's parameters and derived values by name, without checking the rules."""
        names = config.params
        for name, bound in self.derived:
            names[name] = bound.value(names)
        return names


def refusal(bound: BoundTemplate, params: Sequence[Param] | None = None) -> str:
    """Return why the config with every parameter's first value isn't feasible, or "" if it is."""
    firsts = {param.name: param.values[0] for param in params or bound.template.params}
    try:
        bound.check(Config.of(bound.template.name, firsts))
    except Rejected as rejected:
        return rejected.message
    return ""


def device_names(device: DeviceInfo) -> dict[str, Value]:
    """Return the `device.NAME` values that expressions can use."""
    return {
        "device.arch": device.arch,
        "device.sm_count": device.sm_count,
        "device.smem_per_block_bytes": device.smem_per_block_bytes,
        "device.l2_bytes": device.l2_bytes,
    }


class SearchSpace:
    """A family's feasible configs, as narrowed by a study, in rows of value indices [m, len(params)].

    The rows are in lexicographic order. If there are more than `most_rows` feasible configs, `rows` contains up to
    `sampled_rows` random ones.
    """

    template: str
    params: tuple[Param, ...]
    rows: Rows
    complete: bool
    """whether the rows are all feasible configs"""
    padded_work: npt.NDArray[np.int64] | None = None
    """the header's `padded_work` of each row [m]; None if it depends on no parameter"""

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
        self.complete = True
        if bound.listed is not None:
            self.rows = self._listed(bound.listed)
            self.padded_work = self._padded_work()
            return
        tree = Tree(bound.levels, self.params)
        self.rows, self.complete = tree.feasible(most=most_rows, visits=MAX_VISITS)
        if not self.complete:
            first = self.rows[:1]
            drawn = tree.sampled(np.random.default_rng(seed), most=sampled_rows - len(first), visits=MAX_VISITS)
            self.rows = np.unique(np.concatenate([first, drawn]), axis=0)
        self.padded_work = self._padded_work()

    @property
    def default(self) -> Config | None:
        """The first row's config, which has every parameter's first value if that is feasible.

        None if the space is empty.
        """
        return self.config(0) if len(self.rows) else None

    def config(self, row: int) -> Config:
        """Return the config of a row."""
        indices = self.rows[row]
        return Config(
            self.template,
            tuple((param.name, param.values[int(index)]) for param, index in zip(self.params, indices, strict=True)),
        )

    def row_of(self, config: Config) -> int | None:
        """Return a config's row, or None if it isn't in this space."""
        indices = self.indices(config)
        if indices is None:
            return None
        low, high = 0, len(self.rows)
        for column, index in enumerate(indices):  # the rows are in lexicographic order
            values, wanted = self.rows[low:high, column], np.int16(index)
            low, high = (low + int(np.searchsorted(values, wanted, side)) for side in ("left", "right"))
        return low if low < high else None

    def indices(self, config: Config) -> tuple[int, ...] | None:
        """Return a config's value indices, or None if it belongs to another family or has a value that the space
        excludes.
        """
        values = config.params
        if config.template != self.template or values.keys() != {param.name for param in self.params}:
            return None
        indices = []
        for param in self.params:
            value = values[param.name]
            if value not in param.values:
                return None
            indices.append(param.values.index(value))
        return tuple(indices)

    def _padded_work(self) -> npt.NDArray[np.int64] | None:
        template = self.bound.template
        needed = set(template.padded_work.names)
        for name, expression in reversed(template.derived):
            needed |= expression.names if name in needed else set()
        if not len(self.rows) or not needed & {param.name for param in self.params}:
            return None
        columns = Columns({}, len(self.rows))
        for param, places in zip(self.params, self.rows.T, strict=True):
            columns[param.name] = column_of(param.values)[places]
        for name, bound in self.bound.derived:
            if name in needed:
                columns[name] = bound.column(columns)
        return self.bound.bind(template.padded_work).column(columns).astype(np.int64)

    def _listed(self, configs: Iterable[Config]) -> Rows:
        """Return the rows of those configs that the study admits and that don't break any rule."""
        rows = []
        for config in configs:
            indices = self.indices(config)
            if indices is not None:
                with contextlib.suppress(Rejected):
                    self.bound.check(config)
                    rows.append(indices)
        return np.array(sorted(rows), dtype=np.int16).reshape(len(rows), len(self.params))


def narrow(template: KernelTemplate, narrowed: Mapping[str, Sequence[Value]]) -> tuple[Param, ...]:
    """Restrict a family's parameters to the values that a study keeps. Raises StudyError for an unknown name or
    value.
    """
    known = {param.name: param for param in template.params}
    for name, values in narrowed.items():
        if name not in known:
            where = f"space.{template.name}.{shortened(name)}"
            raise StudyError(f"{where}: no such parameter; {template.name} has {', '.join(known)}")
        for value in values:
            if not any(value == own and type(value) is type(own) for own in known[name].values):
                raise StudyError(
                    f"space.{template.name}.{name}: {quoted(value)} is not a value of the family; "
                    f"it has {', '.join(map(str, known[name].values))}"
                )
    return tuple(
        Param(param.name, tuple(narrowed[param.name]), param.doc) if param.name in narrowed else param
        for param in template.params
    )
