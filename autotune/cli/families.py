"""`templates` and `check`: what families there are, and whether they keep their promises."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.cli.devices import jobs_default, open_evaluator
from autotune.cli.tables import Column, console, format_options, show
from autotune.errors import AutotuneError, TemplateError
from autotune.evaluation.check import CheckRow, check_family
from autotune.evaluation.seat import Deadlines
from autotune.family.template import SUFFIX, KernelTemplate, Param, load_template, load_templates
from autotune.trial import Outcome

DIRECTORIES = click.option(
    "--templates", "directories", multiple=True, type=click.Path(path_type=Path), help="A folder of families."
)

_COMPILE_S = 300.0  # that one compilation of a check may take: a busy machine is no fault of the family's

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
    family = _find(name, directories)
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


_CHECK_COLUMNS = (
    Column[CheckRow]("problem", lambda row: row.problem),
    Column[CheckRow]("config", lambda row: " ".join(f"{name}={value}" for name, value in row.source.config.items)),
    Column[CheckRow]("accuracy", lambda row: row.source.accuracy),
    Column[CheckRow]("outcome", lambda row: row.outcome),
    Column[CheckRow]("reason", lambda row: row.reason),
    Column[CheckRow]("error_over_bound", lambda row: row.error.over_bound if row.error else None),
    Column[CheckRow]("message", lambda row: row.message),
)


@click.command()
@click.argument("template", metavar="TEMPLATE")
@DIRECTORIES
@click.option("--device", help="cuda:N, host, or host:check for sanitizers and shuffled thread order.")
@click.option("--configs", type=click.IntRange(min=1), default=20, show_default=True, help="Sampled configs at most.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the sampling.")
@click.option("--jobs", type=click.IntRange(min=1), help="Compilers at once; default: every core.")
@format_options
def check(
    template: str,
    directories: tuple[Path, ...],
    device: str | None,
    configs: int,
    seed: int,
    jobs: int | None,
    style: str | None,
) -> None:
    """Load TEMPLATE (a family or a file), then render, compile and verify sampled configs on awkward problems."""
    family = _find(template, directories)
    evaluator = open_evaluator(device, jobs or jobs_default(), Deadlines(compile_s=_COMPILE_S))
    try:
        rows = list(check_family(family, evaluator, most=configs, seed=seed))
    finally:
        evaluator.close()
    show(rows, _CHECK_COLUMNS, style)
    wrong = [row for row in rows if row.outcome != Outcome.CORRECT]
    if wrong:
        raise AutotuneError(f"{family.name}: {len(wrong)} of {len(rows)} configs failed; the table says which")
    click.echo(f"{family.name}: {len(rows)} configs on {len({row.problem for row in rows})} problems correct", err=True)


def _find(name: str, directories: tuple[Path, ...]) -> KernelTemplate:
    """A family by name, or by the path of its file."""
    if name.endswith(SUFFIX):
        return load_template(Path(name))
    families = load_templates(directories)
    if name not in families:
        raise TemplateError(f"{name}: no such family; there are {', '.join(families)}, or give a {SUFFIX} file")
    return families[name]
