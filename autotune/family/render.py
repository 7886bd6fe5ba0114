"""space -> render: turn one of a family's configs into a `KernelSource`: the text to compile and the launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jinja2 import TemplateError as JinjaError

from autotune.compilation.compile import Program
from autotune.errors import Rejected, TemplateError
from autotune.expressions.expression import Expression
from autotune.family.source import ConstantSymbol, KernelSource, Stage
from autotune.family.space import BoundTemplate
from autotune.family.template import StageTemplate
from autotune.family.template_header import not_a_class
from autotune.family.tensor_map_template import NamedTensorMap
from autotune.family.text import environment, inline
from autotune.trial import ACCURACY_CLASSES, Config, Outcome, Value

_LARGEST = 2**53  # limit of the results database


def render(bound: BoundTemplate, config: Config) -> KernelSource:
    """Render a config's source.

    Raises Rejected('invalid_config', ...) if the config breaks one of the space's rules, and TemplateError if the body
    fails.
    """
    names = bound.check(config)
    template = bound.template
    for expression in (template.padded_work, *(passes for _, passes in template.bank_conflicts)):
        bound.bind(expression).integer(names)  # the value is not used, but an expression that raises is an error
    entries = dict.fromkeys(
        stage.entry
        for stage in (*template.prepare, *template.stages)
        if stage.when.names & template.changing or bound.bind(stage.when).integer(names)
    )
    program = Program(text=render_text(bound, names), entries=tuple(entries))
    return _source(bound, config, program, names)


def relaunched(source: KernelSource, bound: BoundTemplate) -> KernelSource:
    """Evaluate a rendered program's launches and sizes again for the run-time sizes of `bound`.

    Rules other than resource limits are ignored. Such rules may exclude configs that are wasteful for few images, but a
    kernel must run for any number of images, as in an exported library.

    Raises Rejected('invalid_config', 'resource_limit', ...) for a launch that the device can't make, and TemplateError
    like `render`.
    """
    names = bound.names(source.config)
    for rule in bound.all_rules:
        if rule.kind == "resource_limit" and (why := rule.violated(names)):
            raise Rejected(Outcome.INVALID_CONFIG, rule.kind, f"{bound.problem.at_runtime}: {why}")
    return _source(bound, source.config, source.program, names)


def _source(bound: BoundTemplate, config: Config, program: Program, names: dict[str, Value]) -> KernelSource:
    template = bound.template
    accuracy = bound.bind(template.accuracy).word(names)
    if accuracy not in ACCURACY_CLASSES:
        raise TemplateError(f"{template.path}: accuracy: {not_a_class(accuracy)}")
    factor, flops = (_size(bound, each, names, least=1) for each in (template.error_factor, template.flops))
    stages = launches(bound, template.stages, names)
    if not stages:
        raise TemplateError(f"{template.path}: stage: none has a `when` that holds for {config} on {bound.problem}")
    prepare, maps = launches(bound, template.prepare, names), tensor_maps(bound, names)
    for name in {each.name for each in bound.tensor_maps()} - {each.name for each in maps}:
        if any(name in stage.args for stage in (*prepare, *stages)):
            raise TemplateError(
                f"{template.path}: tensor_map: no {name} has a `when` that holds for {config} on {bound.problem}"
            )
    return KernelSource(
        problem=bound.problem,
        config=config,
        program=program,
        prepare=prepare,
        stages=stages,
        loop_count=_size(bound, template.loop_count, names, least=1),
        constants=tuple(
            ConstantSymbol(constant.name, constant.origin)
            for constant in template.constants
            if bound.bind(constant.when).integer(names)
        ),
        packed_w_bytes=_size(bound, template.packed_w_bytes, names),
        workspace_bytes=_size(bound, template.workspace_bytes, names),
        accuracy=accuracy,
        deterministic=bool(bound.bind(template.deterministic).integer(names)),
        error_factor=factor,
        flops=None if flops == bound.problem.flops else flops,
        tensor_maps=maps,
    )


def render_text(bound: BoundTemplate, names: dict[str, Value]) -> str:
    """Render the body and inline its includes, which results in self-contained CUDA C++."""
    template = bound.template
    try:
        text = bound.body.render(visible_names(bound, names))
        return inline(text.lstrip("\n"), template.includes)
    except JinjaError as error:
        line = getattr(error, "lineno", None)
        where = f"line {line}" if line else "body"
        raise TemplateError(f"{template.path}: {where}: {error.message or type(error).__name__}") from None
    except TemplateError as error:
        message = str(error).removeprefix(f"{template.path}: ")
        raise TemplateError(f"{template.path}: body {message}") from None
    except (ArithmeticError, TypeError, ValueError) as error:
        raise TemplateError(f"{template.path}: body raises {type(error).__name__}: {error}") from None


def visible_names(bound: BoundTemplate, names: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values that a family's body can use, which are the config's names and the problem's.

    Run-time sizes such as n are left out, because the text must not depend on them.
    """
    changing = bound.problem.operation.changing
    visible = {name: value for name, value in bound.problem.names().items() if name not in changing}
    return {**visible, **names}


def render_words(text: str, values: Mapping[str, object], where: str) -> str:
    """Render a template that isn't a kernel family. Raises TemplateError with the line."""
    try:
        return environment().from_string(text).render(values)
    except JinjaError as error:
        raise TemplateError(f"{where}: {error.message or type(error).__name__}") from None


def launches(bound: BoundTemplate, stages: Sequence[StageTemplate], names: dict[str, Value]) -> tuple[Stage, ...]:
    """Evaluate the stages launched by a config, without rendering."""
    return tuple(_stage(bound, stage, names) for stage in stages if bound.bind(stage.when).integer(names))


def tensor_maps(bound: BoundTemplate, names: dict[str, Value]) -> tuple[NamedTensorMap, ...]:
    """Evaluate a config's tensor maps. Raises TemplateError for one that the driver wouldn't encode."""
    found: dict[str, NamedTensorMap] = {}
    for template in bound.tensor_maps():
        if template.name not in found and bound.bind(template.when).integer(names):
            found[template.name] = template.evaluate(
                lambda expression: bound.bind(expression).integer(names),
                lambda expression: bound.bind(expression).word(names),
                bound.problem.dtype,
            )
    return tuple(found.values())


def _stage(bound: BoundTemplate, stage: StageTemplate, names: dict[str, Value]) -> Stage:
    block = [bound.bind(extent).integer(names) for extent in stage.block]
    grid = [bound.bind(extent).integer(names) for extent in stage.grid]
    for label, extents in (("block", block), ("grid", grid)):
        if min(extents) < 1:
            raise TemplateError(f"{bound.template.path}: {label} of {stage.entry} is {extents}: at least 1 each")
    return Stage(
        entry=stage.entry,
        args=bound.arguments(stage),
        block=(block[0], block[1], block[2]),
        grid=(grid[0], grid[1], grid[2]),
        smem_bytes=_size(bound, stage.smem_bytes, names),
    )


def _size(bound: BoundTemplate, expression: Expression, names: dict[str, Value], *, least: int = 0) -> int:
    """Evaluate an expression. Raises TemplateError if the results database wouldn't accept the value as a size."""
    value = bound.bind(expression).integer(names)
    if not least <= value <= _LARGEST:
        raise expression.error(f"is not a size: expected {least} to 2^53, got {value}")
    return value
