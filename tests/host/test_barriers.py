"""Barriers: correct kernels stay correct in every order of threads, wrong ones are found."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.devices.device import Order
from autotune.devices.host_runtime import ORDERS
from autotune.errors import Rejected

from .kernels import Bench

REVERSE = """
extern "C" __global__ void __launch_bounds__(96) reverse(const float* __restrict__ x, float* __restrict__ y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    float* tile = reinterpret_cast<float*>(smem);
    __shared__ float doubled[96];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0.0f;
    doubled[threadIdx.x] = i < n ? 2 * x[i] : 0.0f;
    __syncthreads();
    if (i < n) y[i] = tile[blockDim.x - 1 - threadIdx.x] + doubled[(threadIdx.x + 1) % blockDim.x];
}
"""
N = 96 * 20 - 7


def reversed_reference(x: np.ndarray[tuple[int], np.dtype[np.float32]]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """The output of REVERSE."""
    padded = np.zeros(96 * 20, np.float32)
    padded[:N] = x
    rows = padded.reshape(20, 96)
    both: np.ndarray[tuple[int], np.dtype[np.float32]] = (rows[:, ::-1] + 2 * np.roll(rows, -1, axis=1)).reshape(-1)[:N]
    return both


@pytest.mark.parametrize("order", ORDERS)
def test_shared_memory_is_exchanged_at_a_barrier(bench: Bench, order: Order) -> None:
    x = np.arange(N, dtype=np.float32)
    _, y = bench.run(
        REVERSE, "reverse", (x, np.zeros_like(x), np.int32(N)), grid=20, block=96, smem_bytes=384, order=order
    )
    np.testing.assert_array_equal(y, reversed_reference(x))


@pytest.mark.parametrize("order", ORDERS)
def test_without_its_barrier_the_same_kernel_is_wrong(bench: Bench, order: Order) -> None:
    x = np.arange(1, N + 1, dtype=np.float32)
    broken = REVERSE.replace("__syncthreads();", "")
    _, y = bench.run(
        broken, "reverse", (x, np.zeros_like(x), np.int32(N)), grid=20, block=96, smem_bytes=384, order=order
    )
    assert np.isnan(y).any(), "unwritten shared memory must read as NaN"


@pytest.mark.parametrize("order", ORDERS)
def test_predicates_are_counted_over_the_block(bench: Bench, order: Order) -> None:
    text = """
    extern "C" __global__ void votes(int* y) {
        const int t = threadIdx.x;
        int* mine = y + 5 * t;
        mine[0] = __syncthreads_count(t % 3 == 0);
        mine[1] = __syncthreads_and(t < 50);
        mine[2] = __syncthreads_and(t < 49);
        mine[3] = __syncthreads_or(t == 17);
        mine[4] = __syncthreads_or(t == 50);
    }
    """
    (y,) = bench.run(text, "votes", (np.zeros((50, 5), np.int32),), block=50, order=order)
    np.testing.assert_array_equal(y, np.tile([17, 1, 0, 1, 0], (50, 1)))


@pytest.mark.parametrize("order", ORDERS)
def test_threads_that_returned_do_not_hold_up_the_others(bench: Bench, order: Order) -> None:
    text = """
    extern "C" __global__ void early(int* y) {
        __shared__ int sum;
        if (threadIdx.x == 5) sum = 0;
        __syncthreads();
        if (threadIdx.x % 2) return;
        atomicAdd(&sum, 1);
        __syncthreads();
        y[threadIdx.x] = sum;
    }
    """
    (y,) = bench.run(text, "early", (np.full(70, -1, np.int32),), block=70, order=order)
    np.testing.assert_array_equal(y, np.where(np.arange(70) % 2, -1, 35))


def test_threads_at_different_barriers_are_reported_with_both_lines(bench: Bench) -> None:
    text = """
    extern "C" __global__ void divergent(int* y) {
        if (threadIdx.x < 16) {
            __syncthreads();
        } else {
            __syncthreads();
        }
        y[threadIdx.x] = 1;
    }
    """
    with pytest.raises(Rejected) as rejected:
        bench.run(text, "divergent", (np.zeros(64, np.int32),), grid=3, block=64)
    assert (rejected.value.outcome, rejected.value.reason) == ("runtime", "deadlock")
    assert "line 4" in rejected.value.message
    assert "line 6" in rejected.value.message


def test_a_lane_that_waits_for_one_at_a_barrier_is_a_deadlock_and_not_a_hang(bench: Bench) -> None:
    text = """
    extern "C" __global__ void stuck(int* y) {
        if (threadIdx.x == 3) __syncwarp();
        else __syncthreads();
        y[threadIdx.x] = 1;
    }
    """
    with pytest.raises(Rejected, match=r"31 of 32 threads wait at the barrier of line 4, 1 in .* line 3") as rejected:
        bench.run(text, "stuck", (np.zeros(32, np.int32),), block=32)
    assert rejected.value.reason == "deadlock"
    # The device continues: nothing remains of the abandoned block.
    x = np.arange(N, dtype=np.float32)
    _, y = bench.run(REVERSE, "reverse", (x, np.zeros_like(x), np.int32(N)), grid=20, block=96, smem_bytes=384)
    np.testing.assert_array_equal(y, reversed_reference(x))


def test_full_blocks_of_1024_threads_over_many_blocks(bench: Bench) -> None:
    text = """
    extern "C" __global__ void total(const int* x, int* y) {
        __shared__ int partial[1024];
        partial[threadIdx.x] = x[blockIdx.x * 1024 + threadIdx.x];
        for (int step = 512; step; step /= 2) {
            __syncthreads();
            if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
        }
        if (threadIdx.x == 0) y[blockIdx.x] = partial[0];
    }
    """
    x = np.random.default_rng(0).integers(-1000, 1000, (60, 1024), np.int32)
    _, y = bench.run(text, "total", (x, np.zeros(60, np.int32)), grid=60, block=1024)
    np.testing.assert_array_equal(y, x.sum(axis=1))


SUPPLIED = """
#include <autotune_host_ptx.h>
// Two warps add up what a third puts down for them, a row at a time, in turns.
extern "C" __global__ void sum_rows(const float* __restrict__ x, float* __restrict__ y, int rows) {
    __shared__ float row[2][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp == 2) {
        for (int i = 0; i < rows; ++i) {
            const int reader = i % 2;
            if (i >= 2) sync_threads<64>(1 + reader);  // the row before has been read
            row[reader][lane] = x[i * 32 + lane];
            arrive_threads<64>(3 + reader);
        }
        return;
    }
    float sum = 0;
    for (int i = warp; i < rows; i += 2) {
        sync_threads<64>(3 + warp);
        sum += row[warp][31 - lane];
        if (i + 2 < rows) arrive_threads<64>(1 + warp);
    }
    y[threadIdx.x] = sum;
}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_some_threads_wait_for_others_that_only_arrive(bench: Bench, order: Order) -> None:
    x = np.arange(7 * 32, dtype=np.float32).reshape(7, 32)
    arguments = (x, np.zeros(64, np.float32), np.int32(7))
    _, y = bench.run(SUPPLIED, "sum_rows", arguments, block=96, order=order)
    np.testing.assert_array_equal(y.reshape(2, 32), [x[::2, ::-1].sum(axis=0), x[1::2, ::-1].sum(axis=0)])


