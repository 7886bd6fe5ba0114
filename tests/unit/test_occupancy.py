"""Occupancy against NVIDIA's own calculator, and a few well-known values."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import numpy as np
import pytest

from autotune.compilation.toolchain import find_cxx, find_nvcc
from autotune.devices.device import DeviceInfo
from autotune.measurement.occupancy import residency
from tests.unit.tiny import DEVICE

CALCULATOR = r"""
#include <cstdio>
#include "cuda_occupancy.h"

int main() {
    int arch, warps, registers_per_sm, smem_per_sm, smem_per_block, threads, registers, smem;
    while (std::scanf("%d %d %d %d %d %d %d %d", &arch, &warps, &registers_per_sm, &smem_per_sm, &smem_per_block,
                      &threads, &registers, &smem) == 8) {
        cudaOccDeviceProp device;
        device.computeMajor = arch / 10;
        device.computeMinor = arch % 10;
        device.maxThreadsPerBlock = 1024;
        device.maxThreadsPerMultiprocessor = 32 * warps;
        device.regsPerBlock = registers_per_sm;
        device.regsPerMultiprocessor = registers_per_sm;
        device.warpSize = 32;
        device.sharedMemPerBlock = 48 * 1024;
        device.sharedMemPerMultiprocessor = smem_per_sm;
        device.numSms = 1;
        device.sharedMemPerBlockOptin = smem_per_block;
        device.reservedSharedMemPerBlock = arch >= 80 ? 1024 : 0;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024;
        kernel.numRegs = registers;
        kernel.sharedSizeBytes = 0;
        kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = smem_per_block;
        kernel.numBlockBarriers = 1;
        kernel.virtualResourceCount = 0;
        cudaOccDeviceState state;
        cudaOccResult result;
        const cudaOccError error =
            cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, smem);
        std::printf("%d\n", error == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -1 - error);
    }
}
"""


def gpu(arch: int, *, warps: int, blocks: int, smem_per_sm_kb: int) -> DeviceInfo:
    """A GPU with the limits of the CUDA programming guide's table of compute capabilities."""
    smem_per_sm = 1024 * smem_per_sm_kb
    return dataclasses.replace(
        DEVICE,
        kind="cuda",
        arch=arch,
        max_warps_per_sm=warps,
        max_blocks_per_sm=blocks,
        smem_per_sm_bytes=smem_per_sm,
        smem_per_block_bytes=smem_per_sm - 1024 if arch >= 80 else smem_per_sm,
    )


GPUS = {
    "V100": gpu(70, warps=64, blocks=32, smem_per_sm_kb=96),
    "T4": gpu(75, warps=32, blocks=16, smem_per_sm_kb=64),
    "A100": gpu(80, warps=64, blocks=32, smem_per_sm_kb=164),
    "RTX 3090": gpu(86, warps=48, blocks=16, smem_per_sm_kb=100),
    "L40": gpu(89, warps=48, blocks=24, smem_per_sm_kb=100),
    "H200": gpu(90, warps=64, blocks=32, smem_per_sm_kb=228),
    "B200": gpu(100, warps=64, blocks=32, smem_per_sm_kb=228),
    "RTX 5090": gpu(120, warps=48, blocks=24, smem_per_sm_kb=100),
}


@pytest.fixture(scope="module")
def calculator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVIDIA's calculator as a program that reads one case per line."""
    include = find_nvcc().resolve().parent.parent / "include"
    if not (include / "cuda_occupancy.h").is_file():
        pytest.skip(f"{include} has no cuda_occupancy.h; it comes with the CUDA runtime's headers")
    folder = tmp_path_factory.mktemp("occupancy")
    (folder / "calculator.cpp").write_text(CALCULATOR)
    program = folder / "calculator"
    subprocess.run([find_cxx(), "-I", include, "-o", program, folder / "calculator.cpp"], check=True)
    return program


@pytest.mark.cxx
@pytest.mark.nvcc
@pytest.mark.parametrize("name", GPUS)
def test_agrees_with_nvidias_calculator(calculator: Path, name: str) -> None:
    device = GPUS[name]
    rng = np.random.default_rng(device.arch)
    count = 2000
    threads = np.where(rng.random(count) < 0.5, 32 * rng.integers(1, 33, count), rng.integers(1, 1025, count))
    registers = rng.integers(1, 256, count)
    smem = rng.integers(0, device.smem_per_block_bytes + 4096, count) >> rng.integers(0, 18, count)
    cases = list(zip(threads.tolist(), registers.tolist(), smem.tolist(), strict=True))
    fixed = (
        f"{device.arch} {device.max_warps_per_sm} {device.registers_per_sm} {device.smem_per_sm_bytes} "
        f"{device.smem_per_block_bytes}"
    )
    lines = "".join(f"{fixed} {' '.join(map(str, case))}\n" for case in cases)
    done = subprocess.run([calculator], input=lines, capture_output=True, text=True, check=True)
    expected = [int(line) for line in done.stdout.split()]
    assert len(set(expected)) > 8
    for (block, used, bytes_), blocks in zip(cases, expected, strict=True):
        found = residency(device, threads=block, registers=used, smem_bytes=bytes_).blocks
        assert found == blocks, f"{name}: {block} threads, {used} registers, {bytes_} bytes"


@pytest.mark.parametrize(
    ("name", "threads", "registers", "smem_bytes", "share"),
    [
        ("H200", 256, 32, 0, 1.0),
        ("H200", 256, 64, 0, 0.5),
        ("H200", 256, 255, 0, 0.125),
        ("H200", 1024, 64, 0, 0.5),
        ("H200", 1024, 65, 0, 0.0),
        ("H200", 32, 16, 0, 0.5),
        ("H200", 128, 32, 113 * 1024, 2 * 4 / 64),
        ("H200", 128, 32, 227 * 1024, 4 / 64),
        ("H200", 128, 32, 227 * 1024 + 1, 0.0),
        ("T4", 1024, 32, 0, 1.0),
        ("T4", 64, 32, 32 * 1024, 2 * 2 / 32),
    ],
)
def test_known_values(name: str, threads: int, registers: int, smem_bytes: int, share: float) -> None:
    found = residency(GPUS[name], threads=threads, registers=registers, smem_bytes=smem_bytes).occupancy
    assert found == pytest.approx(share)
