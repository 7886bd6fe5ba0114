"""A predicted config -> a kernel for an export: rendered now, and never run."""

from __future__ import annotations

from datetime import UTC, datetime

from autotune.devices.device import Environment
from autotune.exporting.selected_kernel import SelectedKernel
from autotune.family.render import render
from autotune.store import BestRow, TrialRow
from autotune.study import Study
from autotune.trial import Config, Outcome, Timing, Trial
from autotune.tuning.prediction import Predicted

_NEVER = datetime.fromtimestamp(0, UTC)


def predicted_kernel(study: Study, predicted: Predicted) -> SelectedKernel:
    """The kernel of a predicted config; its time is the prediction, 0 without one."""
    source = render(predicted.bound, predicted.config)
    template, predicted_us = predicted.bound.template, predicted.predicted_us or 0.0
    timing = Timing((), predicted_us, predicted_us, predicted_us, study.measure.cache)
    trial = Trial(
        number=0,
        config=Config.of(template.name, predicted.config.params),
        outcome=Outcome.RUNNING,
        source_hash=source.hash,
        accuracy=source.accuracy,
        deterministic=source.deterministic,
        timing=timing,
    )
    row = TrialRow(
        id=0,
        study=study.name,
        generation=1,
        layer=predicted.layer,
        device=predicted.bound.device,
        environment=Environment("", "", ""),
        measurement_mode=study.measure.cache,
        template_hash=template.hash,
        trial=trial,
        started_at=_NEVER,
        ended_at=None,
        reused=False,
        attempts=0,
    )
    best = BestRow(study.name, predicted.layer, timing, "prediction", row)
    return SelectedKernel(best, source, template.header, study.admitted(predicted.layer.problem), None)
