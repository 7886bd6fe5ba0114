"""`templates`: list the families, or describe one family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from autotune.cli.options import DIRECTORIES, family_names
from autotune.cli.tables import format_options, say, show
from autotune.columns import Cells, Items, field_cells, key_columns
from autotune.errors import TemplateError
from autotune.family.template import SUFFIX, Condition, KernelTemplate
from autotune.family.template_files import load_template, load_templates, template_files
from autotune.operation.operation import FILE
from autotune.toml_table import did_you_mean


def _reasons(conditions: tuple[Condition, ...]) -> str:
    return "; ".join(condition.reason for condition in conditions)


_FAMILY_COLUMNS = (
    *key_columns("name"),
    *key_columns("summary", below=True),
    *key_columns("supports", "arch", "accuracy", hidden=True),
    *key_columns("params"),
    *key_columns("path", hidden=True),
)
_PARAM_COLUMNS = (*key_columns("param", "values"), *key_columns("doc", below=True))


def _family_cells(family: KernelTemplate) -> Cells:
    return {
        **field_cells(family),
        "supports": _reasons(family.supports),
        "arch": _reasons(family.arch),
        "accuracy": family.accuracy.text,
        "params": len(family.params),
        "path": str(family.path),
    }


@click.command()
@click.argument("name", required=False, shell_complete=family_names)
@DIRECTORIES
@format_options
def templates(name: str | None, directories: tuple[Path, ...], style: str | None) -> None:
    """List the kernel families, or describe one of them.

    For a single family, this prints parameters, rules, derived values and launches.
    """
    if name is None:
        show(map(_family_cells, load_templates(directories).values()), _FAMILY_COLUMNS, style)
        return
    family = find_family(name, directories)
    params = [{"param": one.name, "values": Items(tuple(one.values)), "doc": one.doc} for one in family.params]
    if style:
        show(params, _PARAM_COLUMNS, style)
        return
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
    show(params, _PARAM_COLUMNS, style)
    for line in (
        *_conditions("constraints", "what is legal", family.constraints),
        *_conditions("prune", "what is worth searching; `prune = false` in a study switches it off", family.prune),
        *_computed(family),
    ):
        say(line)


def _conditions(key: str, what: str, conditions: tuple[Condition, ...]) -> Iterator[str]:
    """List the conditions in a table of the header, one per line. If there is no such table, there are no lines."""
    if conditions:
        yield f"{key} ({what}):"
    for condition in conditions:
        yield f"  {condition.reason}: {condition.holds.text}"


def _computed(family: KernelTemplate) -> Iterator[str]:
    """List the expressions for a family's derived values and launches."""
    if family.derived:
        yield "derived:"
    for name, expression in family.derived:
        yield f"  {name} = {expression.text}"
    for kind, stages in (("prepare", family.prepare), ("stage", family.stages)):
        for stage in stages:
            block, grid = (", ".join(each.text for each in extents) for extents in (stage.block, stage.grid))
            when = "" if stage.when.text == "true" else f", when {stage.when.text}"
            yield f"{kind} {stage.entry}({', '.join(stage.args)}){when}:"
            yield f"  grid ({grid}), block ({block}), dynamic shared memory {stage.smem_bytes.text} bytes"


def find_family(name: str, directories: tuple[Path, ...]) -> KernelTemplate:
    """Find a family by path, or by name among the bundled families and those in the current folder."""
    if name.endswith(SUFFIX):
        return load_template(Path(name))
    families = template_files(directories)
    if name in families:
        return load_template(families[name])
    here = [folder / f"{name}{SUFFIX}" for folder in sorted(Path().iterdir()) if (folder / FILE).is_file()]
    if own := next((path for path in here if path.is_file()), None):
        return load_template(own)
    near = did_you_mean(name, families)
    raise TemplateError(f"{name}: no such family{near}; `autotune templates` lists them; or give a {SUFFIX} file")
