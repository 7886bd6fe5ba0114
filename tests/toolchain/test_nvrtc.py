"""NVRTC compiles kernels as nvcc does, without a C++ compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.compilation.compile import Program
from autotune.compilation.nvrtc import compile_by_nvrtc, find_nvrtc
from autotune.errors import Rejected, ToolchainError
from tests.templates.test_families import default_source, golden_problem

pytestmark = pytest.mark.nvrtc

HALVES = """#include <cuda_fp16.h>
extern "C" __global__ void add(__half* y) {
    __shared__ __half tile[300];
    tile[threadIdx.x] = y[threadIdx.x] + y[0];
    __syncthreads();
    y[threadIdx.x] = tile[299 - threadIdx.x];
}
"""


@pytest.mark.parametrize("family", ["max_pool2d_rows", "norm_groups", "softmax_rows"])
def test_functions_and_annotations_that_only_nvcc_has_are_provided(family: str) -> None:
    program = default_source(family, golden_problem(family)).program
    binary = compile_by_nvrtc(program, 90, find_nvrtc())
    assert binary.entries == program.entries
    assert binary.resources.registers > 0


def test_cuda_headers_of_the_wheels_are_found() -> None:
    binary = compile_by_nvrtc(Program(HALVES, ("add",)), 75, find_nvrtc())
    assert binary.resources.static_smem_bytes == 600


def test_errors_have_their_line() -> None:
    with pytest.raises(Rejected, match=r'kernel\.cu\(1\): error: identifier "x" is undefined'):
        compile_by_nvrtc(Program('extern "C" __global__ void f() { x = 1; }', ("f",)), 90, find_nvrtc())


def test_a_missing_nvrtc_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ToolchainError, match="it comes with PyTorch's CUDA wheels"):
        find_nvrtc({}, system=Path("/nonexistent"))
