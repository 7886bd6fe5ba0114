"""The trials that compare with one, each in the few columns that tell them apart: many in a moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, Select, and_, select

from autotune.store.configs import config_from
from autotune.store.measurements import measurements
from autotune.store.statements import tuples_of
from autotune.store.studies import studies
from autotune.store.templates import templates
from autotune.store.trials import trials, while_tuning
from autotune.trial import Config, Outcome, is_measured

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
            *(column.id, column.number, studies.c.id, templates.c.family, templates.c.hash, column.config),
            *(column.outcome, column.reason, column.message, column.accuracy),
            *(column.reused_trial_id, column.source_id, measurements.c.median_us),
        )
        .join(one, and_(one.c.id == trial_id, *same))
        .outerjoin(studies, studies.c.id == column.study_id)
        .outerjoin(templates, templates.c.id == column.template_id)
        .outerjoin(measurements, while_tuning())
        .where(column.outcome != str(Outcome.RUNNING))
        .order_by(column.id)
    )


def alike(connection: Connection, trial_id: int) -> Iterator[AlikeTrial]:
    """What `select_alike` finds. Raises ValueError or TypeError for a row that cannot be understood."""
    for row in tuples_of(connection, select_alike(trial_id)):
        own_id, number, study_id, family, template_hash, config, *said, copied, source, median_us = row
        word, reason, message, accuracy = said
        if study_id is None:
            raise ValueError(f"trial {own_id} is of a study that is not there")
        if median_us is not None and not is_measured(median_us):
            raise ValueError(f"median_us = {median_us} is no time")
        outcome = Outcome(word)
        yield AlikeTrial(
            own_id,
            number,
            study_id,
            template_hash,
            config_from(family, config),
            outcome,
            reason,
            message,
            accuracy,
            reused=copied is not None,
            rendered=source is not None,
            median_us=median_us if outcome == Outcome.CORRECT else None,
        )
