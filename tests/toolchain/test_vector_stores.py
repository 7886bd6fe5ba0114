"""An access of a vector stays one instruction: nvcc splits a store through a cast pointer to neighbours into single
ones.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.compilation.compile import nvcc_options
from autotune.compilation.toolchain import find_nvcc
from autotune.family.render import render
from autotune.family.space import BoundTemplate
from autotune.operation.registry import operation
from autotune.problem import make_problem
from autotune.trial import Config, Value
from tests.templates.shipped_families import H200, family

pytestmark = pytest.mark.nvcc
WINDOWS = {"n": 2, "c": 16, "h": 32, "w": 32, "r": 3, "s": 3, "stride_h": 2, "stride_w": 2, "pad_h": 1, "pad_w": 1}


@pytest.mark.parametrize(
    ("name", "problem", "params"),
    [
        ("stencil_rows", {"n": 2, "h": 64, "w": 512}, {"vector": 4, "rows": 2}),
        ("max_pool2d_rows", {**WINDOWS, "layout": "nhwc", "dtype": "f16"}, {"vector": 8}),
        ("max_pool2d_rows", {**WINDOWS, "layout": "nchw"}, {"vector": 4, "thread_q": 4}),
        (
            "concat_rows",
            {"n": 99999, "c0": 64, "c1": 32, "dtype": "f16", "epilogue": "weight_bias"},
            {"vector": 8, "thread_rows": 4},
        ),
        ("gate_rows", {"n": 64, "pixels": 99, "c": 64, "dtype": "f16"}, {"vector": 8, "thread_pixels": 4}),
        ("softmax_rows", {"rows": 8, "columns": 1024, "dtype": "bf16"}, {"vector": 8, "keep": "inputs"}),
    ],
)
def test_outputs_are_written_as_vectors(
    name: str, problem: Mapping[str, Value], params: Mapping[str, Value], tmp_path: Path
) -> None:
    """All are 16 bytes."""
    of = family(name)
    bound = BoundTemplate(of, make_problem(operation(of.operation.name), problem), H200)
    values = {param.name: param.values[0] for param in of.params} | dict(params)
    program = render(bound, Config.of(name, values)).program
    source, image = tmp_path / "kernel.cu", tmp_path / "kernel.ptx"
    source.write_text(program.text)
    subprocess.run([find_nvcc(), *nvcc_options(program, H200.arch), "-ptx", "-o", image, source], check=True)
    ptx = image.read_text()
    stores = set(re.findall(r"\bst\.global\S*", ptx))
    assert stores, ptx
    assert all(".v4." in store for store in stores), stores
