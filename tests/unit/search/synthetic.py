"""Synthetic kernel spaces with known optima: analytic models of GPU kernels with the cliffs of real ones.

Each model multiplies effects that interact (occupancy from threads, registers and shared memory; waves; vector width;
halo and redundancy; bank conflicts; instruction overhead) and adds fixed noise of 1 %. Configs that need too many
registers or threads fail, and no constraint tells the search which ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.trial import Outcome, Value
from tests.recorded_spaces import Record, Recording, recording_of

Column = npt.NDArray[np.float64]
Columns = Mapping[str, Column]

NOISE = 0.01
"""Standard deviation of the log time, a draw per config."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """The few figures of a GPU that the models use."""

    sms: int
    regs: int = 65536
    smem: int = 102400
    block_smem: int = 49152
    threads: int = 1536
    need: float = 0.5
    """occupancy that hides all latency at an instruction-level parallelism of 1"""


GPUS = {
    "small": Gpu(sms=28, smem=65536, threads=1024, need=0.4),
    "large": Gpu(sms=108, smem=167936, threads=2048, need=0.35),
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """Parameters, declared constraints and the model of one synthetic kernel."""

    params: Mapping[str, Sequence[int]]
    feasible: Callable[[Columns, Gpu], npt.NDArray[np.bool_]]
    model: Callable[[Columns, Gpu], tuple[Column, npt.NDArray[np.bool_]]]
    """time in microseconds, and which configs fail"""


def occupancy(gpu: Gpu, threads: Column, regs: Column, smem: Column) -> Column:
    """Resident threads divided by the SM's maximum; 0 if not even one block fits."""
    warps = np.ceil(threads / 32)
    by_regs = np.floor(gpu.regs / (np.ceil(np.minimum(regs, 255) / 8) * 8 * 32 * warps))
    by_smem = np.floor(gpu.smem / np.maximum(smem + 1024, 1))
    by_threads = np.floor(gpu.threads / (warps * 32))
    blocks = np.minimum(np.minimum(by_regs, by_smem), np.minimum(by_threads, 24))
    return blocks * warps * 32 / gpu.threads


def hiding(gpu: Gpu, occ: Column, ilp: Column) -> Column:
    """Fraction of peak throughput that occupancy and instruction-level parallelism allow."""
    fraction: Column = (
        np.minimum(1.0, np.maximum(occ * (1 + 0.45 * np.log2(np.maximum(ilp, 1))) / gpu.need, 0.02)) ** 0.8
    )
    return fraction


def tail(gpu: Gpu, blocks: Column, resident: Column) -> Column:
    """Waves rounded up over waves."""
    waves = blocks / np.maximum(gpu.sms * resident, 1)
    rounded: Column = np.ceil(np.maximum(waves, 1e-9)) / np.maximum(waves, 1e-9)
    return rounded


def _resident(gpu: Gpu, occ: Column, threads: Column) -> Column:
    resident: Column = np.maximum(np.round(occ * gpu.threads / (np.ceil(threads / 32) * 32)), 1)
    return resident


def _coalescing(block_x: Column, vector: Column | float = 1.0) -> Column:
    return np.maximum(1.0, 32 / (block_x * vector)) ** 0.6


