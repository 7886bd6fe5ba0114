"""`dispatch`: choose a few kernels for all layers of a study and similar ones, and a rule that selects among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.api.answers import dispatcher_of, latest_dispatchers
from autotune.api.study_names import name_of, named_layers
from autotune.atomic_write import check_writable, write_whole
from autotune.cli.options import DATABASE, DIRECTORIES, JOBS, STUDY, one_device, run_on
from autotune.cli.run import command_line, end_interrupted
from autotune.cli.tables import format_options, say, show
from autotune.columns import Cells, Items, field_cells, key_columns
from autotune.dispatch.dispatcher import Choice, PortfolioKernel
from autotune.errors import StudyError
from autotune.escape import counted
from autotune.problem import Layer
from autotune.toml_table import LARGEST

if TYPE_CHECKING:
    from autotune.dispatch.builder import Built
    from autotune.store import DispatchedLayer, DispatcherRow

TABLES = ("layers", "ways", "rules", "kernels")


_WAYS_TIMED = ("time", "left_out", "default", "single", "nearest")
"""Ways to choose a layer's kernel: each has a time in DispatchedLayer."""
DISPATCHED = (
    *key_columns("layer", "role", "count", "kernel", "default_first", "time_us", "best_us"),
    *key_columns("regret_fraction", *(f"{way}_regret_fraction" for way in _WAYS_TIMED[1:]), digits=3),
    *key_columns("problem", hidden=True),
)
_RULES = key_columns("place", "rule", "total_us", "held_out_us", "outcome", "reason", "proposed_by", digits=6)
_WAYS = key_columns(
    *("layers", "way", "median_fraction", "worst_fraction", "worst_layer", "weighted_mean_fraction"), digits=3
)
KERNELS = key_columns("kernel", "template", "config", "conditions")


def _layer_cells(row: DispatchedLayer) -> Cells:
    """Return the cells of a layer. Regret is the time lost relative to the layer's best kernel, as a fraction."""
    times_us = {way: getattr(row, f"{way}_us") for way in _WAYS_TIMED}
    regrets = {way: None if us is None else us / row.best_us - 1 for way, us in times_us.items()}
    return {
        **field_cells(row),
        "layer": row.layer.name,
        "count": row.layer.count,
        "kernel": row.kernel or "to be tuned",
        "regret_fraction": regrets.pop("time"),
        **{f"{way}_regret_fraction": regret for way, regret in regrets.items()},
        "problem": str(row.layer.problem),
    }


def _kernel_cells(row: PortfolioKernel) -> Cells:
    conditions = sum(not step.name for step in row.predicate.steps)
    return {"kernel": row.name, "template": row.config.template, "config": row.config, "conditions": conditions}


@click.command()
@STUDY
@run_on("cuda:N, host, null or replay:FILE")
@DATABASE
@DIRECTORIES
@click.option(
    "--kernels",
    type=click.IntRange(1, 64),
    default=48,
    show_default=True,
    help="Maximum number of kernels, without the safe default.",
)
@click.option(
    "--explore/--no-explore",
    default=True,
    show_default=True,
    help="Also measure batch sizes between the study's.",
)
@click.option(
    "--holdout",
    type=click.IntRange(0, LARGEST),
    help="Hold out a random quarter of the layers, with this seed, to judge the rule.",
)
@JOBS
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the C++ header to this file.")
@click.option(
    "--table",
    type=click.Choice(TABLES),
    default="layers",
    show_default=True,
    help="The table that --json and --csv print.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Show the kernel that the latest dispatcher chooses for each layer of STUDY, or for STUDY.LAYER; run nothing.",
)
@format_options
def dispatch(
    study: str,
    device: str | None,
    db: str,
    directories: tuple[Path, ...],
    kernels: int,
    explore: bool,
    holdout: int | None,
    jobs: int | None,
    out: Path | None,
    table: str,
    explain: bool,
    style: str | None,
) -> None:
    """Pick a few kernels for all layers, and a rule to select one.

    autotune measures each layer's best few kernels on every layer of STUDY that they support, and on batch sizes
    between those of the study. Nothing is measured twice. Regret is the time lost relative to a layer's own best
    kernel, as a fraction. Layers are weighted by their count.

    With --explain, STUDY may also be a study file that was never tuned. `default_first` means that no threshold of the
    rule applies to the layer. To tune the layers whose kernel is "to be tuned", run
    `autotune tune STUDY --layer NAME`.
    """
    if explain:
        show_choices(study, db, device, style)
        return
    from autotune.api.run import open_run
    from autotune.api.run_plan import plan_run
    from autotune.dispatch.builder import build
    from autotune.dispatch.cells import Run

    if out is not None:
        check_writable(out, "--out")
        if out.exists() and Path(study).exists() and out.samefile(study):
            raise StudyError(f"{out}: is the study itself; give another --out")
    plan = plan_run(study, db, directories)
    with open_run(plan.study, device, jobs, db, command_line(plan.study.name), on_results=True) as opened:
        run = Run(plan.study, plan.families, opened.evaluator, opened.store, opened.observe, opened.stopping)
        built = build(run, kernels=kernels, explore=explore, holdout=holdout)
        interrupted = opened.stopping()
    if out is not None:
        write_whole(out, built.text.encode(), "--out")
    if style is None:
        _show_all(built, out)
    else:
        _show(built, table, style)
    if interrupted:
        end_interrupted("the dispatcher uses the times that were measured before that")


