"""Families that copy by `cp.async` are also wrong on the host device if they do not wait for their copies."""

from __future__ import annotations

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import BoundTemplate
from autotune.problem import Problem
from autotune.trial import Config
from tests.long_run import every

from .shipped_families import H200, default_of, family, refuses_changed, supported

WAITING = ("depthwise_strips", "direct_strip", "gemm_mma", "image_direct", "mma_gemm", "mma_toeplitz")
"""The default configs of these families wait for copies of their own threads."""
WAIT = "copy_async_wait<"


def waiting_config(name: str) -> tuple[Problem, Config]:
    """The first awkward problem on which a family's default config waits, and that config."""
    for problem in supported(name).values():
        config = default_of(name, problem)
        if config and WAIT in render(BoundTemplate(family(name), problem, H200), config).program.text:
            return problem, config
    raise AssertionError(f"{name} waits nowhere")


@pytest.mark.cxx
@pytest.mark.parametrize("name", every(3, WAITING))
def test_a_kernel_that_leaves_all_copies_under_way_is_refused(name: str, checked: DeviceEvaluator) -> None:
    problem, config = waiting_config(name)
    assert refuses_changed(name, problem, config.params, (WAIT, f"{WAIT}64 + "), checked)