def _stencil(p: Columns, gpu: Gpu) -> tuple[Column, npt.NDArray[np.bool_]]:
    bx, by, tx, ty, tf, un = (p[k] for k in ("block_x", "block_y", "tile_x", "tile_y", "temporal", "unroll"))
    w, h = bx * tx, by * ty
    smem = (w + 2 * tf) * (h + 2 * tf) * 4 * (2 + p["sh_power"])
    regs = 22 + 3.2 * tx * ty + 2 * un + 4 * (1 - p["sh_power"])
    threads = bx * by
    occ = occupancy(gpu, threads, regs, smem)
    redundant = (w + 2 * tf) * (h + 2 * tf) / (w * h)
    memory = redundant / tf * _coalescing(bx) * (1 + 0.25 * (1 - p["sh_power"]))
    compute = 0.34 * redundant * (1 + 0.35 / un) * np.maximum(1, 32 / threads) * (1 + 0.04 * ((bx % 32) != 0))
    spill = 1 + np.maximum(0, regs - 168) / 60
    eff = hiding(gpu, occ, np.minimum(tx * ty, 6))
    blocks = 4096 * 4096 / (w * h)
    time = 900 * (np.maximum(memory, compute) + 0.3 * np.minimum(memory, compute)) * spill / eff
    return time * tail(gpu, blocks, _resident(gpu, occ, threads)) ** 0.5, (occ <= 0) | (regs * threads > gpu.regs)


def _gemm(p: Columns, gpu: Gpu) -> tuple[Column, npt.NDArray[np.bool_]]:
    bm, bn, bk, dm, dn = (p[k] for k in ("bm", "bn", "bk", "dim_m", "dim_n"))
    vm, vn, sa, sb = (p[k] for k in ("vec_m", "vec_n", "share_a", "share_b"))
    tm, tn = bm / dm, bn / dn
    threads = dm * dn
    regs = 28 + 1.1 * tm * tn + tm + tn + 2 * (vm + vn) * (1 + 0.2 * (bk > 16))
    smem = 4 * bk * (sa * bm + sb * bn)
    occ = occupancy(gpu, threads, regs, smem)
    per_flop = (tm + tn) / (tm * tn)
    conflict = 1 + 0.22 * sa * (vm == 1) * (tm > 2) + 0.18 * sb * (vn == 8)
    lds = 1.9 * per_flop * conflict * (1 + 0.6 * (1 - sa) + 0.5 * (1 - sb))
    dram = 70 * (1 / bm + 1 / bn) / np.minimum(4, np.sqrt(vm * vn) + 0.6) * (1 + 0.3 * (sa * sb == 0))
    barrier = 0.10 * (16 / bk) * (1 + threads / 512)
    loads = 1 + 0.15 * np.abs(np.log2(p["dim_a"] / dm)) * sa + 0.12 * np.abs(np.log2(p["dim_b"] / dn)) * sb
    spill = 1 + np.maximum(0, regs - 200) / 40
    blocks = 4096 * 4096 / (bm * bn)
    time = 3000 * (1 + lds + dram * loads + barrier) * spill / hiding(gpu, occ, np.minimum(tm * tn / 4, 8))
    return time * tail(gpu, blocks, _resident(gpu, occ, threads)), (occ <= 0) | (regs * threads > gpu.regs)


def _gemm_feasible(p: Columns, gpu: Gpu) -> npt.NDArray[np.bool_]:
    rows = p["dim_m"] * p["dim_n"]
    fits: npt.NDArray[np.bool_] = (
        (p["bm"] % (p["dim_m"] * p["vec_m"]) == 0)
        & (p["bn"] % (p["dim_n"] * p["vec_n"]) == 0)
        & (p["bm"] % (p["dim_a"] * p["vec_m"]) == 0)
        & (p["bn"] % (p["dim_b"] * p["vec_n"]) == 0)
        & (p["bk"] % (rows / p["dim_a"]) == 0)
        & (p["bk"] % (rows / p["dim_b"]) == 0)
        & (4 * p["bk"] * (p["share_a"] * p["bm"] + p["share_b"] * p["bn"]) <= gpu.block_smem)
    )
    return fits


