"""Warp primitives against their description in the CUDA programming guide."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.devices.device import Order
from autotune.devices.host import HostOptions
from autotune.devices.host_runtime import ORDERS
from autotune.errors import Rejected
from tests.compiled import host_device

from .kernels import Bench

SHUFFLES = """
extern "C" __global__ void shuffles(const double* x, double* y, int width, int by) {
    const int t = threadIdx.x;
    const double mine = x[t];
    y[4 * t] = __shfl_sync(0xffffffffu, mine, by, width);
    y[4 * t + 1] = __shfl_up_sync(0xffffffffu, mine, by, width);
    y[4 * t + 2] = __shfl_down_sync(0xffffffffu, mine, by, width);
    y[4 * t + 3] = __shfl_xor_sync(0xffffffffu, mine, by, width);
}
"""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("width", "by"), [(32, 1), (32, 16), (16, 3), (8, 7), (4, 2)])
def test_shuffles(bench: Bench, width: int, by: int, order: Order) -> None:
    x = np.random.default_rng(0).standard_normal(64)
    lane = np.arange(64)
    base, within = lane // width * width, lane % width
    sources = (
        base + by % width,
        np.where(within >= by, lane - by, lane),
        np.where(within + by < width, lane + by, lane),
        np.where((lane % 32 ^ by) < base % 32 + width, lane ^ by, lane),
    )
    arguments = (x, np.zeros((64, 4)), np.int32(width), np.int32(by))
    _, y = bench.run(SHUFFLES, "shuffles", arguments, block=64, order=order)
    for column, source in enumerate(sources):
        np.testing.assert_array_equal(y[:, column], x[source], err_msg=("idx", "up", "down", "xor")[column])


def test_a_block_is_summed_by_shuffles_of_every_type(bench: Bench) -> None:
    text = """
    template <class T>
    __device__ T warp_sum(T value) {
    #pragma unroll
        for (int lanes = 16; lanes; lanes >>= 1) value += __shfl_xor_sync(~0u, value, lanes);
        return value;
    }
    extern "C" __global__ void sums(float* f, int* i, long long* l) {
        const int t = threadIdx.x;
        f[t] = warp_sum(f[t]);
        i[t] = warp_sum(i[t]);
        l[t] = warp_sum(l[t]);
    }
    """
    lanes = np.arange(96)
    f, i, wide = bench.run(
        text, "sums", (lanes.astype(np.float32), lanes.astype(np.int32), lanes.astype(np.int64) << 33), block=96
    )
    expected = np.repeat(lanes.reshape(3, 32).sum(axis=1), 32)
    np.testing.assert_array_equal(f, expected)
    np.testing.assert_array_equal(i, expected)
    np.testing.assert_array_equal(wide, expected << 33)


@pytest.mark.parametrize("order", ORDERS)
def test_votes_with_masks_and_a_ragged_last_warp(bench: Bench, order: Order) -> None:
    text = """
    extern "C" __global__ void votes(unsigned* y) {
        const int t = threadIdx.x, lane = t % 32;
        const unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
        y[4 * t] = __ballot_sync(0xffffffffu, lane % 2);
        y[4 * t + 1] = __any_sync(0xffffffffu, t == 40);
        y[4 * t + 2] = __all_sync(0xffffffffu, t < 32);
        y[4 * t + 3] = __ballot_sync(half, 1);
        __syncwarp();
    }
    """
    (y,) = bench.run(text, "votes", (np.zeros((44, 4), np.uint32),), block=44, order=order)
    full, ragged = 0xAAAAAAAA, 0xAAA
    low, high = 0xFFFF, 0xFFFF0000
    expected = [[full, 0, 1, low]] * 16 + [[full, 0, 1, high]] * 16 + [[ragged, 1, 0, 0xFFF]] * 12
    np.testing.assert_array_equal(y, np.array(expected, np.uint32))


def test_without_its_syncwarp_a_warp_exchange_is_wrong_in_some_order(bench: Bench) -> None:
    text = """
    extern "C" __global__ void swap(int* y) {
        __shared__ int tile[32];
        tile[threadIdx.x] = threadIdx.x;
        __syncwarp();
        y[threadIdx.x] = tile[threadIdx.x ^ 1];
    }
    """
    empty = np.zeros(32, np.int32)
    for order in ORDERS:
        (right,) = bench.run(text, "swap", (empty,), block=32, order=order)
        np.testing.assert_array_equal(right, np.arange(32) ^ 1)
        (wrong,) = bench.run(text.replace("__syncwarp();", ""), "swap", (empty,), block=32, order=order)
        assert not np.array_equal(wrong, np.arange(32) ^ 1)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("if (threadIdx.x) __syncwarp(0xfffffffeu); else __syncwarp(0xfffffffeu);", "leaves it out"),
        ("if (threadIdx.x < 9) y[0] = __shfl_sync(~0u, 1, 0);\n else y[0] = __ballot_sync(~0u, 1);", "different warp"),
    ],
)
def test_a_warp_primitive_that_cannot_complete_is_reported(bench: Bench, body: str, words: str) -> None:
    with pytest.raises(Rejected, match=words):
        bench.run(f'extern "C" __global__ void bad(int* y) {{ {body} }}', "bad", (np.zeros(1, np.int32),), block=32)


SUMS = """
// Sums of all threads' numbers, and of their doubles, from the warps' sums in shared memory.
__device__ int warp_sum(int value) {
    for (int lanes = 16; lanes; lanes >>= 1) value += __shfl_xor_sync(~0u, value, lanes);
    return value;
}
__device__ int block_sum(int* sums, int value) {
    const int of_warp = warp_sum(value);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = of_warp;
    __syncthreads();  // all sums are written
    return warp_sum(threadIdx.x % 32 < 4 ? sums[threadIdx.x % 32] : 0);
}
extern "C" __global__ void total(int* y) {
    __shared__ int sums[4];
    const int total = block_sum(sums, threadIdx.x);
    __syncthreads();  // all sums are read
    y[threadIdx.x] = total + block_sum(sums, 2 * threadIdx.x);
}
"""


@pytest.mark.parametrize("order", ["ascending", "descending", "warps"])
@pytest.mark.parametrize("barrier", ["  // all sums are written", "  // all sums are read"])
def test_a_warp_runs_through_its_shuffles_before_another_goes_on(bench: Bench, barrier: str, order: Order) -> None:
    empty = np.zeros(128, np.int32)
    (right,) = bench.run(SUMS, "total", (empty,), block=128, order=order)
    np.testing.assert_array_equal(right, 3 * 127 * 64)
    (wrong,) = bench.run(SUMS.replace(f"__syncthreads();{barrier}", ""), "total", (empty,), block=128, order=order)
    assert not np.array_equal(wrong, right)


@pytest.mark.parametrize("blocks", [1, 2, 12, 4096])
def test_blocks_run_in_each_order(cxx: str, blocks: int) -> None:
    text = """
    __device__ int count;
    extern "C" __global__ void tickets(int* y) { y[blockIdx.x] = atomicAdd(&count, 1); }
    """
    bench = Bench(host_device(cxx, HostOptions(cores=1)), cxx)
    came = {
        order: bench.run(text, "tickets", (np.zeros(blocks, np.int32),), grid=blocks, order=order)[0].tolist()
        for order in ORDERS
    }
    assert came["ascending"] == list(range(blocks))
    assert came["descending"] == list(reversed(range(blocks)))
    assert sorted(came["warps"]) == list(range(blocks))
    assert blocks < 12 or came["warps"] not in (came["ascending"], came["descending"])


GROUPS = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

extern "C" __global__ void groups(const int* x, int* y) {
    __shared__ int parts[64 / 8];
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<8> tile = cg::tiled_partition<8>(block);
    const int t = block.thread_rank();
    int sum = x[t];
    for (int by = tile.size() / 2; by > 0; by /= 2) sum += tile.shfl_down(sum, by);
    if (tile.thread_rank() == 0) parts[tile.meta_group_rank()] = sum;
    block.sync();
    const int largest = cg::reduce(tile, x[t], cg::greater<int>());
    y[4 * t] = parts[t / 8];
    y[4 * t + 1] = tile.shfl(x[t], 3) + tile.shfl_xor(x[t], 1) + tile.any(t == 9) + (tile.ballot(t % 8 == 2) == 4u);
    y[4 * t + 2] = largest;
    y[4 * t + 3] = __reduce_add_sync(~0u, x[t]) + static_cast<int>(__reduce_max_sync(~0u, static_cast<unsigned>(t)));
}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_cooperative_groups_of_a_block(bench: Bench, order: Order) -> None:
    x = np.random.default_rng(3).integers(-1000, 1000, 64, dtype=np.int32)
    _, y = bench.run(GROUPS, "groups", (x, np.zeros((64, 4), np.int32)), block=64, order=order)
    tiles, thread = x.reshape(8, 8), np.arange(64)
    np.testing.assert_array_equal(y[:, 0], np.repeat(tiles.sum(axis=1), 8))
    np.testing.assert_array_equal(y[:, 1], np.repeat(tiles[:, 3], 8) + x[thread ^ 1] + (thread // 8 == 1) + 1)
    np.testing.assert_array_equal(y[:, 2], np.repeat(tiles.max(axis=1), 8))
    np.testing.assert_array_equal(y[:, 3], np.repeat(x.reshape(2, 32).sum(axis=1), 32) + np.where(thread < 32, 31, 63))


ACTIVE = """
#include <cooperative_groups.h>
extern "C" __global__ void active(const int* x, int* counts, unsigned* masks, int n) {
    const int t = threadIdx.x;
    if (x[t] > 0) {  // of a warp's lanes that are here one adds for all
        const cooperative_groups::coalesced_group here = cooperative_groups::coalesced_threads();
        if (here.thread_rank() == 0) atomicAdd(counts, static_cast<int>(here.size()));
    }
    __syncthreads();
    if (t >= n) return;
    masks[t] = __activemask();
}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_lanes_that_are_active_in_a_branch_and_after_others_returned(bench: Bench, order: Order) -> None:
    x = np.random.default_rng(4).integers(-1, 2, 64, dtype=np.int32)
    arguments = (x, np.zeros(1, np.int32), np.zeros(64, np.uint32), np.int32(40))
    _, counts, masks = bench.run(ACTIVE, "active", arguments, block=64, order=order)
    assert counts[0] == np.count_nonzero(x > 0)
    assert set(masks[:32]) == {0xFFFFFFFF}
    assert set(masks[32:40]) == {0xFF}


