"""One study of every fault planted in a family, and a run that is killed: no fault stops a run or leaves anything
behind.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.workers.device_worker import Deadlines
from tests.faulty_study import (
    FAMILY,
    nothing_is_left_of_a_run_killed_in_an_endless_kernel,
    study_with_every_fault,
)
from tests.gpu.test_faults import COMPILE_DEADLINE_S, CUDA_FAULTS, DEADLINE_S, PROBLEM

pytestmark = pytest.mark.gpu


def test_study_with_every_fault_finds_the_good_family_and_leaves_nothing_behind(tmp_path: Path) -> None:
    deadlines = Deadlines(evaluate_s=DEADLINE_S, compile_s=COMPILE_DEADLINE_S)
    jobs = len(os.sched_getaffinity(0))
    found = study_with_every_fault(tmp_path, "cuda:0", PROBLEM, CUDA_FAULTS, jobs=jobs, deadlines=deadlines)
    assert found.endings.keys() == {FAMILY, *CUDA_FAULTS}
    assert {
        name: found.endings[name] for name, fault in CUDA_FAULTS.items() if found.endings[name].ending not in fault.cuda
    } == {}
    assert found.only_the_good_family_is_correct()
    assert not found.processes
    assert not found.files


def test_killed_run_takes_its_hanging_kernel_along(tmp_path: Path) -> None:
    assert nothing_is_left_of_a_run_killed_in_an_endless_kernel(tmp_path, "cuda:0")