def _show(built: Built, table: str, style: str | None, title: str = "") -> None:
    from autotune.dispatch.builder import compare

    if table == "layers":
        show(map(_layer_cells, built.layers), DISPATCHED, style)
    elif table == "ways":
        show(map(field_cells, compare(built.layers)), _WAYS, style, title=title)
    elif table == "rules":
        show(_ranks(built), _RULES, style, title=title)
    else:
        show(map(_kernel_cells, built.dispatcher.all_kernels), KERNELS, style)


def _show_all(built: Built, out: Path | None) -> None:
    """Print the rule and every table."""
    say("The rule:")
    for line in built.dispatcher.words():
        say(f"  {line}")
    say("  The expected time of a kernel follows from its times on measured layers, weighted by their similarity,")
    say("  and from the part of the device that it leaves idle; see docs/dispatch.md.")
    _show(built, "kernels", None)
    _show(built, "layers", None)
    _show(built, "ways", None, "Regret of each way to choose, on layers that it has not seen (except for the first)")
    _show(built, "rules", None, f"Rules, {len(built.tried)} tried")
    defaulted = [layer.layer.name for layer in built.layers if layer.default_first and layer.kernel]
    say(f"the default comes first for: {', '.join(defaulted) or 'none'}")
    waiting = [layer.layer.name for layer in built.layers if layer.kernel is None]
    if waiting:
        say(f"no kernel supports {', '.join(waiting)}; `autotune tune STUDY --layer NAME` tunes a layer")
    how = (
        "the C++ header agrees with it on the device"
        if built.compiled
        else "the C++ header was not compiled, because nothing runs on this device"
    )
    say(
        f"{counted(built.configs, 'config')}, {counted(len(built.interpolated), 'layer')} interpolated, "
        f"{counted(built.measured, 'cell')} measured now, "
        f"{built.evaluated} rules tried now; {how}; "
        f"rules within {built.within_us:.3g} us of all layers' time count as equal"
    )
    if out is not None:
        click.echo(str(out))


def _ranks(built: Built) -> Iterator[Cells]:
    """Yield the rules that were tried, each with its rank. Equally fast rules share a rank; a wrong rule has none."""
    totals = [tried.total_us for tried in built.tried if tried.outcome == "correct"]
    for tried in built.tried:
        is_correct = tried.outcome == "correct"
        yield {
            **field_cells(tried),
            "place": 1 + sum(total < tried.total_us for total in totals) if is_correct else None,
            "rule": "; ".join(replace(built.dispatcher, rule=tried.rule).words()),
            "total_us": tried.total_us if is_correct else None,
            "outcome": tried.outcome.value,
        }


CHOICES = (
    *key_columns("layer"),
    *key_columns("problem", hidden=True),
    *key_columns("device", "dispatcher", "default_first", "kernel"),
    *key_columns("template", hidden=True),
    *key_columns("config"),
    *key_columns("passed_over", hidden=True),
)


def _choice_cells(name: str, layer: Layer, made: DispatcherRow, choice: Choice) -> Cells:
    """Return the cells for a layer and for the kernel that a dispatcher chooses for it."""
    kernel = choice.kernel
    return {
        "layer": name,
        "problem": str(layer.problem),
        "device": made.device.name,
        "dispatcher": made.study,
        "default_first": choice.default_first,
        "kernel": kernel.name if kernel else "to be tuned",
        "template": kernel.config.template if kernel else None,
        "config": kernel.config if kernel else None,
        "passed_over": Items(choice.passed_over),
    }


def show_choices(what: str, db: str, device: str | None, style: str | None) -> None:
    """Show which kernel each device's latest dispatcher chooses for a study's layers, or for a single layer.

    The layers may belong to a study file that was never tuned. `default_first` is true if no threshold of the rule
    applies to the layer, so that the safe default is tried first.
    """
    from autotune.store import Store

    name_of(what)  # raises for an invalid study file before the database is opened
    with Store(db, create=False) as store:
        info = one_device(store, device)
        layers = named_layers(store, what)
        made_of = latest_dispatchers(store, [layer for _, layer in layers], None if info is None else [info])
        dispatchers = [(made, dispatcher_of(store, made)) for made in made_of]
    show(
        [
            _choice_cells(f"{study.name}.{layer.name}", layer, made, dispatcher.choose(layer.problem))
            for study, layer in layers
            for made, dispatcher in dispatchers
        ],
        CHOICES,
        style,
    )
