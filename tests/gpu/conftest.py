"""One evaluator on the first GPU for the tests of a module."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.workers.device_worker import Deadlines

DEADLINE_S = 20.0  # limit of one evaluation; a correct one takes well under a second


@pytest.fixture(scope="module")
def gpu() -> Iterator[DeviceEvaluator]:
    evaluator = DeviceEvaluator(
        ["cuda:0"], len(os.sched_getaffinity(0)), deadlines=Deadlines(evaluate_s=DEADLINE_S, compile_s=120.0)
    )
    yield evaluator
    evaluator.close()
