"""`templates`: what families there are, and what is in each."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.cli.tables import Column, console, format_options, show
from autotune.errors import TemplateError
from autotune.family.template import SUFFIX, KernelTemplate, Param, load_template, load_templates

DIRECTORIES = click.option(
    "--templates", "directories", multiple=True, type=click.Path(path_type=Path), help="A folder of families."
)

_FAMILY_COLUMNS = (
    Column[KernelTemplate]("name", lambda family: family.name),
    Column[KernelTemplate]("summary", lambda family: family.summary),
    Column[KernelTemplate]("supports", lambda family: family.supports.text, terminal=False),
    Column[KernelTemplate]("arch", lambda family: family.arch.text, terminal=False),
    Column[KernelTemplate]("accuracy", lambda family: family.accuracy.text, terminal=False),
    Column[KernelTemplate]("params", lambda family: len(family.params)),
    Column[KernelTemplate]("path", lambda family: str(family.path), terminal=False),
)
_PARAM_COLUMNS = (
    Column[Param]("param", lambda param: param.name),
    Column[Param]("values", lambda param: " ".join(str(value) for value in param.values)),
    Column[Param]("doc", lambda param: param.doc),
)


@click.command()
@click.argument("name", required=False)
@DIRECTORIES
@format_options
def templates(name: str | None, directories: tuple[Path, ...], style: str | None) -> None:
    """The kernel families; with NAME, one family's parameters, constraints and documentation."""
    families = load_templates(directories)
    if name is None:
        show(families.values(), _FAMILY_COLUMNS, style)
        return
    family = find_family(name, directories)
    if style:
        show(family.params, _PARAM_COLUMNS, style)
        return
    out = console()
    for label, text in (
        ("", f"{family.name}: {family.summary}"),
        ("supports", family.supports.text),
        ("arch", family.arch.text),
        ("accuracy", family.accuracy.text),
        ("deterministic", family.deterministic.text),
        ("file", str(family.path)),
    ):
        out.print(f"{label + ': ' if label else ''}{text}", markup=False)
    show(family.params, _PARAM_COLUMNS, style)
    for constraint in family.constraints:
        out.print(f"  {constraint.reason}: {constraint.holds.text}", markup=False)


def find_family(name: str, directories: tuple[Path, ...]) -> KernelTemplate:
    """A family by name, or by the path of its file."""
    if name.endswith(SUFFIX):
        return load_template(Path(name))
    families = load_templates(directories)
    if name not in families:
        raise TemplateError(f"{name}: no such family; there are {', '.join(families)}, or give a {SUFFIX} file")
    return families[name]
