"""Matrix products of a warp, and their operands, against plain ones; .tf32 fragments have the PTX ISA's layout."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from autotune.devices.device import Order
from autotune.devices.host_runtime import ORDERS
from autotune.errors import Rejected

from .kernels import Bench

TF32 = """
#include <autotune_host_ptx.h>
extern "C" __global__ void multiply(const float* a, const float* b, const float* c, float* d, int round) {
    const int group = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32;
    a += warp * 128, b += warp * 64, c += warp * 128, d += warp * 128;
    float fa[4] = {a[group * 8 + t], a[(group + 8) * 8 + t], a[group * 8 + t + 4], a[(group + 8) * 8 + t + 4]};
    float fb[2] = {b[t * 8 + group], b[(t + 4) * 8 + group]};
    float fc[4];
    for (int i = 0; i < 4; ++i) fc[i] = c[(group + i / 2 * 8) * 8 + 2 * t + i % 2];
    if (round) {
        for (float& value : fa) value = to_tf32(value);
        for (float& value : fb) value = to_tf32(value);
    }
    mma_m16n8k8_tf32(fc, fa, fb, fc);  // DEPTH 8
    for (int i = 0; i < 4; ++i) d[(group + i / 2 * 8) * 8 + 2 * t + i % 2] = fc[i];
}
"""

HALF = TF32.replace(
    "mma_m16n8k8_tf32(fc, fa, fb, fc);  // DEPTH 8",
    "const float half[2] = {fa[0], fa[1]}; mma_m16n8k4_tf32(fc, half, fb[0], fc);",
)
"""Of the same matrices, the first four columns of a and rows of b."""

Floats = npt.NDArray[np.float32]


def operands(seed: int) -> tuple[Floats, Floats, Floats]:
    """Matrices a, b and c for two warps."""
    rng = np.random.default_rng(seed)
    shapes = ((2, 16, 8), (2, 8, 8), (2, 16, 8))
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return a, b, c


def without_last_bits(values: Floats) -> Floats:
    """The ten fraction bits that a tensor core uses."""
    return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def to_nearest(values: Floats) -> Floats:
    """The nearest value with ten fraction bits, ties away from zero."""
    return without_last_bits((values.view(np.uint32) + np.uint32(0x1000)).view(np.float32))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("rounding", "operand"), [(0, without_last_bits), (1, to_nearest)])
@pytest.mark.parametrize(("text", "depth"), [(TF32, 8), (HALF, 4)], ids=["m16n8k8", "m16n8k4"])
def test_tf32_product(
    bench: Bench, order: Order, rounding: int, operand: Callable[[Floats], Floats], text: str, depth: int
) -> None:
    a, b, c = operands(ORDERS.index(order))
    arguments = (a, b, c, np.zeros_like(c), np.int32(rounding))
    *_, d = bench.run(text, "multiply", arguments, block=64, order=order)
    expected = operand(a)[:, :, :depth].astype(np.float64) @ operand(b)[:, :depth].astype(np.float64) + c
    np.testing.assert_array_less(np.abs(d), np.abs(expected) * (1 + 1e-15))  # sums are truncated, never rounded up
    np.testing.assert_array_less(np.abs(expected) * (1 - 2.0**-22), np.abs(d))


def test_small_integers_are_exact(bench: Bench) -> None:
    rng = np.random.default_rng(7)
    a, b, c = (rng.integers(-2, 3, x.shape).astype(np.float32) for x in operands(0))
    *_, d = bench.run(TF32, "multiply", (a, b, c, np.zeros_like(c), np.int32(1)), block=64)
    np.testing.assert_array_equal(d, a @ b + c)


def test_rounding_to_tf32(bench: Bench) -> None:
    text = """
    #include <autotune_host_ptx.h>
    extern "C" __global__ void round(const float* x, float* y) { y[threadIdx.x] = to_tf32(x[threadIdx.x]); }
    """
    ulp = 2.0**-10
    pairs: list[tuple[float, float]] = [
        (1 + ulp / 2, 1 + ulp),  # a tie rounds away from zero
        (-1 - ulp / 2, -1 - ulp),
        (1 + ulp * 0.499, 1),
        (3.4e38, 3.4e38),
        (0, 0),
        (np.inf, np.inf),
        (-np.inf, -np.inf),
        (np.nan, np.nan),
    ]
    x = np.array([x for x, _ in pairs], np.float32)
    x = np.append(x, np.array([0xFFFFFFFF], np.uint32).view(np.float32))  # the poison of an unwritten output
    _, y = bench.run(text, "round", (x, np.zeros_like(x)), block=len(x))
    expected = np.array([y for _, y in pairs], np.float64)
    np.testing.assert_allclose(y[:-1].astype(np.float64), expected, rtol=2.0**-11)
    np.testing.assert_array_equal(y[:3], expected[:3])
    assert np.isnan(y[-1].astype(np.float64))


def test_a_product_that_a_lane_stays_away_from_is_reported(bench: Bench) -> None:
    text = TF32.replace("const int group", "if (threadIdx.x == 40) return;\n    const int group")
    a, b, c = operands(0)
    with pytest.raises(Rejected, match="needs all 32 lanes, and 0xfffffeff came"):
        bench.run(text, "multiply", (a, b, c, np.zeros_like(c), np.int32(0)), block=64)


HALVES = """
#include <autotune_host_ptx.h>
extern "C" __global__ void multiply(const unsigned short* a, const unsigned short* b, const float* c, float* d) {
    const int group = threadIdx.x / 4, t = threadIdx.x % 4;
    const auto a_at = [&](int row, int k) { return a[row * 16 + k] | unsigned{a[row * 16 + k + 1]} << 16; };
    const auto b_at = [&](int k) { return b[k * 8 + group] | unsigned{b[(k + 1) * 8 + group]} << 16; };
    float fc[4];
    for (int i = 0; i < 4; ++i) fc[i] = c[(group + i / 2 * 8) * 8 + 2 * t + i % 2];
    const int k = 2 * t;
    const unsigned fa[4] = {a_at(group, k), a_at(group + 8, k), a_at(group, k + 8), a_at(group + 8, k + 8)};
    const unsigned fb[2] = {b_at(k), b_at(k + 8)};
    mma_m16n8k16_KIND(fc, fa, fb, fc);
    for (int i = 0; i < 4; ++i) d[(group + i / 2 * 8) * 8 + 2 * t + i % 2] = fc[i];
}
"""


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("depth", [16, 8])
def test_half_product(bench: Bench, kind: str, depth: int) -> None:
    rng = np.random.default_rng(depth)
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 16), (16, 8), (16, 8)))
    text = HALVES.replace("KIND", kind)
    if depth == 8:
        text = text.replace("k16", "k8").replace("(fc, fa, fb, fc)", "(fc, {fa[0], fa[1]}, fb[0], fc)")
    if kind == "f16":
        a_bits, b_bits = (x.astype(np.float16).view(np.uint16) for x in (a, b))
        a, b = (x.view(np.float16).astype(np.float32) for x in (a_bits, b_bits))
    else:
        a_bits, b_bits = ((x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b))
        a, b = ((x.astype(np.uint32) << 16).view(np.float32) for x in (a_bits, b_bits))
    *_, d = bench.run(text, "multiply", (a_bits, b_bits, c, np.zeros_like(c)), block=32)
    expected = a[:, :depth].astype(np.float64) @ b[:depth].astype(np.float64) + c
    np.testing.assert_array_less(np.abs(d), np.abs(expected) * (1 + 1e-15))
    np.testing.assert_array_less(np.abs(expected) * (1 - 2.0**-22), np.abs(d))


def test_matrices_of_rows_that_lie_anywhere(bench: Bench) -> None:
    text = """
    #include <autotune_host_ptx.h>
    extern "C" __global__ void load(const unsigned short* rows, const int* at, unsigned* loaded) {
        __shared__ __attribute__((aligned(16))) unsigned short staged[64 * 8];
        for (int i = threadIdx.x; i < 64 * 8; i += 32) staged[i] = rows[i];
        __syncthreads();
        unsigned d[4];
        load_matrices(d, staged + at[threadIdx.x] * 8 + MISALIGNED);
        for (int i = 0; i < 4; ++i) loaded[i * 32 + threadIdx.x] = d[i];
    }
    """
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 2**16, (64, 8)).astype(np.uint16)
    at = rng.integers(0, 64, 32).astype(np.int32)
    arguments = (rows, at, np.zeros((4, 8, 4), np.uint32))
    *_, loaded = bench.run(text.replace("MISALIGNED", "0"), "load", arguments, block=32)
    np.testing.assert_array_equal(loaded, rows[at].view(np.uint32).reshape(4, 8, 4))
    with pytest.raises(Rejected, match="load_matrices"):
        bench.run(text.replace("MISALIGNED", "1"), "load", arguments, block=32)


@pytest.mark.parametrize("matrices", [2, 4])
def test_matrices_of_columns_that_lie_anywhere(bench: Bench, matrices: int) -> None:
    text = """
    #include <autotune_host_ptx.h>
    extern "C" __global__ void load(const unsigned short* columns, const int* at, unsigned* loaded) {
        __shared__ __attribute__((aligned(16))) unsigned short staged[64 * 8];
        for (int i = threadIdx.x; i < 64 * 8; i += 32) staged[i] = columns[i];
        __syncthreads();
        unsigned d[MATRICES];
        load_matrices_trans(d, staged + at[threadIdx.x] * 8 + MISALIGNED);
        for (int i = 0; i < MATRICES; ++i) loaded[i * 32 + threadIdx.x] = d[i];
    }
    """.replace("MATRICES", str(matrices))
    rng = np.random.default_rng(3)
    columns = rng.integers(0, 2**16, (64, 8)).astype(np.uint16)
    at = rng.integers(0, 64, 32).astype(np.int32)
    arguments = (columns, at, np.zeros((matrices, 8, 4), np.uint32))
    *_, loaded = bench.run(text.replace("MISALIGNED", "0"), "load", arguments, block=32)
    of_matrix = columns[at[: 8 * matrices]].reshape(matrices, 8, 8)  # [matrix, column, row]
    expected = np.ascontiguousarray(of_matrix.transpose(0, 2, 1)).view(np.uint32)
    np.testing.assert_array_equal(loaded, expected)
    with pytest.raises(Rejected, match="load_matrices_trans"):
        bench.run(text.replace("MISALIGNED", "1"), "load", arguments, block=32)


FOUR_WARPS = """
#include <autotune_host_ptx.h>
extern "C" __global__ void multiply(const float* a, const float* b, const float* c, float* d, int round) {
    __shared__ __align__(16) float shared[2 * 64];
    for (int i = threadIdx.x; i < 128; i += 128) {  // [tile][k / 4][column][k % 4]
        shared[i] = b[(i / 32 % 2 * 4 + i % 4) * 16 + i / 64 * 8 + i / 4 % 8];
    }
    __syncthreads();
    const int group = threadIdx.x % 32 / 4, t = threadIdx.x % 4, row = threadIdx.x / 32 * 16 + group;
    const float fa[4] = {a[row * 8 + t], a[(row + 8) * 8 + t], a[row * 8 + t + 4], a[(row + 8) * 8 + t + 4]};
    float fd[1][2][4];
    const auto at = [&](int i) { return (row + i / 2 % 2 * 8) * 16 + i / 4 * 8 + 2 * t + i % 2; };
    for (int i = 0; i < 8; ++i) fd[0][i / 4][i % 4] = c[at(i)];
    wgmma_begin(fd);
    wgmma_tf32<ADDED, 64>(fd[0], fa, shared);
    wgmma_commit();
    wgmma_wait(fd);
    for (int i = 0; i < 8; ++i) d[at(i)] = fd[0][i / 4][i % 4];
}
"""


@pytest.mark.parametrize("added", [True, False])
def test_product_of_four_warps(bench: Bench, added: bool) -> None:
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((64, 8), (8, 16), (64, 16)))
    text = FOUR_WARPS.replace("ADDED", str(added).lower())
    *_, d = bench.run(text, "multiply", (a, b, c, np.zeros_like(c), np.int32(0)), block=128)
    np.testing.assert_array_equal(d, a @ b + (c if added else 0))


BOTH_SHARED = """
#include <autotune_host_ptx.h>
extern "C" __global__ void multiply(const float* a, const float* b, const float* c, float* d, int round) {
    __shared__ __align__(16) float rows[70 * 4], more_rows[70 * 4], columns[40 * 4];
    const int thread = threadIdx.x;
    for (int i = thread; i < 64 * 4; i += 128) {
        rows[8 + i] = a[i / 4 * 8 + i % 4];
        more_rows[i] = a[i / 4 * 8 + 4 + i % 4];
    }
    if (thread < 64) columns[thread] = b[thread % 4 * 16 + thread / 4];
    if (thread < 64) columns[92 + thread] = b[(4 + thread % 4) * 16 + thread / 4];
    __syncthreads();
    float fd[1][2][4];
    const int row = thread / 32 * 16 + thread % 32 / 4;
    const auto at = [&](int i) { return (row + i / 2 % 2 * 8) * 16 + i / 4 * 8 + 2 * (thread % 4) + i % 2; };
    for (int i = 0; i < 8; ++i) fd[0][i / 4][i % 4] = c[at(i)];
    wgmma_begin(fd);
    wgmma_tf32_wide<true>(fd[0], rows + 8 + round, static_cast<int>((more_rows - rows - 8) * 4), 128, columns, 92 * 4);
    wgmma_commit();
    wgmma_wait(fd);
    for (int i = 0; i < 8; ++i) d[at(i)] = fd[0][i / 4][i % 4];
}
"""


def test_product_of_four_warps_whose_operands_lie_in_shared_memory(bench: Bench) -> None:
    rng = np.random.default_rng(4)
    a, b, c = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((64, 8), (8, 16), (64, 16)))
    *_, d = bench.run(BOTH_SHARED, "multiply", (a, b, c, np.zeros_like(c), np.int32(0)), block=128)
    np.testing.assert_array_equal(d, a @ b + c)
    with pytest.raises(Rejected, match="wgmma"):
        bench.run(BOTH_SHARED, "multiply", (a, b, c, np.zeros_like(c), np.int32(1)), block=128)


def test_recorded_kernels_compile_with_former_names(bench: Bench) -> None:
    text = """
    #include <autotune_host_ptx.h>
    extern "C" __global__ void k() { increase_registers<40>(), decrease_registers<40>(), wgmma_wait_but<0>(); }
    """
    bench.load(text, "k").unload()
