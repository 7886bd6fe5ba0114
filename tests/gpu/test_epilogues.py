"""Every activation on a GPU, whose approximate instructions the host device does not have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.space import BoundTemplate
from autotune.operation.registry import CONV2D, operation
from autotune.problem import Conv2dProblem
from tests.templates.shipped_families import default_of, family, verify

pytestmark = pytest.mark.gpu

PLAIN = Conv2dProblem(61, 64, 28, 28, 64, 3, 3, pad_h=1, pad_w=1)
CASES = {
    "implicit_gemm_sm90": replace(PLAIN, dtype="f16", layout="nhwc"),
    "implicit_gemm": PLAIN,
    "direct": replace(PLAIN, c=8, k=8),
    "mma_gemm": replace(PLAIN, dtype="bf16", layout="nhwc"),
    "depthwise_nhwc": replace(PLAIN, dtype="f16", layout="nhwc", groups=64),
}


@pytest.mark.parametrize("word", operation(CONV2D).words["epilogue"])
@pytest.mark.parametrize("name", CASES)
def test_epilogue_is_right(name: str, word: str, gpu: DeviceEvaluator) -> None:
    problem = replace(CASES[name], epilogue=word)
    if not BoundTemplate(family(name), problem, gpu.info).supported:
        pytest.skip("the family does not serve it")
    config = default_of(name, problem, gpu.info)
    assert config is not None
    verify(name, problem, config.params, gpu)
