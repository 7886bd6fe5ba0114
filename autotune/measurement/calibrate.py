"""Measure a device's maximum rates, against which results are compared (`autotune devices --calibrate`)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.compilation.compile import Binary, Program
from autotune.devices.device import MATRIX_TYPES, Device, Launch, Module, Passes, Rate
from autotune.errors import DeviceError

_GPU_BYTES, _CPU_BYTES = 2 << 30, 128 << 20  # size of each array; much larger than any cache
_THREADS = 256  # threads per block
_WARPS = _THREADS // 32
_TILE_BYTES = 4 * 16 * _THREADS  # bytes that a block of copy_ahead reads before it writes
_GPU_FFMA_STEPS, _CPU_FFMA_STEPS = 4096, 256
_FFMA_FLOP = 2 * 16  # FLOP of one thread's step: 2 FLOP in each of 16 chains
_BURST_SAMPLES, _SUSTAINED_SAMPLES = 7, 3
_SUSTAINED = 512  # multiplies the steps: 0.1 to 0.2 s per launch, 1 s in total, so that a GPU reaches its power limit
_MATRIX_SIZE = 8192  # rows and columns of the library's matrices: 1.1 TFLOP, 1 to 4 ms


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy kernel from `calibrate.cu`. The fastest one depends on the device."""

    entry: str
    method: str
    blocks_per_sm: int | None
    """None: one block per tile"""


def _method(words: str, blocks: int | None) -> str:
    return f"{words}, {f'{blocks} blocks an SM' if blocks else 'a block a tile'}"


_AHEAD = "4 x 16 bytes a thread"
_PLAIN_COPY = _Copy("copy_memory", "16 bytes a thread", 8)
_GRIDS = (2, 4, 8, None)  # blocks per SM; None: one block per tile
_COPIES = (
    _PLAIN_COPY,
    *(
        _Copy(entry, _method(words, blocks), blocks)
        for entry, words in (("copy_ahead", _AHEAD), ("copy_streamed", "4 x 16 bytes, streamed"))
        for blocks in _GRIDS
    ),
)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A tensor-core kernel from `calibrate.cu`, and the number of steps that take about 0.25 ms on an H200."""

    entry: str
    unit: str
    method: str
    blocks_per_sm: int
    steps: int
    warp_flop: int
    """FLOP of one warp's step"""


