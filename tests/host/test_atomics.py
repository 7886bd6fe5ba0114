"""Atomic functions lose nothing between threads, blocks and cores."""

from __future__ import annotations

import numpy as np
import pytest

from .kernels import Bench

THREADS, BLOCKS = 128, 64
TOTAL = THREADS * BLOCKS


@pytest.mark.parametrize(
    ("cuda", "dtype"),
    [
        ("int", np.int32),
        ("unsigned", np.uint32),
        ("unsigned long long", np.uint64),
        ("float", np.float32),
        ("double", np.float64),
    ],
)
def test_sums_over_blocks(bench: Bench, cuda: str, dtype: type[np.generic]) -> None:
    text = f"""
    extern "C" __global__ void add({cuda}* y) {{
        for (int i = 0; i < 300; ++i) atomicAdd(y + (i + threadIdx.x) % 2, static_cast<{cuda}>(1));
    }}
    """
    (y,) = bench.run(text, "add", (np.zeros(2, dtype),), grid=BLOCKS, block=THREADS)
    np.testing.assert_array_equal(y, 300 * TOTAL // 2)


def test_extremes_exchange_and_compare(bench: Bench) -> None:
    text = """
    extern "C" __global__ void extremes(int* signed_, unsigned* unsigned_, unsigned long long* wide) {
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        atomicMax(signed_, i - 5000);
        atomicMin(signed_ + 1, i - 5000);
        atomicMax(unsigned_, 0x80000000u + i);
        atomicMin(unsigned_ + 1, 0x80000000u + i);
        atomicOr(unsigned_ + 2, 1u << i % 32);
        atomicXor(unsigned_ + 3, 1u);
        atomicInc(unsigned_ + 4, 9);
        for (unsigned long long old = *wide;;) {
            const unsigned long long seen = atomicCAS(wide, old, old + 3);
            if (seen == old) break;
            old = seen;
        }
        if (atomicExch(signed_ + 2, 0)) atomicAdd(signed_ + 3, 1);
    }
    """
    signed = np.array([-(2**31), 2**31 - 1, 1, 0], np.int32)
    unsigned = np.array([0, 2**32 - 1, 0, 0, 0], np.uint32)
    arguments = (signed, unsigned, np.zeros(1, np.uint64))
    signed_out, unsigned_out, wide = bench.run(text, "extremes", arguments, grid=BLOCKS, block=THREADS)
    np.testing.assert_array_equal(signed_out, [TOTAL - 1 - 5000, -5000, 0, 1])
    np.testing.assert_array_equal(unsigned_out, [0x80000000 + TOTAL - 1, 0x80000000, 2**32 - 1, 0, TOTAL % 10])
    assert wide[0] == 3 * TOTAL


def test_atomics_return_the_old_value(bench: Bench) -> None:
    text = 'extern "C" __global__ void tickets(int* next, int* y) { y[atomicAdd(next, 1)] = 1; }'
    _, y = bench.run(text, "tickets", (np.zeros(1, np.int32), np.zeros(TOTAL, np.int32)), grid=BLOCKS, block=THREADS)
    assert y.all()


def test_half_precision_sums(bench: Bench) -> None:
    text = """
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    extern "C" __global__ void add(__half* h, __half2* h2, __nv_bfloat16* b) {
        atomicAdd(h, __float2half(0.5f));
        atomicAdd(h2, __floats2half2_rn(1.0f, 0.25f));
        atomicAdd(b, __float2bfloat16(1.0f));
    }
    """
    arguments = (np.zeros(1, np.float16), np.zeros(2, np.float16), np.zeros(1, np.uint16))
    h, h2, b = bench.run(text, "add", arguments, grid=16, block=16)
    assert (float(h[0]), float(h2[0]), float(h2[1])) == (128.0, 256.0, 64.0)
    assert b[0] == 0x4380  # 256 in bfloat16