def _dedispersion(p: Columns, gpu: Gpu) -> tuple[Column, npt.NDArray[np.bool_]]:
    bx, by, tx, ty, sx, sy = (p[k] for k in ("block_x", "block_y", "tile_x", "tile_y", "stride_x", "stride_y"))
    threads = bx * by
    regs = 18 + 2.6 * tx * ty + 3 * sx + 2 * sy
    occ = occupancy(gpu, threads, regs, np.zeros_like(threads))
    memory = _coalescing(bx, np.where(sx == 1, 1, 1 / tx)) * (0.35 + 1.2 / (by * ty) ** 0.35 + 0.5 / tx)
    cache = 1 + 0.25 * np.maximum(0, np.log2(by * ty / 512)) + 0.12 * sy * (ty > 3)
    remainder = np.ceil(2048 / (by * ty)) * by * ty / 2048 * np.ceil(25000 / (bx * tx)) * bx * tx / 25000
    warp = np.ceil(threads / 32) * 32 / threads
    time = 8000 * memory * cache * remainder * warp / hiding(gpu, occ, np.minimum(tx * ty, 8))
    return time, (occ <= 0) | (regs * threads > gpu.regs)


def _expdist(p: Columns, gpu: Gpu) -> tuple[Column, npt.NDArray[np.bool_]]:
    bx, by, tx, ty, shared, un, column, nb = (
        p[k] for k in ("block_x", "block_y", "tile_x", "tile_y", "shared", "unroll", "column", "blocks_y")
    )
    threads = bx * by
    regs = 30 + 2.2 * tx * ty + 1.5 * un * (1 + 0.3 * tx)
    smem = shared * 8 * (bx * tx + by * ty) * 2 + 8 * threads / 4
    occ = occupancy(gpu, threads, regs, smem)
    loop = 1 + 0.5 / np.minimum(un, ty) + 0.07 * np.maximum(0, un - ty)
    fetch = 0.8 / tx + 0.8 / ty + np.where(shared == 1, 0.05 * np.log2(threads), 0.35 * np.where(column == 1, 0.6, 1.0))
    reduce = 0.04 * np.log2(threads) + 0.3 / tx + 0.02 * nb / 64 * column
    rows = np.where(column == 1, nb, 2000 / (by * ty))
    parallel = tail(gpu, np.maximum(1, 2000 / (bx * tx)) * rows, _resident(gpu, occ, threads))
    skew = 1 + 0.25 * column * np.abs(np.log2(nb / 64)) * 0.5
    time = 1500 * loop * (1 + fetch) * (1 + reduce) * skew * parallel**0.7 / hiding(gpu, occ, tx)
    return time, (occ <= 0) | (regs > 255) | (regs * threads > gpu.regs)


def _transpose(p: Columns, gpu: Gpu) -> tuple[Column, npt.NDArray[np.bool_]]:
    tile, rows, vec, pad = p["tile"], p["rows"], p["vector"], p["pad"]
    threads = tile / vec * rows
    smem = 4 * tile * (tile + pad) * p["buffers"]
    regs = 16 + 2 * (tile / rows) * vec / p["unroll"] + 2 * p["unroll"]
    occ = occupancy(gpu, threads, regs, smem)
    way = np.gcd((tile + pad).astype(np.int64) * vec.astype(np.int64), 32).astype(np.float64)
    conflict = 1 + 0.08 * (way - 1)
    swizzled = np.where(p["swizzle"] == 1, 1.06, conflict)
    ldg = 1 + 0.10 * (1 - p["readonly"]) * (vec == 1)
    work = _coalescing(tile, 1.0) * swizzled * ldg * (1 + 0.25 / p["unroll"]) * (1 + 0.1 / vec)
    blocks = 8192 * 8192 / tile**2 / p["batch"]
    launch = 1 + 0.3 / p["batch"] * (tile < 64) + 0.15 * np.maximum(0, np.log2(p["batch"] / 4))
    ilp = np.minimum(tile / rows, 8) * p["buffers"] ** 0.4
    time = 700 * work * launch / hiding(gpu, occ, ilp)
    return time * tail(gpu, blocks, _resident(gpu, occ, threads)), (occ <= 0) | (smem > gpu.block_smem)