INTRINSICS = """
extern "C" __global__ void intrinsics(float* y, int* i) {
    __sincosf(0.5f, y, y + 1);
    y[2] = __sinf(0.5f) - __cosf(0.5f) + __log2f(8.0f) + __exp10f(2.0f);
    i[0] = __dp4a(0x01ff0203, 0x02037f80, 5);
    i[1] = __dp4a(0x01ff0203u, 0x02037f80u, 5u);
    i[2] = __dp4a(make_char4(1, -2, 3, -4), make_char4(5, 6, -7, 8), 9);
}
"""


def test_fast_functions_and_products_of_bytes(bench: Bench) -> None:
    y, i = bench.run(INTRINSICS, "intrinsics", (np.zeros(3, np.float32), np.zeros(3, np.int32)))
    sine, cosine = np.sin(0.5), np.cos(0.5)
    expected = np.array([sine, cosine, sine - cosine + 3 + 100])
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=1e-6)
    assert list(i) == [5 + 3 * -128 + 2 * 127 - 3 + 2, 5 + 3 * 128 + 2 * 127 + 255 * 3 + 2, 9 + 5 - 12 - 21 - 32]


MATHEMATICS = """
#include <cmath>
#include <algorithm>
extern "C" __global__ void mathematics(double* y) {
    double sine, cosine;
    sincospi(0.25, &sine, &cosine);
    y[0] = sine - cosine + M_PI;
    y[1] = std::isinf(-INFINITY) && std::isnan(NAN) ? std::exp(1.0) : 0.0;
    y[2] = static_cast<double>(INT_MAX) + std::abs(std::min(-2, 1)) + exp10(2.0);
}
"""


def test_constants_and_functions_of_the_standard_headers(bench: Bench) -> None:
    (y,) = bench.run(MATHEMATICS, "mathematics", (np.zeros(3),))
    np.testing.assert_allclose(y.astype(np.float64), np.array([np.pi, np.e, 2**31 - 1 + 2 + 100]), rtol=1e-12)


@pytest.mark.parametrize("ptx", ['"mov.u32 %0, %%laneid;" : "=r"(own)', '"add.f32 %0, %1, %1;" : "=f"(sum) : "f"(sum)'])
def test_ptx_is_refused_with_a_hint(ptx: str, bench: Bench) -> None:
    text = f"""
    extern "C" __global__ void lane(unsigned* y) {{
        unsigned own = 0;
        float sum = 1.0f;
        asm volatile({ptx});
        y[threadIdx.x] = own + sum;
    }}
    """
    with pytest.raises(Rejected, match="the host device cannot run PTX: put asm") as error:
        bench.run(text, "lane", (np.zeros(32, np.uint32),), block=32)
    assert error.value.outcome == "compile"
