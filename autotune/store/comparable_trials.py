"""The trials that are comparable with a given one, with only the columns that comparisons need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, and_, select

from autotune.store.rows import record_of, rows_of
from autotune.store.schema.tables import templates, trials
from autotune.store.trials import config_of
from autotune.trial import Config, Outcome

CIRCUMSTANCES = ("tuning_target_id", "device_id", "environment_id", "measurement_mode", "origin")
"""the columns that two trials must share for their times to be comparable"""


@dataclass(frozen=True, slots=True)
class AlikeTrial:
    """A finished trial that is comparable with another one."""

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
    """copied from a trial that was measured earlier"""
    rendered: bool
    """whether it used an evaluation of the budget; otherwise its config was rejected before rendering"""
    median_us: float | None
    """of a correct trial"""


def select_alike(trial_id: int) -> Select[*tuple[Any, ...]]:
    """The finished trials with the same shape, device, environment, measurement mode and origin, in any study."""
    one = trials.alias("one")
    same = [trials.c[name] == one.c[name] for name in CIRCUMSTANCES]
    column = trials.c
    return (
        select(
            *(column.id, column.number, column.study_id, templates.c.family, templates.c.hash, column.config),
            *(column.outcome, column.reason, column.message, column.accuracy),
            *(column.reused_trial_id, column.source_id, column.median_us),
        )
        .join(one, and_(one.c.id == trial_id, *same))
        .join(templates, templates.c.id == column.template_id)
        .where(column.outcome != str(Outcome.RUNNING))
        .order_by(column.id)
    )


def alike(connection: Connection, trial_id: int) -> Iterator[AlikeTrial]:
    """The rows of `select_alike` as records."""
    for row in rows_of(connection, select_alike(trial_id)):
        yield record_of(
            *(AlikeTrial, row, trials),
            template_hash=row[templates.c.hash],
            config=config_of(row),
            outcome=Outcome(row[trials.c.outcome]),
            reused=row[trials.c.reused_trial_id] is not None,
            rendered=row[trials.c.source_id] is not None,
        )