def test_a_barrier_of_some_threads_that_one_stays_away_from_is_a_deadlock(bench: Bench) -> None:
    text = SUPPLIED.replace("arrive_threads<64>(3 + reader)", "if (lane > 0) arrive_threads<64>(3 + reader)")
    arguments = (np.zeros((7, 32), np.float32), np.zeros(64, np.float32), np.int32(7))
    with pytest.raises(Rejected, match="at the barrier of some threads of line") as rejected:
        bench.run(text, "sum_rows", arguments, block=96)
    assert rejected.value.reason == "deadlock"


CLUSTER = """
#include <autotune_host_ptx.h>
struct Words { unsigned at[4]; };
// Each block of four writes its number; after the barrier it reads that of the one behind it.
extern "C" __global__ void __cluster_dims__(4, 1, 1) neighbours(unsigned* __restrict__ y, int ahead) {
    __shared__ Words words[64];
    const int rank = blockIdx.x % 4;
    if (threadIdx.x < 32) return;  // the barrier waits for nobody who has ended
    words[threadIdx.x] = {{blockIdx.x, threadIdx.x, 0, 0}};
    cluster_sync();
    const Words other = load_cluster(words + threadIdx.x, rank + ahead & 3);
    y[blockIdx.x * 32 + threadIdx.x - 32] = other.at[0] * 100 + other.at[1];
    cluster_sync();  // read by another
}
"""


