"""The fastest trials of every layer and device: what the search of another layer may start from."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from autotune.store.columns import date_text
from autotune.store.records import Leader, Scope
from autotune.store.rows import config_of, device_of, problem_of
from autotune.store.tables import devices, layers, studies, study_layers, subjects, templates, trials

PER_FAMILY = 60
"""Fastest trials of a family on one layer and device."""


def list_leaders(
    connection: Connection, scope: Scope, kinds: Sequence[str], accuracies: Sequence[str], policy: str
) -> tuple[Leader, ...]:
    """The fastest trials of each layer, device and family that had ended when the scope's first trial began.

    That moment is what makes a resumed run start from the same trials as the run that it resumes. A study that was
    begun fresh sees only what was begun since.
    """
    own = (
        select(func.min(trials.c.started_at))
        .where(
            trials.c.study_id == scope.study.id,
            trials.c.subject_id == scope.subject_id,
            trials.c.device_id == scope.device_id,
            trials.c.policy == policy,
        )
        .scalar_subquery()
    )
    rank = func.row_number().over(
        partition_by=(trials.c.subject_id, trials.c.device_id, templates.c.family),
        order_by=(trials.c.median_us, trials.c.id),
    )
    ranked = (
        select(trials.c.id, rank.label("rank"))
        .join(devices, devices.c.id == trials.c.device_id)
        .join(templates, templates.c.id == trials.c.template_id)
        .where(
            trials.c.median_us > 0,
            trials.c.policy == policy,
            trials.c.accuracy.in_(accuracies),
            devices.c.kind.in_(kinds),
            (own.is_(None)) | (trials.c.ended_at <= own),
        )
    )
    if scope.study.fresh_since is not None:
        ranked = ranked.where(trials.c.started_at >= date_text(scope.study.fresh_since))
    best = ranked.subquery()
    name = (
        select(studies.c.name + "." + study_layers.c.name)
        .join(study_layers, study_layers.c.study_id == studies.c.id)
        .where(studies.c.id == trials.c.study_id, study_layers.c.subject_id == trials.c.subject_id)
        .limit(1)
        .scalar_subquery()
        .label("place")
    )
    statement = (
        select(trials, layers, devices, templates, name)
        .join(best, best.c.id == trials.c.id)
        .join(subjects, subjects.c.id == trials.c.subject_id)
        .join(layers, layers.c.id == subjects.c.layer_id)
        .join(devices, devices.c.id == trials.c.device_id)
        .join(templates, templates.c.id == trials.c.template_id)
        .where(best.c.rank <= PER_FAMILY)
        .order_by(trials.c.median_us, trials.c.id)
    )
    return tuple(
        Leader(row["place"] or "", problem_of(row), device_of(row), config_of(row), row[trials.c.median_us])
        for row in connection.execute(statement).mappings()
    )
