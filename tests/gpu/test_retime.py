"""Retiming on a GPU: a kernel that was just tuned is confirmed or nearly so, and a wrong kernel is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.analysis.retime import retime, top_trials
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.template_files import load_templates
from autotune.problem import Conv2dProblem, Layer
from autotune.store import Store
from autotune.study import Study
from autotune.tuning.tune import tune

pytestmark = pytest.mark.gpu

PROBLEM = Conv2dProblem(n=2000, c=1, h=70, w=70, k=12, r=5, s=5)
DOUBLE = 2.0  # a kernel of about 200 us does not take twice or half as long a minute later


def test_a_kernel_is_timed_again_where_it_was_tuned(gpu: DeviceEvaluator, tmp_path: Path) -> None:
    families = load_templates()
    study = Study("retimed", (Layer("conv1", PROBLEM),), trials=12, templates=("direct", "image_direct"))
    with Store(tmp_path / "one.db") as store:
        tune(study, families, gpu, store)
        (best,) = (row for row in store.best.list("retimed") if row.row.trial.deterministic)
        chosen = top_trials(store.trials.list(PROBLEM, generations="all"), gpu.info, [best.row], 3)
        retimed = list(retime(chosen, PROBLEM, gpu, store, families, budget_s=1.0))
        assert len(retimed) == len(chosen) >= 3
        assert retimed[0].before.trial.config == best.row.trial.config
        for one in retimed:
            assert one.retime.label in ("confirmed", "moved", "regressed")
            ratio = one.retime.ratio
            assert ratio is not None
            assert 1 / DOUBLE < ratio < DOUBLE, f"{one.before.trial.config}: {ratio}"
        assert [row.environment.driver for row in store.retimes.list("retimed")] == [gpu.environment.driver] * len(
            retimed
        )
