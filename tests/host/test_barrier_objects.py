"""Barrier objects with bulk copies: threads wait for exactly the data that they read, and mistakes are found."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.devices.device import Order
from autotune.devices.host_runtime import ORDERS
from autotune.errors import Rejected

from .kernels import Array, Bench

# A ring of two slots of 64 floats, filled by a thread of its own; four warps each sum one part of every slot.
RING = """
#include <autotune_host_ptx.h>
extern "C" __global__ void __launch_bounds__(129) ring(const float* __restrict__ x, float* __restrict__ y, int chunks) {
    extern __shared__ __align__(16) unsigned char smem[];
    Barrier* filled = reinterpret_cast<Barrier*>(smem);
    Barrier* emptied = filled + 2;
    float* slots = reinterpret_cast<float*>(emptied + 2);
    if (threadIdx.x == 128) {
        for (int slot = 0; slot < 2; ++slot) {
            barrier_init(filled + slot, 1);
            barrier_init(emptied + slot, 4);
        }
        barrier_init_fence();
    }
    __syncthreads();
    float sum = 0.0f;
    for (int chunk = 0; chunk < chunks; ++chunk) {
        Barrier* const here = filled + chunk % 2;
        if (threadIdx.x == 128) {
            if (chunk >= 2) barrier_wait(emptied + chunk % 2, (chunk / 2 - 1) & 1);
            barrier_arrive_expect(here, 256);
            bulk_load(slots + chunk % 2 * 64, x + chunk * 64, 256, here);
        } else {
            barrier_wait(here, chunk / 2 & 1);
            sum += slots[chunk % 2 * 64 + threadIdx.x % 64];
            __syncwarp();
            if (threadIdx.x % 32 == 0) barrier_arrive(emptied + chunk % 2);
        }
    }
    if (threadIdx.x < 128) y[threadIdx.x] = sum;
}
"""
CHUNKS = 7
SMEM_BYTES = 32 + 2 * 256


def run_ring(bench: Bench, text: str, order: Order) -> Array:
    """The output of RING, or of a faulty version of it, for 0, 1, 2, ..."""
    x = np.arange(64 * CHUNKS, dtype=np.float32)
    arguments = (x, np.zeros(128, np.float32), np.int32(CHUNKS))
    return bench.run(text, "ring", arguments, block=129, smem_bytes=SMEM_BYTES, order=order)[1]


EXPECTED = np.tile(np.arange(64 * CHUNKS, dtype=np.float32).reshape(CHUNKS, 64).sum(axis=0), 2)


@pytest.mark.parametrize("order", ORDERS)
def test_ring_of_bulk_copies_hands_on_every_chunk(bench: Bench, order: Order) -> None:
    np.testing.assert_array_equal(run_ring(bench, RING, order), EXPECTED)


@pytest.mark.parametrize("wait", ["barrier_wait(here", "barrier_wait(emptied"])
@pytest.mark.parametrize("order", ORDERS)
def test_without_one_of_its_waits_the_ring_is_wrong(bench: Bench, wait: str, order: Order) -> None:
    broken = RING.replace(wait, "if (false) " + wait)
    assert broken != RING
    try:
        summed = run_ring(bench, broken, order)
    except Rejected as rejected:
        found = rejected.reason == "deadlock"  # waits for a phase that has already passed
    else:
        found = not np.array_equal(summed, EXPECTED)
    assert found


@pytest.mark.parametrize("order", ORDERS)
def test_barriers_need_a_fence_before_their_first_use(bench: Bench, order: Order) -> None:
    broken = RING.replace("        barrier_init_fence();\n", "")
    assert broken != RING
    with pytest.raises(Rejected, match="no barrier_init_fence between barrier_init and the barrier's use") as error:
        run_ring(bench, broken, order)
    assert error.value.reason == "race"


def test_waiting_for_a_phase_that_nobody_completes_is_a_deadlock(bench: Bench) -> None:
    broken = RING.replace("if (threadIdx.x % 32 == 0) barrier_arrive", "if (threadIdx.x == 0) barrier_arrive")
    with pytest.raises(Rejected, match="129 for the barrier object of line 24") as rejected:
        run_ring(bench, broken, "ascending")
    assert rejected.value.reason == "deadlock"
    np.testing.assert_array_equal(
        run_ring(bench, RING, "ascending"), EXPECTED
    )  # nothing remains of the abandoned block


def test_more_arrivals_than_announced_are_found(bench: Bench) -> None:
    broken = RING.replace("barrier_init(filled + slot, 1)", "barrier_init(filled + slot, 0)")
    with pytest.raises(Rejected, match="more arrivals than barrier_init was told"):
        run_ring(bench, broken, "ascending")


@pytest.mark.parametrize("wrong", ["x + chunk * 64 + 1, 256", "x + chunk * 64, 252"])
def test_bulk_copies_of_no_whole_16_bytes_are_refused(bench: Bench, wrong: str) -> None:
    with pytest.raises(Rejected, match="bulk_load") as rejected:
        run_ring(bench, RING.replace("x + chunk * 64, 256", wrong), "ascending")
    assert rejected.value.reason == "misaligned_address"


# The first warp's lanes all wait for eight bytes each when the second warp may ask for them.
LATE = """
#include <autotune_host_ptx.h>
extern "C" __global__ void __launch_bounds__(64) late(const float* __restrict__ x, float* __restrict__ y) {
    extern __shared__ __align__(16) unsigned char smem[];
    Barrier* asked = reinterpret_cast<Barrier*>(smem);
    Barrier* there = asked + 1;
    float* copied = reinterpret_cast<float*>(there + 1);
    if (threadIdx.x == 0) {
        barrier_init(asked, 32);
        barrier_init(there, ARRIVALS);
        barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= 32) {
        barrier_wait(asked, 0);
        const int lane = threadIdx.x - 32;
        for (int i = 0; i < 3; ++i) __syncwarp();  // whoever was woken has looked and sleeps again
        COPY
        return;
    }
    barrier_arrive(asked);
    barrier_wait(there, 0);
    for (int i = 0; i < 2; ++i) y[2 * threadIdx.x + i] = copied[2 * threadIdx.x + i];
}
"""
BULK = "if (lane == 0) { barrier_arrive_expect(there, 256); bulk_load(copied, x, 256, there); }"
OWN = "copy_async<8>(copied + 2 * lane, x + 2 * lane); copy_async_arrive(there);"


@pytest.mark.parametrize(("arrivals", "copy"), [(1, BULK), (32, OWN)])
@pytest.mark.parametrize("order", ORDERS)
def test_copies_come_to_those_who_wait_already(bench: Bench, arrivals: int, copy: str, order: Order) -> None:
    text = LATE.replace("ARRIVALS", str(arrivals)).replace("COPY", copy)
    x = np.arange(64, dtype=np.float32)
    y = bench.run(text, "late", (x, np.zeros(64, np.float32)), block=64, smem_bytes=16 + 256, order=order)[1]
    np.testing.assert_array_equal(y, x)


# Each thread copies its neighbour's number of a row, two rows ahead: STAGES rows are being copied or read.
AHEAD = """
#include <autotune_host_ptx.h>
extern "C" __global__ void __launch_bounds__(64) ahead(const float* __restrict__ x, float* __restrict__ y, int rows) {
    extern __shared__ __align__(16) unsigned char smem[];
    float* stages = reinterpret_cast<float*>(smem);
    const auto copy = [&](int row) {
        const int from = threadIdx.x ^ 1;
        copy_async<4>(stages + row % 3 * 64 + threadIdx.x, x + row * 64 + from, row < rows);
        copy_async_commit();
    };
    copy(0);
    copy(1);
    float sum = 0.0f;
    for (int row = 0; row < rows; ++row) {
        copy_async_wait<1>();
        __syncthreads();
        copy(row + 2);
        sum += stages[row % 3 * 64 + (threadIdx.x + 7) % 64];
    }
    y[threadIdx.x] = sum;
}
"""


@pytest.mark.parametrize(
    ("change", "right"),
    [
        (("", ""), True),
        (("copy_async_wait<1>();", "copy_async_wait<0>();"), True),
        (("copy_async_wait<1>();", ""), False),
        (("copy_async_wait<1>();", "copy_async_wait<2>();"), False),
        (("        __syncthreads();\n", ""), False),
        (("        copy_async_commit();\n", ""), False),
    ],
    ids=["right", "waits for more", "does not wait", "waits for too little", "for its own alone", "closes no group"],
)
def test_a_copy_comes_when_its_thread_waits_for_it(bench: Bench, *, change: tuple[str, str], right: bool) -> None:
    x = np.arange(64 * CHUNKS, dtype=np.float32).reshape(CHUNKS, 64)
    expected = np.roll(x.reshape(CHUNKS, 32, 2)[:, :, ::-1].reshape(CHUNKS, 64).sum(axis=0), -7)
    assert change[0] in AHEAD
    text = AHEAD.replace(*change) if change[0] else AHEAD
    arguments = (x, np.zeros(64, np.float32), np.int32(CHUNKS))
    summed = [bench.run(text, "ahead", arguments, block=64, smem_bytes=3 * 256, order=order)[1] for order in ORDERS]
    assert all(np.array_equal(one, expected) for one in summed) == right


def test_more_copies_than_a_thread_can_put_off_come_unasked(bench: Bench) -> None:
    text = AHEAD.replace("    copy(0);\n", "    for (int i = 0; i < 100; ++i) copy(i % 3);\n    copy(0);\n")
    x = np.arange(64 * CHUNKS, dtype=np.float32)
    arguments = (x, np.zeros(64, np.float32), np.int32(CHUNKS))
    summed = bench.run(text, "ahead", arguments, block=64, smem_bytes=3 * 256, order="ascending")[1]
    assert summed.sum() == x.sum()


STORES = """
#include <autotune_host_ptx.h>
extern "C" __global__ void stores(float* __restrict__ y) {
    extern __shared__ __align__(16) unsigned char smem[];
    float* staged = reinterpret_cast<float*>(smem);
    for (int i = 0; i < 3; ++i) {
        for (int j = 0; j < 4; ++j) staged[i % 2 * 4 + j] = 10.0f * i + j;
        fence_bulk();
        bulk_store(y + 4 * i, staged + i % 2 * 4, 16);
        bulk_store_commit();
        bulk_store_wait_read<1>();
    }
    bulk_store_wait_read<0>();
}
"""


@pytest.mark.parametrize(
    ("wait", "first", "last"),
    [
        ("", 0, 20),
        ("bulk_store_wait_read<1>();", 20, 20),  # the buffer is filled again before it is read
        ("bulk_store_wait_read<0>();", 0, 0),  # the block's memory is freed before it is read
    ],
)
def test_bulk_stores_read_as_late_as_they_may(bench: Bench, wait: str, first: int, last: int) -> None:
    (y,) = bench.run(
        STORES.replace(wait, "") if wait else STORES, "stores", (np.zeros((3, 4), np.float32),), smem_bytes=32
    )
    np.testing.assert_array_equal(y[:, 0], [first, 10, last])


OVERTAKEN = """
#include <autotune_host_ptx.h>
extern "C" __global__ void overtaken(float* __restrict__ y) {
    extern __shared__ __align__(16) unsigned char smem[];
    float* staged = reinterpret_cast<float*>(smem);
    if (threadIdx.x == 0) bulk_store(y, staged, 16);
    if (threadIdx.x == 0) bulk_store_commit();
    __syncthreads();
    if (threadIdx.x == 0) bulk_store_wait_read<0>();
    if (threadIdx.x == 32) for (int j = 0; j < 4; ++j) staged[j] = 7;
}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_a_bulk_store_takes_as_long_as_others_can_do_without_it(bench: Bench, order: Order) -> None:
    (y,) = bench.run(OVERTAKEN, "overtaken", (np.zeros(4, np.float32),), block=64, smem_bytes=16, order=order)
    np.testing.assert_array_equal(y, 7)