def neighbours(
    bench: Bench, text: str = CLUSTER, *, order: Order = "ascending", grid: int = 12, ahead: int = 1
) -> list[int]:
    """The values that each block's first thread reads: the number of the block, and its own."""
    arguments = (np.zeros(12 * 32, np.uint32), np.int32(ahead))
    (y,) = bench.run(text, "neighbours", arguments, grid=grid, block=64, order=order)
    return [int(word) for word in y.reshape(12, 32)[:, 0]]


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_of_a_cluster_read_each_others_shared_memory(bench: Bench, order: Order) -> None:
    behind = [block // 4 * 4 + (block + 1) % 4 for block in range(12)]
    assert neighbours(bench, order=order) == [block * 100 + 32 for block in behind]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("barrier", ["    cluster_sync();\n", "    cluster_sync();  // read by another\n"])
def test_a_block_reads_another_only_between_two_barriers(bench: Bench, order: Order, barrier: str) -> None:
    with pytest.raises(Rejected, match="that has not begun, or has ended") as rejected:
        neighbours(bench, CLUSTER.replace(barrier, ""), order=order)
    assert rejected.value.reason == "race"


def test_a_cluster_has_no_more_blocks_than_it_says(bench: Bench) -> None:
    with pytest.raises(Rejected, match="no shared memory of a block of the cluster") as rejected:
        neighbours(bench, CLUSTER.replace("rank + ahead & 3", "rank + ahead"))
    assert rejected.value.reason == "illegal_address"
    with pytest.raises(Rejected, match=r"grid.x = 10 in clusters of 4 blocks"):
        neighbours(bench, grid=10)
    with pytest.raises(Rejected, match=r"clusters of 9 blocks, at most 8"):
        neighbours(bench, CLUSTER.replace("(4, 1, 1)", "(9, 1, 1)"), grid=9)


def test_a_failure_of_one_block_ends_its_cluster(bench: Bench) -> None:
    with pytest.raises(Rejected, match="rank == 2") as rejected:
        neighbours(bench, CLUSTER.replace("    cluster_sync();\n", "    assert(!(rank == 2));\n    cluster_sync();\n"))
    assert rejected.value.reason == "assert"
    text = CLUSTER.replace(
        "    cluster_sync();\n", "    if (rank != 1 || threadIdx.x > 40) cluster_sync();\n    else __syncthreads();\n"
    )
    with pytest.raises(Rejected) as rejected:
        neighbours(bench, text)
    assert rejected.value.reason == "deadlock"


RING = """
#include <autotune_host_tma.h>
// A word goes round a cluster of four blocks, from the last one to the first: each waits for the one before it.
extern "C" __global__ void __cluster_dims__(4, 1, 1) ring(unsigned* __restrict__ y, int rounds) {
    __shared__ Barrier turn;
    const int rank = blockIdx.x % 4;
    if (threadIdx.x == 0) barrier_init(&turn, 1), barrier_init_fence();
    cluster_sync();
    for (int round = 0; round < rounds && threadIdx.x == 40; ++round) {
        barrier_wait(&turn, (rank < 3 ? round : round + 1) & 1);  // the last one begins
        y[blockIdx.x] += round;
        barrier_arrive_cluster(&turn, rank + 3 & 3);
    }
    cluster_sync();  // no barrier is arrived at any more
}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_a_block_waits_for_what_others_of_its_cluster_do(bench: Bench, order: Order) -> None:
    (y,) = bench.run(RING, "ring", (np.zeros(8, np.uint32), np.int32(5)), grid=8, block=64, order=order)
    assert list(y) == [10] * 8


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("rank < 3 ? round : round + 1", "round"), "deadlock"),
        (("rank + 3 & 3", "rank"), "deadlock"),
        (("    cluster_sync();  // no barrier", "    // no barrier"), "race"),
    ],
)
def test_blocks_that_wait_for_each_other_in_vain_are_told(
    bench: Bench, order: Order, change: tuple[str, str], reason: str
) -> None:
    arguments = (np.zeros(8, np.uint32), np.int32(5))
    with pytest.raises(Rejected) as rejected:
        bench.run(RING.replace(*change), "ring", arguments, grid=8, block=64, order=order)
    assert rejected.value.reason == reason
