"""A recorded config rendered again by its family as it is installed now."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.errors import Rejected, StudyError
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.store import Store, TrialRow


def kernel_of(row: TrialRow, store: Store, families: Mapping[str, KernelTemplate]) -> KernelSource | str:
    """The very kernel of a trial, as stored or rendered again; else why it cannot be had."""
    stored = None if row.trial.source_hash is None else store.sources.get(row.trial.source_hash)
    if stored is not None:
        return stored
    again = rerender(row, families)
    return f"its text is not kept, and {row.trial.config.template} {again}" if isinstance(again, str) else again


def rerender(row: TrialRow, families: Mapping[str, KernelTemplate]) -> KernelSource | str:
    """The very kernel of a trial as its family renders it now; in words what the family does instead."""
    config = row.trial.config
    family = families.get(config.template)
    if family is None:
        return "is not installed"
    try:
        source = render(BoundTemplate(family, row.problem, row.device), config)
    except Rejected as rejected:
        return f"refuses the config by now: {rejected.message}"
    except StudyError:
        return "has other parameters by now"
    if row.trial.source_hash is not None and source.hash != row.trial.source_hash:
        return "renders another kernel by now"
    return source
