"""`tune` for a study whose target is a rule: search the rule and show the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from autotune.cli.dispatch import KERNELS, LAYERS
from autotune.cli.interrupts import end_interrupted
from autotune.cli.options import refuse_beside
from autotune.cli.output import on_terminal
from autotune.cli.run import open_run
from autotune.cli.tables import show
from autotune.escape import counted
from autotune.study import NamedRule, distinct_layers

if TYPE_CHECKING:
    from autotune.api.run_plan import RunPlan
    from autotune.dispatch.rule_search import SearchedRule

_OF_LAYERS = (
    *("time_budget", "trials_total", "time_budget_total", "min_gain", "only_unsupported", "prior", "cluster"),
    *("classes", "baselines", "finals_seconds", "fresh", "finals_on_interrupt"),
)
"""Options of `tune` that a rule's search has no use for."""


def search_and_show(
    plan: RunPlan,
    rule: NamedRule,
    device: str | None,
    jobs: int | None,
    db: str,
    style: str | None,
    *,
    holdout: int | None,
) -> None:
    """Search a rule for some layers of its study, or for those of them that a seed does not hold out; print it."""
    from autotune.dispatch.builder import held_out
    from autotune.dispatch.cells import Run
    from autotune.dispatch.header import load_dispatch_template
    from autotune.dispatch.rule_search import search_rule

    refuse_beside("a rule is the target", *_OF_LAYERS)
    template = load_dispatch_template()
    with open_run(plan.study, device, jobs, db) as opened:
        distinct = distinct_layers(plan.layers)
        held = held_out(len(distinct), holdout)
        layers = tuple(layer for at, layer in enumerate(distinct) if at not in held)
        run = Run(plan.study, plan.families, opened.evaluator, opened.store, opened.observe, opened.stopping)
        found = search_rule(run, template, rule, layers)
        interrupted = opened.stopping()
    if style is None:
        _show_all(found)
    else:
        show(found.layers, LAYERS, style)
    if interrupted:
        end_interrupted("the rule is the best of those evaluated until then")


def _show_all(found: SearchedRule) -> None:
    """Everything, for people."""
    click.echo("The rule:")
    for line in found.dispatcher.words():
        click.echo(on_terminal(f"  {line}"))
    show(found.dispatcher.all_kernels, KERNELS, None)
    show(found.layers, LAYERS, None)
    click.echo(
        f"{found.total_us:.6g} us in all; {counted(found.tried, 'rule')} evaluated, {found.evaluated} of them now; "
        f"{counted(found.measured, 'kernel')} measured now, each on one layer"
    )
