"""The trials that compare with one, each in the few columns that tell them apart: many in a moment."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, Select, and_, select

from autotune.store.measurements import measurements
from autotune.store.statements import rows_of
from autotune.store.templates import templates
from autotune.store.trials import config_of, trials, while_tuning
from autotune.trial import Config, Outcome

CIRCUMSTANCES = ("subject_id", "device_id", "environment_id", "policy", "origin")
"""what two trials have in common whose times compare"""


@dataclass(frozen=True, slots=True)
class AlikeTrial:
    """A finished trial that compares with another one."""

    id: int
    number: int
    study_id: int
    """of the study's generation"""
    template_hash: str
    config: Config
    outcome: Outcome
    reason: str
    message: str
    accuracy: str
    reused: bool
    """a copy of a trial measured earlier"""
    rendered: bool
    """it cost an evaluation of the budget; else its config was rejected before there was a source"""
    median_us: float | None
    """of a correct trial"""


def select_alike(trial_id: int) -> Select[*tuple[object, ...]]:
    """The finished trials of one's shape, device, environment, policy and origin, of any study."""
    one = trials.alias("one")
    same = [trials.c[name] == one.c[name] for name in CIRCUMSTANCES]
    column = trials.c
    return (
        select(
            *(column.id, column.number, column.study_id, templates.c.family, templates.c.hash, column.config),
            *(column.outcome, column.reason, column.message, column.accuracy),
            *(column.reused_trial_id, column.source_id, measurements.c.median_us),
        )
        .join(one, and_(one.c.id == trial_id, *same))
        .outerjoin(templates, templates.c.id == column.template_id)
        .outerjoin(measurements, while_tuning())
        .where(column.outcome != str(Outcome.RUNNING))
        .order_by(column.id)
    )


def alike(connection: Connection, trial_id: int) -> Iterator[AlikeTrial]:
    """What `select_alike` finds. Raises ValueError or TypeError for a row that cannot be understood."""
    column = trials.c
    for row in rows_of(connection, select_alike(trial_id)):
        median_us = row[measurements.c.median_us]
        if median_us is not None and not 0 < median_us < math.inf:
            raise ValueError(f"median_us = {median_us} is no time")
        outcome = Outcome(row[column.outcome])
        yield AlikeTrial(
            id=row[column.id],
            number=row[column.number],
            study_id=row[column.study_id],
            template_hash=row[templates.c.hash],
            config=config_of(row),
            outcome=outcome,
            reason=row[column.reason],
            message=row[column.message],
            accuracy=row[column.accuracy],
            reused=row[column.reused_trial_id] is not None,
            rendered=row[column.source_id] is not None,
            median_us=median_us if outcome == Outcome.CORRECT else None,
        )
