"""Measures what a device can do at most, to set results against (`autotune devices --calibrate`)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from autotune.compilation.compile import Binary, Program
from autotune.devices.device import Device, Launch, Passes

_SAMPLES = 7
_WARP_FLOP = {"tf32": 8 * 2048, "fp16": 8 * 4096}  # chains * FLOP of one step of a warp
_THREAD_FLOP = 2 * 16  # chains * FLOP of one step of a thread
_MEMORY_BYTES = {"cuda": 2 << 30, "host": 128 << 20}  # of each array; well past any cache
_STEPS = {"cuda": 4096, "host": 256}


def calibration_program() -> Program:
    """The kernels that `calibrate` runs."""
    text = (Path(__file__).parent / "calibrate.cu").read_text(encoding="utf-8")
    return Program(text, ("copy_memory", "fill_memory", "multiply_add", "multiply_tf32", "multiply_fp16"))


def calibrate(device: Device, binary: Binary) -> Mapping[str, float]:
    """Rates per second: bytes of `copy` (read plus written) and `fill`, FLOP of `fp32`, `tf32` and `fp16`.

    Tensor-core rates are measured on CUDA devices of 8.0 and newer only.
    """
    module = device.load(binary)
    kind = device.info.kind
    size_bytes = min(_MEMORY_BYTES[kind], device.info.memory_bytes // 8)
    to, source = device.allocate(size_bytes), device.allocate(size_bytes)
    device.fill(source, 1, size_bytes)
    device.fill(to, 1, size_bytes)
    blocks = 8 * device.info.sm_count
    pointer, count = np.uint64(to), np.int64(size_bytes // 16)

    def seconds(entry: str, *args: np.generic) -> float:
        launch = Launch(entry, (blocks, 1, 1), (256, 1, 1), 0, args)
        once = Passes(lambda: module.launch(launch))
        device.time(once, cold=False)
        return statistics.median(device.time(once, cold=False).us for _ in range(_SAMPLES)) / 1e6

    steps = _STEPS[kind]
    threads = blocks * 256
    rates = {
        "copy": 2 * size_bytes / seconds("copy_memory", pointer, np.uint64(source), count),
        "fill": size_bytes / seconds("fill_memory", pointer, np.float32(1.0), count),
        "fp32": threads * steps * _THREAD_FLOP / seconds("multiply_add", pointer, np.float32(0.5), np.int32(steps)),
    }
    if kind == "cuda" and device.info.arch >= 80:
        for unit, flop in _WARP_FLOP.items():
            rates[unit] = threads // 32 * steps * flop / seconds(f"multiply_{unit}", pointer, np.int32(steps))
    module.unload()
    device.free(to)
    device.free(source)
    return rates
