"""Plan a kernel's launches for any run-time sizes by folding everything but these and the device into the family's
header.

`render` evaluates the same expressions for given sizes, so an exported library launches kernels as they were tuned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.autotune_runtime.planned_launches import Need, Plan, PlanStage, PlanTensorMap
from autotune.errors import Rejected, StoreError, TemplateError
from autotune.expressions.expression import Expression
from autotune.family.codegen_cpp import Folded, fold
from autotune.family.render import launches, tensor_maps
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate, device_names
from autotune.family.template import StageTemplate
from autotune.family.tensor_map_template import TensorMapTemplate
from autotune.trial import Value

MOST = 16
"""Maximum number of stages in a plan, of kernels and constants in a program, and of arguments of a stage, as in
`kernel.h`.
"""
MOST_MAPS = 7
"""Maximum number of tensor maps of a kernel, as in `kernel.h`."""


def check_recorded(bound: BoundTemplate, source: KernelSource, name: str) -> None:
    """Raise StoreError unless the header gives the recorded launches for the tuned run-time sizes."""
    template = bound.template
    try:
        names = bound.check(source.config)
    except Rejected as rejected:
        raise StoreError(f"{name}: the recorded header refuses the recorded config: {rejected.message}") from None
    evaluated = (
        launches(bound, template.prepare, names),
        launches(bound, template.stages, names),
        *(
            bound.bind(expression).integer(names)
            for expression in (template.packed_w_bytes, template.workspace_bytes, template.loop_count)
        ),
        tensor_maps(bound, names),
    )
    recorded = (
        *(source.prepare, source.stages, source.packed_w_bytes, source.workspace_bytes, source.loop_count),
        source.tensor_maps,
    )
    if evaluated != recorded:
        raise StoreError(
            f"{name}: the recorded header of {template.name} gives different launches from the recorded ones"
        )


def arch_refusal(bound: BoundTemplate, source: KernelSource, arch: int) -> str:
    """Return why a kernel's family doesn't support an architecture, or "" if it does."""
    other = BoundTemplate(bound.template, bound.problem, replace(bound.device, arch=arch))
    if not other.supported:
        return f"{bound.template.name} requires: {other.unmet}"
    try:
        other.check(source.config)
    except Rejected as rejected:
        return f"{bound.template.name}: {rejected.message}"
    return ""


def plan_of(bound: BoundTemplate, source: KernelSource, *, cpp: bool = True) -> Plan:
    """Plan a recorded kernel's launches for any run-time sizes and device, in C++ or in the header's language.

    Raises TemplateError if packed weights or the set of constants depend on a run-time size, if preparing weights takes
    the workspace, or if a number exceeds MOST.
    """
    return _Planner(bound, source, cpp=cpp).plan()


class _Planner:
    def __init__(self, bound: BoundTemplate, source: KernelSource, *, cpp: bool) -> None:
        self._in_cpp = cpp
        self._bound, self._template, self._source = bound, bound.template, source
        self._tuned = bound.check(source.config)
        self._runtime = frozenset(bound.problem.operation.runtime)
        changing = bound.problem.operation.changing
        self._known: dict[str, Value] = {
            name: value for name, value in bound.problem.names().items() if name not in changing
        }
        self._known.update(source.config.params)
        self._natural = frozenset(device_names(bound.device))
        self._depends = {name: frozenset({name}) for name in self._natural}
        self._depends |= dict.fromkeys(changing, self._runtime)
        self._open: dict[str, Folded] = {}
        """derived values that depend on a run-time size or the device"""
        self._used: set[str] = set()
        self._maps: dict[str, TensorMapTemplate] = {}
        """the constants that the config has"""
        for name, expression in self._template.derived:
            folded = self._fold(expression)
            if isinstance(folded.value, (int, str)):
                self._known[name] = folded.value
            else:
                self._open[name] = folded
                self._depends[name] = self._follows_from(folded)
                self._natural |= {name} if folded.natural else set()
        for template in bound.tensor_maps():
            for expression in (template.in_workspace, template.when, template.data_type, template.swizzle_bytes):
                if self._follows_from(self._fold(expression)):
                    raise expression.error(
                        f"depends on {self._or_device}, but a kernel is exported with one of its maps"
                    )
            if self._fold(template.when).value:
                self._maps.setdefault(template.name, template)

    def plan(self) -> Plan:
        """Write all parts. Derived values come last, because only then is it known which of them are used."""
        template = self._template
        for expression in (template.packed_w_bytes, *(part for stage in template.prepare for part in _parts(stage))):
            if self._runtime & self._follows_from(self._fold(expression)):
                raise expression.error(f"depends on {self._any_size}, but weights are prepared once for any")
        if any("workspace" in stage.args for stage in template.prepare):
            raise TemplateError(
                f"{template.path}: prepare takes the workspace, which an exported library has only during a pass"
            )
        for what, count in (
            *(("stages", len(stages)) for stages in (template.stages, template.prepare)),
            *(("arguments of a stage", len(stage.args)) for stage in (*template.stages, *template.prepare)),
            ("kernels", len(self._source.program.entries)),
            ("constants", len(self._source.constants)),
        ):
            if count > MOST:
                raise TemplateError(f"{template.path}: has {count} {what}; an exported library supports at most {MOST}")
        if (count := len(self._maps)) > MOST_MAPS:
            raise TemplateError(
                f"{template.path}: has {count} tensor maps; an exported library has room for {MOST_MAPS}"
            )
        for constant in template.constants:
            if self._follows_from(self._fold(constant.when)):
                raise constant.when.error(
                    f"depends on {self._or_device}, but the kernel's text either has the constant or lacks it"
                )
        device_needs, n_needs = self._needs()
        prepare, stages = self._stages(template.prepare), self._stages(template.stages)
        maps = tuple(self._tensor_map(each) for each in self._maps.values())
        packed, workspace, loop = (
            self._written(part) for part in (template.packed_w_bytes, template.workspace_bytes, template.loop_count)
        )
        return Plan(self._locals(), device_needs, n_needs, prepare, stages, packed, workspace, loop, maps)

    @property
    def _any_size(self) -> str:
        return " or ".join(self._bound.problem.operation.runtime)

    @property
    def _or_device(self) -> str:
        return f"{self._any_size} or the device"

    def _fold(self, expression: Expression) -> Folded:
        return fold(expression, self._known, self._template.operation, self._natural)

    def _follows_from(self, folded: Folded) -> frozenset[str]:
        """Return the run-time sizes and device names that a value depends on, directly or through derived values."""
        return frozenset().union(*(self._depends[name] for name in _names(folded)))

    def _written(self, expression: Expression) -> str:
        folded = self._fold(expression)
        self._used |= _names(folded)
        return self._text(folded)

    def _text(self, folded: Folded) -> str:
        return folded.cpp if self._in_cpp else folded.text

    def _needs(self) -> tuple[tuple[Need, ...], tuple[Need, ...]]:
        """Return the header's conditions that depend only on the device, and the conditions that depend on run-time
        sizes.
        """
        template = self._template
        of_device: list[Need] = []
        of_n: list[Need] = []
        for condition in (*template.arch, *template.supports, *template.constraints):
            follows = self._follows_from(self._fold(condition.holds))
            if follows:
                needs = of_n if self._runtime & follows else of_device
                needs.append(Need(self._written(condition.holds), f"{template.name} requires: {condition.reason}"))
        for name in self._open:
            if not self._runtime & self._depends[name]:  # the kernel's text may use it as a constant
                self._used.add(name)
                value = int(self._tuned[name])
                of_device.append(Need(f"{name} == {value}", f"its code is for a device with {name} = {value}"))
        for stage in (*template.prepare, *template.stages):
            follows = self._follows_from(self._fold(stage.when))
            if follows and stage.entry not in self._source.program.entries:
                needs = of_n if self._runtime & follows else of_device
                needs.append(Need(f"({self._written(stage.when)}) == 0", f"its code has no {stage.entry}"))
        return tuple(of_device), tuple(of_n)

    def _stages(self, stages: Sequence[StageTemplate]) -> tuple[PlanStage, ...]:
        entries = self._source.program.entries
        return tuple(
            PlanStage(
                entry=entries.index(stage.entry),
                args=tuple(self._argument(argument) for argument in self._bound.arguments(stage)),
                when=self._written(stage.when) if self._fold(stage.when).value is None else "",
                grid=tuple(self._written(extent) for extent in stage.grid),
                block=tuple(self._written(extent) for extent in stage.block),
                smem_bytes=self._written(stage.smem_bytes),
            )
            for stage in stages
            if stage.entry in entries and self._fold(stage.when).value in (None, True)
        )

    def _argument(self, argument: str) -> str:
        return f"map{list(self._maps).index(argument)}" if argument in self._maps else argument

    def _tensor_map(self, template: TensorMapTemplate) -> PlanTensorMap:
        def numbers(expressions: Sequence[Expression]) -> tuple[str, ...]:
            return tuple(self._written(expression) for expression in expressions)

        return PlanTensorMap(
            array="workspace" if self._fold(template.in_workspace).value else template.array,
            data_type=str(self._fold(template.data_type).value),
            global_dim=numbers(template.global_dim),
            box_dim=numbers(template.box_dim),
            element_strides=numbers(template.element_strides) or ("1",) * len(template.global_dim),
            lower_corner=numbers(template.lower_corner),
            upper_corner=numbers(template.upper_corner),
            swizzle_bytes=self._written(template.swizzle_bytes),
            im2col=bool(template.lower_corner),
        )

    def _locals(self) -> tuple[tuple[str, str], ...]:
        found: list[tuple[str, str]] = []
        for name, folded in reversed(self._open.items()):
            if name in self._used:
                self._used |= _names(folded)
                found.append((name, self._text(folded)))
        return tuple(reversed(found))


def _names(folded: Folded) -> frozenset[str]:
    """Return the names left in a folded expression."""
    return frozenset() if folded.value is not None else Expression(folded.text, "folded").names


def _parts(stage: StageTemplate) -> tuple[Expression, ...]:
    return (*stage.block, *stage.grid, stage.smem_bytes, stage.when)
