"""`autotune.importance`: which parameters decided how fast a layer's kernels were, family by family."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.api.studies import name_of
from autotune.errors import StoreError
from autotune.study import Study

if TYPE_CHECKING:
    from autotune.search.importance import Importance


@dataclass(frozen=True, slots=True)
class FamilyImportance:
    """What the trials of one family on one layer and device tell of its parameters."""

    layer: str
    """study.layer"""
    device: str
    template: str
    found: Importance


def importance(
    what: Study | str | Path, *, db: str | Path = "autotune.db", template: str | None = None
) -> tuple[FamilyImportance, ...]:
    """The importances of each layer of a study, or of one, for every family with at least 20 correct trials.

    Raises StoreError when there is none, or what is asked about was recorded elsewhere.
    """
    from autotune.replay.recorded_trials import stored_recordings
    from autotune.search.importance import importance as importance_of
    from autotune.store import Store

    name = name_of(what)
    with Store(db, create=False) as store:
        names = {row.layer.problem: row.name for row in store.studies.layers(name)}
        if not names:
            raise StoreError(
                f"{db}: {name} was recorded elsewhere with another kernel; "
                f"`autotune trials {name} --sort median` lists it"
            )
        recordings = stored_recordings(store, list(names))
    rows = tuple(
        FamilyImportance(names[problem], recording.name.partition(" on ")[2], space.template, found)
        for (problem, *_), recording in recordings.items()
        for space in recording.spaces
        if template in (None, space.template) and (found := importance_of(space, space.times_us))
    )
    if not rows:
        family = f"the family {template}" if template else "any family"
        raise StoreError(
            f"{db}: {name}: there are not 20 correct trials of {family}, too few to say anything; replayed ones count "
            f"where they were measured"
        )
    return rows