def _direct(p: Columns, gpu: Gpu) -> tuple[Column, npt.NDArray[np.bool_]]:
    bp, bq, cp, cq, ck, im = (p[k] for k in ("block_p", "block_q", "per_p", "per_q", "per_k", "images"))
    taps = 25.0
    threads = bp * bq
    unroll = p["unroll"]  # 0 none, 1 the columns, 2 the window, 3 everything
    regs = 20 + 1.2 * cp * cq * ck + np.where(unroll >= 2, 0.5 * (cq + 4) * ck, 4) + np.where(unroll == 3, 14, 0)
    rows, columns = bp * cp + 4, bq * cq + 4
    smem = 4 * rows * columns * im + np.where(p["filters"] == 2, 4 * taps * ck * 8, 0)
    occ = occupancy(gpu, threads, regs, smem)
    halo = rows * columns / (bp * cp * bq * cq)
    per_output = 1 / ck + 0.35 / (cp * cq) + np.choose(p["filters"].astype(int), [0.5, 0.12, 0.25]) / (cp * cq)
    issue = 1 + np.choose(unroll.astype(int), [0.9, 0.4, 0.12, 0.05]) + np.where((unroll == 3) & (ck >= 4), 0.5, 0)
    edge = np.ceil(66 / (bp * cp)) * bp * cp / 66 * np.ceil(66 / (bq * cq)) * bq * cq / 66
    warp = np.ceil(threads / 32) * 32 / threads
    spill = 1 + np.maximum(0, regs - 128) / 50
    eff = hiding(gpu, occ, np.minimum(cp * cq * ck / 2, 8))
    memory = 0.5 * halo / ck * _coalescing(bq) * (1 + 0.2 / im)
    return 800 * edge * warp * (issue * per_output + memory) * spill / eff, (occ <= 0) | (regs > 240)


def _block(p: Columns, least: int, most: int) -> npt.NDArray[np.bool_]:
    threads = p["block_x"] * p["block_y"]
    return (threads >= least) & (threads <= most)


