"""Activations on Hopper's tensor cores, whose accumulators leave few registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from autotune.compilation.compile import compile_cubin
from autotune.compilation.toolchain import find_nvcc
from autotune.family.render import render
from autotune.family.space import BoundTemplate
from autotune.operation.registry import CONV2D, operation
from autotune.problem import Conv2dProblem
from autotune.trial import Config, Value
from tests.exports import H200
from tests.long_run import every
from tests.templates.shipped_families import family

pytestmark = pytest.mark.nvcc

NAME = "implicit_gemm_sm90"
PROBLEM = Conv2dProblem(64, 256, 14, 14, 192, 3, 3, pad_h=1, pad_w=1, dtype="f16", layout="nhwc")
MOST_ACCUMULATORS: Mapping[str, Value] = {
    "tile_m": 64,
    "tile_n": 216,
    "schedule": "pingpong",
    "window_rows": 14,
    "folded": 1,
    "epilogue_subtiles": 1,
}


@pytest.mark.parametrize("word", every(7, reversed(operation(CONV2D).words["epilogue"])))
def test_no_activation_spills(word: str) -> None:
    template, problem = family(NAME), replace(PROBLEM, epilogue=word)
    values = {param.name: MOST_ACCUMULATORS.get(param.name, param.values[0]) for param in template.params}
    source = render(BoundTemplate(template, problem, H200), Config.of(NAME, values))
    resources = compile_cubin(source.program, H200.arch, find_nvcc()).resources
    assert (resources.spill_bytes, resources.registers) == (0, 168)
