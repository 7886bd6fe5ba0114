"""`templates`: the list of families, and the description of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from autotune.api.study_names import study_named
from autotune.checking.architectures import device_of
from autotune.checking.pairwise import Covering
from autotune.checking.problem_features import problem_features
from autotune.checking.problems import derive
from autotune.cli.options import DATABASE, DIRECTORIES, OF_STUDY, family_names
from autotune.cli.tables import format_options, say, show
from autotune.columns import Column, Items
from autotune.devices.device import DeviceInfo
from autotune.errors import Rejected, TemplateError
from autotune.family.render import render
from autotune.family.space import Admission, BoundTemplate, SearchSpace
from autotune.family.template import SUFFIX, Condition, KernelTemplate, Param
from autotune.family.template_files import load_template, load_templates
from autotune.legacy_names import renamed
from autotune.operation.operation import FILE
from autotune.study import Study
from autotune.toml_table import did_you_mean
from autotune.trial import Config


def _reasons(conditions: tuple[Condition, ...]) -> str:
    return "; ".join(condition.reason for condition in conditions)


_FAMILY_COLUMNS = (
    Column[KernelTemplate]("name", lambda family: family.name),
    Column[KernelTemplate]("summary", lambda family: family.summary, below=True),
    Column[KernelTemplate]("supports", lambda family: _reasons(family.supports), terminal=False),
    Column[KernelTemplate]("arch", lambda family: _reasons(family.arch), terminal=False),
    Column[KernelTemplate]("accuracy", lambda family: family.accuracy.text, terminal=False),
    Column[KernelTemplate]("params", lambda family: len(family.params)),
    Column[KernelTemplate]("path", lambda family: str(family.path), terminal=False),
)
_PARAM_COLUMNS = (
    Column[Param]("param", lambda param: param.name),
    Column[Param]("values", lambda param: Items(tuple(param.values))),
    Column[Param]("doc", lambda param: param.doc, below=True),
)


@click.command()
@click.argument("name", required=False, shell_complete=family_names)
@click.argument("config", nargs=-1, metavar="[PARAM=VALUE]...")
@DIRECTORIES
@OF_STUDY
@DATABASE
@click.option("--arch", type=int, default=90, show_default=True, help="Evaluate for this architecture.")
@format_options
def templates(
    name: str | None,
    config: tuple[str, ...],
    directories: tuple[Path, ...],
    study: str | None,
    db: str,
    arch: int,
    style: str | None,
) -> None:
    """List the kernel families, or describe one of them.

    For one family it prints parameters, rules and stages. The derived values, launches and bytes are those of one
    config: the family's default, with each PARAM set to its VALUE, on the first layer that the family supports, either
    of --study or of the problems that `check` derives.
    """
    if name is None:
        show(load_templates(directories).values(), _FAMILY_COLUMNS, style)
        return
    family = find_family(name, directories)
    if style:
        show(family.params, _PARAM_COLUMNS, style)
        return
    evaluated = list(
        _evaluated(family, None if study is None else study_named(study, db, directories), device_of(arch), config)
    )
    say(f"{family.name}: {family.summary}")
    for line in (
        *_conditions("supports", "of a problem", family.supports),
        *_conditions("arch", "of a device", family.arch),
        f"search when: {family.search_when.text}",
        f"accuracy: {family.accuracy.text}",
        f"deterministic: {family.deterministic.text}",
        f"file: {family.path}",
    ):
        say(line)
    show(family.params, _PARAM_COLUMNS, style)
    for line in (
        *_conditions("constraints", "what is legal", family.constraints),
        *_conditions("prune", "what is worth searching; `prune = false` in a study switches it off", family.prune),
        *evaluated,
    ):
        say(line)


def _conditions(key: str, what: str, conditions: tuple[Condition, ...]) -> Iterator[str]:
    """A table of the header, a line for each condition; nothing where it has none."""
    if conditions:
        yield f"{key} ({what}):"
    for condition in conditions:
        yield f"  {condition.reason}: {condition.holds.text}"


def _served(family: KernelTemplate, study: Study | None, device: DeviceInfo) -> BoundTemplate | None:
    """The family bound to the first layer for which its search space has a config; None if there is none."""
    if study is not None:
        problems = [layer.problem for layer in study.layers]
    else:
        covering = Covering([len(values) for _, values in problem_features(family.operation).values])
        problems = [derived.bound.problem for derived in derive(family, device, covering, 0, most=1).problems]
    for problem in problems:
        bound = BoundTemplate(family, problem, device, Admission(prune=True))
        if bound.supported and SearchSpace(bound, most_rows=0, sampled_rows=1).default is not None:
            return bound
    return None


def _config(bound: BoundTemplate, assignments: tuple[str, ...]) -> Config:
    """The default config with some values changed. Raises TemplateError for an unknown parameter or value."""
    default = SearchSpace(bound, most_rows=0, sampled_rows=1).default
    assert default is not None  # noqa: S101 - the problem was chosen by it
    values = default.params
    params = {param.name: param for param in bound.template.params}
    for word in assignments:
        name, _, text = word.partition("=")
        if name not in params:
            now = renamed(bound.template.name, name)
            hint = f"it is {now} now" if now in params else f"{bound.template.name} has {', '.join(params)}"
            raise TemplateError(f"{word}: no such parameter; {hint}")
        matching = [value for value in params[name].values if str(value).lower() == text.lower()]
        if not matching:
            raise TemplateError(f"{word}: no value of {name}; there are {', '.join(map(str, params[name].values))}")
        values[name] = matching[0]
    return Config.of(bound.template.name, values)


def _evaluated(
    family: KernelTemplate, study: Study | None, device: DeviceInfo, words: tuple[str, ...]
) -> Iterator[str]:
    """The values of a config's expressions for a layer: derived values, launches, bytes."""
    bound = _served(family, study, device)
    if bound is None:
        of = f"layer of {study.name}" if study else "layer that a check derives"
        yield f"No config on {device.name} for any {of}: give another --study or --arch to see values and launches."
        return
    config = _config(bound, words)
    bound = BoundTemplate(family, bound.problem, device)  # a legal config can be shown even if it is not searched
    try:
        names = bound.check(config)
    except Rejected as rejected:
        raise TemplateError(f"{config} on {bound.problem}: {rejected.message}") from None
    source = render(bound, config)
    yield ""
    yield f"For {bound.problem} on {bound.device.name} with"
    yield f"  {' '.join(f'{name}={value}' for name, value in config.pairs)}"
    for name, expression in bound.template.derived:
        yield f"  {name} = {names[name]}: {expression.text}"
    for kind, stages in (("prepare", source.prepare), ("stage", source.stages)):
        for stage in stages:
            block, grid = (" x ".join(map(str, extents)) for extents in (stage.block, stage.grid))
            yield f"  {kind} {stage.entry}({', '.join(stage.args)})"
            yield f"    grid {grid}, block {block}, dynamic shared memory {stage.smem_bytes} bytes"
    if source.loop_count != 1:
        yield f"  the stages {source.loop_count} times"
    for symbol in source.constants:
        yield f"  __constant__ {symbol.name} from {symbol.origin}"
    yield f"  packed_w {source.packed_w_bytes} bytes, workspace {source.workspace_bytes} bytes"
    yield f"  accuracy {source.accuracy}, error bound times {source.error_factor}"
    yield f"  {source.flops or bound.problem.flops} FLOP"


def find_family(name: str, directories: tuple[Path, ...]) -> KernelTemplate:
    """Find a family by name, also that of an operation in the current directory, or by the path of its file."""
    if name.endswith(SUFFIX):
        return load_template(Path(name))
    families = load_templates(directories)
    if name in families:
        return families[name]
    here = [folder / f"{name}{SUFFIX}" for folder in sorted(Path().iterdir()) if (folder / FILE).is_file()]
    if own := next((path for path in here if path.is_file()), None):
        return load_template(own)
    near = did_you_mean(name, families)
    raise TemplateError(f"{name}: no such family{near}; `autotune templates` lists them; or give a {SUFFIX} file")
