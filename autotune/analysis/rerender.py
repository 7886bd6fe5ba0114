"""Render a recorded config again with the installed version of its family."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.errors import Rejected
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.problem import Problem, make_problem
from autotune.store import Store, TrialRow


def kernel_of(row: TrialRow, store: Store, families: Mapping[str, KernelTemplate]) -> KernelSource | str:
    """Return a trial's kernel, either stored or rendered again, or a message that says why it isn't available."""
    source = None if row.trial.source_hash is None else store.sources.get(row.trial.source_hash)
    if source is not None:
        return source
    again = rerender(row, families)
    return f"its text is not stored, and {row.trial.config.template} {again}" if isinstance(again, str) else again


def located(problem: Problem, families: Mapping[str, KernelTemplate]) -> Problem:
    """Give a stored problem its operation's folder, and so its reference, if one of the families has it."""
    of = (family.operation for family in families.values() if family.operation.name == problem.operation.name)
    declared = next(of, None)
    return problem if declared is None else make_problem(declared, problem.values)


def rerender(row: TrialRow, families: Mapping[str, KernelTemplate]) -> KernelSource | str:
    """Render a trial's kernel with its family as installed now, or return a message if that gives a different
    kernel.
    """
    source = render_current(row, families)
    if not isinstance(source, str) and row.trial.source_hash not in (None, source.hash):
        return "renders another kernel now"
    return source


def render_current(row: TrialRow, families: Mapping[str, KernelTemplate]) -> KernelSource | str:
    """Render a trial's config with its family as installed now, even if that gives a different kernel.

    Returns a message if the family can't render the config.
    """
    family = families.get(row.trial.config.template)
    if family is None:
        return "is not installed"
    current = family.current_config(row.trial.config)
    if current is None:
        return "has other parameters or values now"
    try:
        return render(BoundTemplate(family, row.problem, row.device), current)
    except Rejected as rejected:
        return f"refuses the config now: {rejected.message}"