KERNELS: Mapping[str, Kernel] = {
    "stencil": Kernel(
        {
            "block_x": [1, 2, 4, 8, 16, *range(32, 513, 32)],
            "block_y": [1, 2, 4, 8, 16, 32],
            "tile_x": [1, 2, 3, 4, 5, 6, 7, 8],
            "tile_y": [1, 2, 3, 4, 5, 6, 7, 8],
            "temporal": [1, 2, 3, 4, 5, 6, 8],
            "unroll": [1, 2, 3, 4, 5, 6, 8],
            "sh_power": [0, 1],
        },
        lambda p, gpu: (
            _block(p, 32, 1024)
            & (p["temporal"] % p["unroll"] == 0)
            & (
                (p["block_x"] * p["tile_x"] + 2 * p["temporal"])
                * (p["block_y"] * p["tile_y"] + 2 * p["temporal"])
                * (2 + p["sh_power"])
                * 4
                <= gpu.block_smem
            )
        ),
        _stencil,
    ),
    "gemm": Kernel(
        {
            "bm": [16, 32, 64, 128],
            "bn": [16, 32, 64, 128],
            "bk": [16, 32],
            "dim_m": [8, 16, 32],
            "dim_n": [8, 16, 32],
            "dim_a": [8, 16, 32],
            "dim_b": [8, 16, 32],
            "vec_m": [1, 2, 4, 8],
            "vec_n": [1, 2, 4, 8],
            "share_a": [0, 1],
            "share_b": [0, 1],
        },
        _gemm_feasible,
        _gemm,
    ),
    "dedispersion": Kernel(
        {
            "block_x": [1, 2, 4, 8, 16, 32],
            "block_y": [4, 8, *range(16, 257, 16)],
            "tile_x": [1, 2, 3, 4],
            "tile_y": [1, 2, 3, 4, 5, 6, 7, 8],
            "stride_x": [0, 1],
            "stride_y": [0, 1],
        },
        lambda p, gpu: (
            _block(p, 32, 1024)
            & ((p["tile_x"] > 1) | (p["stride_x"] == 0))
            & ((p["tile_y"] > 1) | (p["stride_y"] == 0))
        ),
        _dedispersion,
    ),
    "expdist": Kernel(
        {
            "block_x": [32, 64, 128, 256, 512, 1024],
            "block_y": [1, 2, 4, 8, 16, 32],
            "tile_x": [1, 2, 3, 4, 5, 6, 7, 8],
            "tile_y": [1, 2, 3, 4, 5, 6, 7, 8],
            "shared": [0, 1],
            "unroll": [1, 2, 3, 4, 5, 6, 7, 8],
            "column": [0, 1],
            "blocks_y": [1, 8, 32, 64, 128, 256],
        },
        lambda p, gpu: (
            _block(p, 64, 1024) & (p["tile_y"] % p["unroll"] == 0) & ((p["column"] == 1) | (p["blocks_y"] == 1))
        ),
        _expdist,
    ),
    "transpose": Kernel(
        {
            "tile": [16, 32, 48, 64, 96, 128],
            "rows": [1, 2, 4, 8, 16, 32],
            "vector": [1, 2, 4],
            "pad": [0, 1, 2, 4],
            "swizzle": [0, 1],
            "buffers": [1, 2],
            "unroll": [1, 2, 4, 8],
            "readonly": [0, 1],
            "batch": [1, 2, 4, 8, 16],
        },
        lambda p, gpu: (
            (p["tile"] % p["rows"] == 0)
            & (p["tile"] / p["rows"] % p["unroll"] == 0)
            & (p["tile"] / p["vector"] * p["rows"] <= 1024)
            & (p["tile"] / p["vector"] * p["rows"] >= 32)
            & ((p["swizzle"] == 0) | (p["pad"] == 0))
        ),
        _transpose,
    ),
    "direct": Kernel(
        {
            "block_p": [1, 2, 4, 8, 16],
            "block_q": [8, 16, 24, 32, 64],
            "per_p": [1, 2, 3, 4],
            "per_q": [1, 2, 4, 8],
            "per_k": [1, 2, 4, 6, 12],
            "images": [1, 2, 4, 8],
            "unroll": [0, 1, 2, 3],
            "filters": [0, 1, 2],
        },
        lambda p, gpu: (
            (p["block_p"] * p["block_q"] >= 32)
            & (p["block_p"] * p["block_q"] <= 1024)
            & (
                4 * (p["block_p"] * p["per_p"] + 4) * (p["block_q"] * p["per_q"] + 4) * p["images"] + 4800
                <= gpu.block_smem
            )
        ),
        _direct,
    ),
}


def synthetic(kernel: str, gpu: str, *, seed: int = 0) -> Recording:
    """The whole space of a synthetic kernel on a GPU, in the form of a recording."""
    spec, target = KERNELS[kernel], GPUS[gpu]
    product = np.array(list(itertools.product(*spec.params.values())), dtype=np.float64)
    columns = {name: product[:, i] for i, name in enumerate(spec.params)}
    product = product[spec.feasible(columns, target)]
    columns = {name: product[:, i] for i, name in enumerate(spec.params)}
    with np.errstate(all="ignore"):
        time, failed = spec.model(columns, target)
    time = time * np.exp(NOISE * np.random.default_rng(seed).standard_normal(len(time)))
    failure = (Outcome.RUNTIME, "resource_limit")
    records = []
    for row, time_us, fails in zip(product, time, failed | ~np.isfinite(time), strict=True):
        values: dict[str, Value] = {name: int(value) for name, value in zip(spec.params, row, strict=True)}
        records.append(Record(values, None, failure) if fails else Record(values, float(time_us), None))
    return recording_of(f"{kernel}-{gpu}", kernel, spec.params.items(), records)