_MMA = (
    _Kernel("mma_tf32", "tf32", "mma.sync m16n8k8", 8, 512, 8 * 2 * 16 * 8 * 8),
    _Kernel("mma_f16", "fp16", "mma.sync m16n8k16", 8, 512, 8 * 2 * 16 * 8 * 16),
)
_WGMMA = (
    _Kernel("wgmma_tf32", "tf32", "wgmma m64n256k8", 1, 256, 8 * 2 * 64 * 256 * 8 // 4),
    _Kernel("wgmma_f16", "fp16", "wgmma m64n256k16 f16", 1, 256, 8 * 2 * 64 * 256 * 16 // 4),
    _Kernel("wgmma_bf16", "fp16", "wgmma m64n256k16 bf16", 1, 256, 8 * 2 * 64 * 256 * 16 // 4),
)
_MATRIX_UNITS = {"tf32": "tf32", "f16": "fp16", "bf16": "fp16"}


@dataclass(frozen=True, slots=True)
class Calibration:
    """The measured rates of a device."""

    rates: tuple[Rate, ...]
    left_out: str
    """the omitted cross-check and the reason; empty if no cross-check was omitted"""


def calibration_program() -> Program:
    """Return the program with the kernels that `calibrate` runs."""
    text = (Path(__file__).parent / "calibrate.cu").read_text(encoding="utf-8")
    tensor = (kernel.entry for kernel in (*_MMA, *_WGMMA))
    copies = dict.fromkeys(copy.entry for copy in _COPIES)
    return Program(text, (*copies, "read_memory", "fill_memory", "multiply_add", *tensor))


def calibrate(device: Device, binary: Binary) -> Calibration:
    """Measure the rates of memory, of FFMA and, from compute capability 8.0 on, of tensor cores.

    Tensor cores are measured with each of the device's matrix instructions, both in bursts of 0.25 ms, which is about
    as long as a layer's kernel, and for a second, during which the power limit reduces the rate. As a cross-check, a
    library's matrix product is measured too.
    """
    module = device.load(binary)
    try:
        rates = [*_memory(device, module), _ffma(device, module)]
        if not device.info.can.gpu or device.info.arch < 80:
            return Calibration(tuple(rates), "")
        kernels = (*_MMA, *_WGMMA) if device.info.arch == 90 else _MMA  # wgmma exists only on sm_90
        for kernel in kernels:
            per_s = _tensor_rate(device, module, kernel, kernel.steps, _BURST_SAMPLES)
            rates.append(Rate(kernel.unit, kernel.method, per_s))
        left_out = ""
        try:
            rates += _library(device)
        except DeviceError as error:
            left_out = f"no cross-check by cuBLAS: {error}"
        for kernel in kernels:
            per_s = _tensor_rate(device, module, kernel, _SUSTAINED * kernel.steps, _SUSTAINED_SAMPLES)
            rates.append(Rate(kernel.unit, f"{kernel.method}, sustained", per_s))
        return Calibration(tuple(rates), left_out)
    finally:
        module.unload()


def _seconds(device: Device, enqueue: Callable[[], None], samples: int) -> float:
    device.time(Passes(enqueue), cold=False)
    return statistics.median(device.time(Passes(enqueue), cold=False).us for _ in range(samples)) / 1e6


def _launch(module: Module, entry: str, blocks: int, *args: np.generic) -> Callable[[], None]:
    launch = Launch(entry, (blocks, 1, 1), (_THREADS, 1, 1), 0, args)
    return lambda: module.launch(launch)


def _memory(device: Device, module: Module) -> Iterator[Rate]:
    most_bytes = _GPU_BYTES if device.info.can.gpu else _CPU_BYTES
    size_bytes = min(most_bytes, device.info.memory_bytes // 8) // _TILE_BYTES * _TILE_BYTES
    to, source = device.allocate(size_bytes), device.allocate(size_bytes)
    device.fill(source, 1, size_bytes)
    device.fill(to, 1, size_bytes)
    count, tiles = np.int64(size_bytes // 16), np.int64(size_bytes // _TILE_BYTES)

    def grid(blocks_per_sm: int | None) -> int:
        return int(tiles) if blocks_per_sm is None else blocks_per_sm * device.info.sm_count

    on_gpu = device.info.can.gpu
    for copy in _COPIES if on_gpu else (_PLAIN_COPY,):
        steps = count if copy is _PLAIN_COPY else tiles
        enqueue = _launch(module, copy.entry, grid(copy.blocks_per_sm), np.uint64(to), np.uint64(source), steps)
        yield Rate("copy", copy.method, 2 * size_bytes / _seconds(device, enqueue, _BURST_SAMPLES))
    for blocks in _GRIDS if on_gpu else (8,):
        enqueue = _launch(module, "read_memory", grid(blocks), np.uint64(to), np.uint64(source), tiles)
        yield Rate("read", _method(_AHEAD, blocks), size_bytes / _seconds(device, enqueue, _BURST_SAMPLES))
    fill = _launch(module, "fill_memory", 8 * device.info.sm_count, np.uint64(to), np.float32(1.0), count)
    yield Rate("fill", _PLAIN_COPY.method, size_bytes / _seconds(device, fill, _BURST_SAMPLES))
    device.free(to)
    device.free(source)


def _ffma(device: Device, module: Module) -> Rate:
    to = device.allocate(4)
    steps = _GPU_FFMA_STEPS if device.info.can.gpu else _CPU_FFMA_STEPS
    blocks = 8 * device.info.sm_count
    enqueue = _launch(module, "multiply_add", blocks, np.uint64(to), np.float32(0.5), np.int32(steps))
    per_s = blocks * _THREADS * steps * _FFMA_FLOP / _seconds(device, enqueue, _BURST_SAMPLES)
    device.free(to)
    return Rate("fp32", "FFMA", per_s)


def _tensor_rate(device: Device, module: Module, kernel: _Kernel, steps: int, samples: int) -> float:
    to = device.allocate(4)
    blocks = kernel.blocks_per_sm * device.info.sm_count
    enqueue = _launch(module, kernel.entry, blocks, np.uint64(to), np.int32(steps))
    per_s = blocks * _WARPS * steps * kernel.warp_flop / _seconds(device, enqueue, samples)
    device.free(to)
    return per_s


def _library(device: Device) -> Iterator[Rate]:
    """Measure a library's matrix product. Raises DeviceError if the library isn't installed."""
    for dtype in MATRIX_TYPES:
        enqueue = device.matrix_product(dtype, _MATRIX_SIZE)
        per_s = 2 * _MATRIX_SIZE**3 / _seconds(device, enqueue, _BURST_SAMPLES)
        yield Rate(_MATRIX_UNITS[dtype], f"cuBLAS {_MATRIX_SIZE}^3 {dtype}", per_s)
