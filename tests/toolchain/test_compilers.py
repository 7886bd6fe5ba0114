"""What the compilers report is read right, and a missing one is reported with the way to get it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.compilation.compile import NVCC_FLAGS, Binary, Program, Target, compile_cubin, ptxas_resources
from autotune.compilation.toolchain import compiler_version, find_cxx, find_nvcc
from autotune.devices.opening import compile_program
from autotune.errors import Rejected, ToolchainError

KNOWN = """
__constant__ float table[100];
extern "C" __global__ void plain(float* y) { y[threadIdx.x] = table[threadIdx.x]; }
extern "C" __global__ void sharing(float* y) {
    __shared__ float tile[300];
    tile[threadIdx.x] = y[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[299 - threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(1024, MIN_BLOCKS) hoarding(float* y) {
    float kept[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) kept[i] = y[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; ++i) y[i * 1024 + threadIdx.x] = kept[63 - i] * kept[i];
}
"""
ENTRIES = ("plain", "sharing", "hoarding")


def compiled(min_blocks: int, arch: int) -> Binary:
    """100 floats of constant memory, 300 of shared, 64 registers a thread or 32 and spills."""
    return compile_cubin(Program(KNOWN.replace("MIN_BLOCKS", str(min_blocks)), ENTRIES), arch, find_nvcc())


def register_counts(image: bytes) -> list[int]:
    """Registers of each kernel as the cubin's own section `.nv.info` tells them, not ptxas -v."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", image, table + i * size) for i in range(count)]
    found = []
    for name, _, _, _, offset, length in headers:
        if not image.startswith(b".nv.info\0", headers[names][4] + name):
            continue
        at = offset
        while at < offset + length:
            form, attribute, value = struct.unpack_from("<BBH", image, at)
            if (form, attribute) == (4, 0x2F):  # EIATTR_REGCOUNT: symbol, registers
                found.append(struct.unpack_from("<II", image, at + 4)[1])
            at += 4 + (value if form == 4 else 0)
    return found


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", [75, 80, 90, 100, 120])
def test_resources_of_known_kernels(arch: int) -> None:
    resources = compiled(1, arch).resources
    assert resources.static_smem_bytes == 1200
    assert resources.constant_bytes == 400
    assert resources.spill_bytes == 0
    counts = register_counts(compiled(1, arch).image)
    assert len(counts) == len(ENTRIES)
    assert resources.registers == max(counts) >= 60


@pytest.mark.nvcc
def test_headers_left_out_change_no_cubin(tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_text(KNOWN.replace("MIN_BLOCKS", "1"))
    command = [str(find_nvcc()), *NVCC_FLAGS, "-arch=sm_90", "-cubin", "kernel.cu"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "kernel.cubin").read_bytes() == compiled(1, 90).image


@pytest.mark.nvcc
def test_spills_are_counted() -> None:
    resources = compiled(2, 90).resources
    assert resources.registers == 32
    assert resources.spill_bytes > 40


def test_ptxas_report_is_the_largest_over_the_kernels() -> None:
    resources = ptxas_resources(
        "ptxas info    : 0 bytes gmem\n"
        "ptxas info    : Compiling entry function 'a' for 'sm_90'\n"
        "    8 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem\n"
        "ptxas info    : Compiling entry function 'b' for 'sm_90'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 128 registers, used 0 barriers\n"
    )
    assert (resources.registers, resources.spill_bytes, resources.static_smem_bytes) == (128, 32, 1024)


@pytest.mark.nvcc
def test_products_of_four_warps_are_compiled_for_their_architecture_alone() -> None:
    text = 'extern "C" __global__ void fence() { asm volatile("wgmma.fence.sync.aligned;"); }\n'
    assert compile_cubin(Program(text, ("fence",)), 90, find_nvcc()).image
    with pytest.raises(Rejected, match="wgmma"):
        compile_cubin(Program(text, ("fence",)), 80, find_nvcc())


BROKEN = 'extern "C" __global__ void broken(float* y) {\n    const int i = threadIdx.x;\n    y[i] = nothing;\n}\n'


@pytest.mark.nvcc
def test_nvcc_error_names_the_line() -> None:
    with pytest.raises(Rejected, match=r"kernel\.cu\(3\): error: identifier \"nothing\" is undefined") as error:
        compile_cubin(Program(BROKEN, ("broken",)), 90, find_nvcc())
    assert (error.value.outcome, error.value.reason) == ("compile", "compile_error")
    assert "/tmp" not in error.value.message


@pytest.mark.cxx
def test_host_error_names_the_line() -> None:
    with pytest.raises(Rejected, match=r"kernel\.cu:3:\d+: error: .*nothing") as error:
        compile_program(Program(BROKEN, ("broken",)), Target("host"))
    assert (error.value.outcome, error.value.reason) == ("compile", "compile_error")


@pytest.mark.nvcc
def test_nvcc_version_is_read() -> None:
    name, version = compiler_version(find_nvcc()).split()
    assert name == "nvcc"
    assert len(version.split(".")) == 3


# ---- a compiler that is not there ----


def test_missing_cxx_compiler_says_how_to_get_one() -> None:
    with pytest.raises(ToolchainError, match=r"apt-get install g\+\+.*CXX"):
        find_cxx({"PATH": "/nonexistent"})


def test_cxx_variable_chooses_the_compiler(tmp_path: Path) -> None:
    own = tmp_path / "mycxx"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    assert find_cxx({"CXX": str(own), "PATH": os.environ["PATH"]}) == own


def test_cuda_home_comes_first(tmp_path: Path) -> None:
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\n")
    assert find_nvcc({"CUDA_HOME": str(tmp_path), "PATH": ""}) == nvcc


NO_CUDA = """
import sys
from pathlib import Path
sys.modules["cuda"] = None  # the CUDA wheels are not installed
from autotune.compilation.toolchain import find_nvcc
find_nvcc({"PATH": ""}, system=Path("/nonexistent"))
"""


def test_missing_nvcc_says_how_to_get_it() -> None:
    done = subprocess.run([sys.executable, "-c", NO_CUDA], capture_output=True, text=True, check=False)
    assert "ToolchainError: nvcc not found" in done.stderr
    assert "pip install 'autotune-conv[cuda13]'" in done.stderr


def test_compiler_without_an_answer_is_reported(tmp_path: Path) -> None:
    silent = tmp_path / "nvcc"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    with pytest.raises(ToolchainError, match="does not answer to --version"):
        compiler_version(silent)


def test_tuning_without_a_compiler_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "tune", "quickstart", "--device", "host", "--db", str(tmp_path / "r.db")],
        capture_output=True,
        text=True,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "CXX"} | {"PATH": "/nonexistent"},
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("autotune: no C++ compiler found")
    assert "apt-get install g++" in done.stderr
    assert "Traceback" not in done.stderr
