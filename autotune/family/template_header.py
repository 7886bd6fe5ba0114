"""problem -> template: read a family's TOML header and check it against its operation.

This module checks, once, everything that doesn't depend on a problem: the header's keys, the names in expressions,
cycles, and unused parameters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from autotune.errors import TemplateError
from autotune.expressions.expression import Expression, words_of
from autotune.expressions.functions import FUNCTIONS
from autotune.expressions.typed_names import expression_of, no_condition, number_names
from autotune.family.template import (
    COST_KEYS,
    SUFFIX,
    Condition,
    ConstantTemplate,
    KernelTemplate,
    Param,
    StageTemplate,
)
from autotune.family.tensor_map_template import TensorMapTemplate, named_arrays, read_tensor_map
from autotune.legacy_names import HEADER_KEYS, current_header
from autotune.operation.declarations import COMPUTED, ROLES, SCALAR
from autotune.operation.operation import Operation
from autotune.toml_table import Table, did_you_mean, read_toml
from autotune.trial import ACCURACY_CLASSES

DEVICE_NAMES = frozenset({"device.arch", "device.sm_count", "device.smem_per_block_bytes", "device.l2_bytes"})
SCRATCH = ("packed_w", "workspace")
"""Arrays that belong to the kernel itself."""
_HEADER_KEYS = {
    *("summary", "supports", "arch", "accuracy", "deterministic", "params", "derived", "constraints", "prune"),
    *("search_when", "padded_work", "bank_conflicts", "cost", "error_factor", "flops", "constant", "tensor_map"),
    *("stage", "prepare", "packed_w", "workspace", "loop", "baseline", "optional_arrays", "optional_words"),
}
_STAGE_KEYS = {"entry", "args", "block", "grid", "smem_bytes", "when"}


@lru_cache(maxsize=64)
def template_of_header(name: str, header: str, declared: Operation) -> KernelTemplate:
    """Parse a header stored in a results database. The resulting family has the header's expressions but no body.

    Raises TemplateError like `load_template`.
    """
    path = Path(f"{name}{SUFFIX}")
    table = header_toml(path, header, 0)
    return HeaderReader(path, replace(table, content=current_header(table.content)), declared).build(
        f"/*# kernel\n{header}\n#*/\n"
    )


def header_toml(path: Path, header: str, first: int) -> Table:
    """Parse a header's TOML. `first` is the number of lines above it in its file."""
    return read_toml(header, TemplateError, str(path), what="header ", first=first)


