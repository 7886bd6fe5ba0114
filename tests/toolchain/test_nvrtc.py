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


@pytest.mark.parametrize("place", ["CUDA_HOME", "conda", "PATH", "LD_LIBRARY_PATH", "system"])
def test_nvrtc_is_found_wherever_toolkits_are(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("targets/x86_64-linux" if place == "conda" else "") / "lib64"
    link_nvrtc(folder.with_name("lib") if place == "conda" else folder, 13)
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.touch(mode=0o755)
    environ = {
        "CUDA_HOME": {"CUDA_HOME": str(tmp_path)},
        "conda": {"CONDA_PREFIX": str(tmp_path)},
        "PATH": {"PATH": str(nvcc.parent)},
        "LD_LIBRARY_PATH": {"LD_LIBRARY_PATH": f"/nonexistent:{folder}"},
        "system": {},
    }
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    nvrtc = find_nvrtc({"PATH": "", **environ[place]}, system=[folder] if place == "system" else [])
    assert folder.parent / "include" in nvrtc.includes


def test_code_is_compiled_by_a_cuda_that_the_driver_supports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for major in (12, 13):
        link_nvrtc(tmp_path / str(major), major)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    folders = [tmp_path / "13", tmp_path / "12"]
    for newest, name in ((None, "13/libnvrtc.so.13"), (14, "13/libnvrtc.so.13"), (12, "12/libnvrtc.so.12")):
        assert find_nvrtc({"PATH": ""}, newest=newest, system=folders).library._name == str(tmp_path / name)
    with pytest.raises(ToolchainError, match=r"NVRTC 12, the newest .* pip install nvidia-cuda-nvrtc-cu12,"):
        find_nvrtc({"PATH": ""}, newest=12, system=folders[:1])
    with pytest.raises(ToolchainError, match="the driver supports CUDA 11; install a driver for CUDA 12 or newer"):
        find_nvrtc({"PATH": ""}, newest=11, system=folders)


def link_nvrtc(folder: Path, major: int) -> None:
    """Put NVRTC into a folder, under the name of a major version of CUDA."""
    folder.mkdir(parents=True)
    (folder / f"libnvrtc.so.{major}").symlink_to(find_nvrtc().library._name)


def test_a_missing_nvrtc_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ToolchainError, match="it comes with PyTorch's CUDA wheels"):
        find_nvrtc({"PATH": ""}, system=[])