class HeaderReader:
    """Reads a header's tables. Errors give the dotted key."""

    def __init__(self, path: Path, header: Table, declared: Operation) -> None:
        self.path = path
        self.header = header
        self.operation = declared
        self.arguments = (*self.operation.names_of(*ROLES), *SCRATCH, *self.operation.runtime, "i")
        self.problem_and_device = self.operation.names | DEVICE_NAMES
        self.everything: frozenset[str] = frozenset()
        self.error = header.error
        optional = header.words("optional_arrays") if "optional_arrays" in header else ()
        self.left_out = set(optional) - set(self.arguments)
        """optional arrays that this operation does not have, and their tensor maps"""

    def build(self, text: str) -> KernelTemplate:
        for old, new in HEADER_KEYS.items():
            if old in self.header:
                raise self.error(old, f"is now called {new}")
        self.header.allow(_HEADER_KEYS)
        self.header.require(("summary", "arch", "accuracy", "stage"), "missing from the header")
        params = self.params()
        derived_names = frozenset(self.table("derived").content)
        self.everything = self.problem_and_device | {param.name for param in params} | derived_names
        for name in derived_names:
            if name in self.problem_and_device or name in {param.name for param in params}:
                raise self.error(f"derived.{name}", "already the name of a problem size or parameter")
        constants = tuple(self.constant(name, value) for name, value in self.table("constant").content.items())
        tensor_maps = self.tensor_maps()
        arguments = (*self.arguments, *dict.fromkeys(each.name for each in tensor_maps))
        prepare = self.stages("prepare", arguments)
        stages = self.stages("stage", arguments)
        if not stages:
            raise self.error("stage", "a family needs at least one stage")
        template = KernelTemplate(
            name=self.path.name.removesuffix(SUFFIX),
            operation=self.operation,
            path=self.path,
            summary=self.string("summary"),
            supports=self.conditions("supports", self.operation.names),
            search_when=self.expression("search_when", self.header.get("search_when", "true"), self.problem_and_device),
            arch=self.conditions("arch", DEVICE_NAMES),
            accuracy=self.accuracy(),
            deterministic=self.expression("deterministic", self.header.get("deterministic", "true")),
            padded_work=self.expression("padded_work", self.header.get("padded_work", self.operation.outputs)),
            params=params,
            derived=self.derived(),
            constraints=self.conditions("constraints"),
            prune=self.conditions("prune"),
            bank_conflicts=tuple(
                (access, self.expression(f'bank_conflicts."{access}"', value))
                for access, value in self.table("bank_conflicts").content.items()
            ),
            cost=self.cost(),
            error_factor=self.expression("error_factor", self.header.get("error_factor", "1")),
            flops=self.expression("flops", self.header.get("flops", self.operation.flops.expression.text)),
            constants=constants,
            tensor_maps=tensor_maps,
            prepare=prepare,
            stages=stages,
            packed_w_bytes=self.single("packed_w", "bytes", "0"),
            workspace_bytes=self.single("workspace", "bytes", "0"),
            loop_count=self.single("loop", "count", "1"),
            baseline=self.header.flag("baseline", default=False),
            optional_words=self.header.words("optional_words") if "optional_words" in self.header else (),
            text=text,
            includes=(),
        )
        self.check_arguments(template)
        return template

    def string(self, key: str) -> str:
        value = self.header.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, f"expected a string, got {value!r}")
        return value

    def table(self, key: str) -> Table:
        return self.header.table(key, f"expected a table [{key}]")

    def conditions(self, key: str, allowed: frozenset[str] | None = None) -> tuple[Condition, ...]:
        """Read a table of `"reason" = "expression"` lines."""
        expected = f'expected a table [{key}] with lines "reason" = "expression"'
        table = self.header.table(key, expected)
        if "" in table:
            raise self.error(key, f"{expected}, and a reason is empty")
        return tuple(
            Condition(reason, self.expression(f'{key}."{reason}"', value, allowed))
            for reason, value in table.content.items()
        )

    def expression(self, key: str, value: object, allowed: frozenset[str] | None = None) -> Expression:
        known = self.everything if allowed is None else allowed
        return expression_of(self.header, key, value, known, self.operation.enumerations)

    def cost(self) -> dict[str, Expression]:
        costs = self.table("cost")
        costs.allow(set(COST_KEYS))
        if costs.content:
            costs.require(("loaded_bytes", "waves", "steps"))
        return {key: self.expression(f"cost.{key}", value) for key, value in costs.content.items()}

    def single(self, table: str, key: str, default: str) -> Expression:
        values = self.table(table)
        values.allow({key})
        if values.content:
            values.require((key,))
        return self.expression(values.path(key), values.get(key, default))

    def accuracy(self) -> Expression:
        text = self.string("accuracy")
        if re.fullmatch(r"[\w-]+", text) and text not in {*ACCURACY_CLASSES, *self.everything}:
            raise self.error("accuracy", not_a_class(text))
        expression = self.expression("accuracy", f"'{text}'" if text in ACCURACY_CLASSES else text)
        for word in words_of(expression.folded({})):
            if word not in ACCURACY_CLASSES:
                raise self.error("accuracy", not_a_class(word))
        return expression

    def params(self) -> tuple[Param, ...]:
        params = []
        for name, value in self.table("params").content.items():
            key = f"params.{name}"
            if name in self.problem_and_device or name in FUNCTIONS or not name.isidentifier():
                raise self.error(key, "not a free name: it is a problem size, a function or not an identifier")
            table = self.header.below(key, value, "expected { values = [...], doc = ... }")
            table.allow({"values", "doc"})
            values = table.get("values")
            if not isinstance(values, list) or not values:
                raise self.error(f"{key}.values", "expected a list with at least one value")
            if any(not isinstance(item, (int, str)) for item in values) or len({type(item) for item in values}) > 1:
                raise self.error(f"{key}.values", "values are whole numbers, words or true/false, all of one kind")
            if len(set(values)) < len(values):
                raise self.error(f"{key}.values", "a value occurs twice")
            doc = table.get("doc", "")
            if not isinstance(doc, str) or not doc:
                raise self.error(f"{key}.doc", "say what the parameter does")
            params.append(Param(name, tuple(values), doc))
        return tuple(params)

    def derived(self) -> tuple[tuple[str, Expression], ...]:
        waiting = {
            name: self.expression(f"derived.{name}", self.cases(f"derived.{name}", value))
            for name, value in self.table("derived").content.items()
        }
        ordered: dict[str, Expression] = {}
        while waiting:
            ready = [name for name, expression in waiting.items() if not (expression.names & waiting.keys())]
            if not ready:
                raise self.error(f"derived.{min(waiting)}", f"a cycle through {', '.join(sorted(waiting))}")
            for name in ready:
                ordered[name] = waiting.pop(name)
        return tuple(ordered.items())

    def cases(self, key: str, value: object) -> object:
        """Convert a list of cases to an expression that yields the first `value` whose `when` holds."""
        if not isinstance(value, list):
            return value
        expected = "expected { when = ..., value = ... }, and { value = ... } as the last"
        text = ""
        for index, each in reversed(list(enumerate(value))):
            case = self.header.below(f"{key}[{index}]", each, expected)
            case.allow({"when", "value"})
            if not isinstance(case.get("value"), str) or isinstance(case.get("when"), str) != bool(text):
                raise self.error(case.key, expected)
            text = f"({case.get('value')}) if ({case.get('when')}) else ({text})" if text else str(case.get("value"))
        return text

    def constant(self, name: str, value: object) -> ConstantTemplate:
        table = self.header.below(f"constant.{name}", value, 'expected { from = "w", when = "..." }')
        table.allow({"from", "when"})
        origins = (*self.operation.names_of("weights"), "packed_w")
        if table.get("from") not in origins:
            raise table.error("from", f"expected one of {', '.join(origins)}, got {table.get('from')!r}")
        when = self.expression(table.path("when"), table.get("when", "true"))
        return ConstantTemplate(name, table.word("from", ""), when)

    def tensor_maps(self) -> tuple[TensorMapTemplate, ...]:
        tables = self.header.tables("tensor_map", "expected [[tensor_map]]")
        named = [(table, name, array) for table in tables for name, array in named_arrays(table).items()]
        self.left_out |= {name for _, name, array in named if array in self.left_out}
        made = tuple(
            read_tensor_map(table, name, array, self.operation, self.expression)
            for table, name, array in named
            if name not in self.left_out
        )
        for each in made:
            if each.name in self.arguments:
                raise TemplateError(f"{each.where}.name: {each.name} is an argument already")
        return made

    def stages(self, kind: str, arguments: Sequence[str]) -> tuple[StageTemplate, ...]:
        tables = self.header.tables(kind, f"expected [[{kind}]]")
        return tuple(self.stage(table, arguments) for table in tables)

    def stage(self, stage: Table, arguments: Sequence[str]) -> StageTemplate:
        if not stage.content:
            raise self.error(stage.key, "an empty stage: it needs entry, args, block and grid")
        stage.allow(_STAGE_KEYS)
        stage.require(("entry", "args", "block", "grid"))
        entry, args = stage.get("entry"), stage.get("args")
        if not isinstance(entry, str) or not entry.isidentifier():
            raise stage.error("entry", f"expected the name of a kernel, got {entry!r}")
        if not isinstance(args, list):
            raise stage.error("args", f"expected a list of names out of {', '.join(arguments)}, got {args!r}")
        args = [argument for argument in args if str(argument) not in self.left_out]
        for argument in args:
            if argument not in arguments:
                near = did_you_mean(str(argument), arguments)
                raise stage.error(
                    "args",
                    f"{argument!r} is not an argument{near}: expected a list of names out of {', '.join(arguments)}",
                )
        return StageTemplate(
            entry=entry,
            args=tuple(args),
            block=self.triple(stage.path("block"), stage.get("block")),
            grid=self.triple(stage.path("grid"), stage.get("grid")),
            smem_bytes=self.expression(stage.path("smem_bytes"), stage.get("smem_bytes", "0")),
            when=self.expression(stage.path("when"), stage.get("when", "true")),
        )

    def triple(self, key: str, value: object) -> tuple[Expression, Expression, Expression]:
        if not isinstance(value, list) or len(value) != 3:
            raise self.error(key, f"expected three expressions, got {value!r}")
        first, second, third = (self.expression(f"{key}[{axis}]", item) for axis, item in enumerate(value))
        return first, second, third

    def check_arguments(self, template: KernelTemplate) -> None:
        """Check that every argument that needs a declaration has one, and that every declaration is used."""
        prepare = {argument for stage in template.prepare for argument in stage.args}
        forward = {argument for stage in template.stages for argument in stage.args}
        passed = prepare | forward | {constant.origin for constant in template.constants}
        for tensor_map in template.tensor_maps:
            if tensor_map.name not in passed:
                raise TemplateError(f"{tensor_map.where}.name: no stage takes {tensor_map.name}")
            if tensor_map.name in prepare:
                raise TemplateError(f"{tensor_map.where}.name: a prepare stage can't take a tensor map")
            passed.add(tensor_map.array)
        for array in self.operation.arrays:
            needed = array.role in ("in", SCALAR, *COMPUTED) and array.when.expression.text == "true"
            if needed and array.name not in passed:
                what = "computed" if array.role in COMPUTED else "read"
                raise self.error("stage", f"none takes {array.name}, which is {what} in every problem")
        for argument, key in (("packed_w", "packed_w.bytes"), ("workspace", "workspace.bytes"), ("i", "loop.count")):
            table = key.split(".")[0]
            if argument in passed and table not in self.header:
                raise self.error(key, f"missing, but a stage takes {argument}")
            if argument not in passed and table in self.header and argument != "i":
                raise self.error(key, f"declared, but no stage takes {argument}")
        weights = (*self.operation.names_of("weights"), *SCRATCH)
        if not prepare <= set(weights):
            raise self.error("prepare", f"runs once per set of weights: it may take {', '.join(weights)} only")

    def check_conditions(self, template: KernelTemplate) -> None:
        """Check that none of the header's conditions yields a number."""
        numbers = {param.name for param in template.params if type(param.values[0]) is int}
        numbers |= DEVICE_NAMES | self.operation.numeric_names
        numbers |= number_names(numbers, template.derived)
        for key, conditions in (
            ("supports", template.supports),
            ("arch", template.arch),
            ("constraints", template.constraints),
            ("prune", template.prune),
        ):
            for condition in conditions:
                if wrong := no_condition(condition.holds, numbers):
                    raise self.error(f'{key}."{condition.reason}"', wrong)

    def check_params_used(self, template: KernelTemplate, body_names: Set[str]) -> None:
        """Check that each parameter reaches the body or a launch, either directly or through derived values."""
        used = set(body_names)
        stages = (*template.prepare, *template.stages)
        for expression in (
            *(item for stage in stages for item in (*stage.block, *stage.grid, stage.smem_bytes, stage.when)),
            *(constant.when for constant in template.constants),
            *(expression for tensor_map in template.tensor_maps for expression in tensor_map.expressions),
            *(template.packed_w_bytes, template.workspace_bytes, template.loop_count),
        ):
            used |= expression.names
        for name, expression in reversed(template.derived):
            if name in used:
                used |= expression.names
        for param in template.params:
            if param.name not in used:
                raise self.error(f"params.{param.name}", "declared but not used by the body or the launch")


def not_a_class(word: str) -> str:
    """Return the message for an unknown accuracy class."""
    near = did_you_mean(word, ACCURACY_CLASSES)
    return f"{word!r} is not an accuracy class{near}; there are {', '.join(ACCURACY_CLASSES)}"
