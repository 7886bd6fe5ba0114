"""Constants, device variables, shared memory of any size, and the device's own memory."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.devices.device import Launch
from autotune.errors import DeviceError, Rejected
from autotune.measurement.calibrate import calibration_program
from tests.compiled import compiled

from .kernels import Bench


def test_constants_are_filled_by_a_device_copy_and_device_variables_are_shared(bench: Bench) -> None:
    text = """
    __constant__ __align__(16) float w_const[3][5];
    __constant__ const int table[2] = {7, 9};
    __device__ unsigned counter;
    extern "C" __global__ void read(float* y) {
        y[threadIdx.x] = w_const[threadIdx.x / 5][threadIdx.x % 5] + table[threadIdx.x % 2];
        atomicAdd(&counter, 1u);
    }
    """
    device, module = bench.device, bench.load(text, "read")
    weights = np.arange(15, dtype=np.float32)
    origin, y = device.allocate(60), device.allocate(60)
    device.write(origin, weights.tobytes())
    address, size_bytes = module.symbol("w_const")
    assert size_bytes == 60
    device.copy(address, origin, size_bytes)
    module.launch(Launch("read", (100, 1, 1), (15, 1, 1), 0, (np.uint64(y),)))
    np.testing.assert_array_equal(np.frombuffer(device.read(y, 60), np.float32), weights + 7 + 2 * (np.arange(15) % 2))
    assert np.frombuffer(device.read(*module.symbol("counter")), np.uint32)[0] == 1500
    with pytest.raises(Rejected, match="no variable absent"):
        module.symbol("absent")
    device.free(origin)
    device.free(y)
    module.unload()


def test_resources_of_a_program(bench: Bench) -> None:
    from autotune.compilation.compile import Program

    text = """
    __constant__ float w_const[10];
    extern "C" __global__ void k(float* y) {
        extern __shared__ __align__(16) unsigned char smem[];
        __shared__ float a[100];
        __shared__ char b[7];
        a[threadIdx.x] = b[threadIdx.x % 7] = smem[threadIdx.x];
        y[0] = a[1] + w_const[2];
    }
    extern "C" __global__ void other(float* y) {
        __shared__ float c[90];
        c[threadIdx.x] = y[threadIdx.x];
        y[1] = c[1];
    }
    """
    resources = compiled(Program(text, ("k", "other")), cxx=bench.cxx).resources
    assert (resources.static_smem_bytes, resources.constant_bytes) == (407, 40)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'extern "C" __global__ void k(float* y) { __shared__ float a[12289]; a[0] = 1; y[0] = a[0]; }',
            "too much shared data",
        ),
        (
            '__constant__ float w[16385]; extern "C" __global__ void k(float* y) { y[0] = w[0]; }',
            "too much global constant data",
        ),
    ],
)
def test_more_static_memory_than_a_gpu_has_does_not_compile(bench: Bench, text: str, words: str) -> None:
    with pytest.raises(Rejected, match=words) as rejected:
        bench.load(text, "k")
    assert rejected.value.outcome == "compile"


def test_dynamic_shared_memory_up_to_227_kilobytes(bench: Bench) -> None:
    text = """
    extern __shared__ __align__(16) unsigned char smem[];
    extern "C" __global__ void k(float* y, int n) {
        float* tile = reinterpret_cast<float*>(smem);
        for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = static_cast<float>(i + blockIdx.x);
        __syncthreads();
        float sum = 0;
        for (int i = threadIdx.x; i < n; i += blockDim.x) sum += tile[n - 1 - i];
        y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
    }
    """
    n = 232448 // 4
    (y,) = bench.run(text, "k", (np.zeros((3, 128), np.float32), np.int32(n)), grid=3, block=128, smem_bytes=232448)
    np.testing.assert_allclose(
        y.astype(np.float64).sum(axis=1), [n * (n - 1) / 2 + block * n for block in range(3)], rtol=1e-5
    )


def test_every_extern_shared_array_starts_at_the_same_place(bench: Bench) -> None:
    text = """
    extern "C" __global__ void k(int* y) {
        extern __shared__ float a[];
        extern __shared__ int b[];
        a[threadIdx.x] = 1.0f;
        y[threadIdx.x] = b[threadIdx.x];
    }
    """
    (y,) = bench.run(text, "k", (np.zeros(4, np.int32),), block=4, smem_bytes=16)
    np.testing.assert_array_equal(y, 0x3F800000)


def test_shared_memory_that_nobody_wrote_is_nan_in_every_block(bench: Bench) -> None:
    text = """
    extern "C" __global__ void k(float* y) {
        extern __shared__ __align__(16) unsigned char smem[];
        __shared__ float fixed[8];
        float* tile = reinterpret_cast<float*>(smem);
        y[2 * blockIdx.x] = tile[3];
        y[2 * blockIdx.x + 1] = fixed[3];
        tile[3] = fixed[3] = 1.0f;
    }
    """
    (y,) = bench.run(text, "k", (np.zeros((50, 2), np.float32),), grid=50, smem_bytes=32)
    assert np.isnan(y).all()


def test_device_memory(bench: Bench) -> None:
    device = bench.device
    address = device.allocate(1000)
    assert address % 256 == 0
    device.fill(address, 0xAB, 1000)
    assert device.read(address, 1000) == b"\xab" * 1000
    device.free(address)
    with pytest.raises(DeviceError, match="not allocated"):
        device.free(address)
    with pytest.raises(Rejected) as rejected:
        device.allocate(device.info.memory_bytes + 1)
    assert (rejected.value.outcome, rejected.value.reason) == ("runtime", "out_of_memory")


@pytest.mark.parametrize(("entry", "blocks"), [("copy_ahead", 2), ("copy_streamed", 5)])
def test_the_copies_that_bound_copy_everything(bench: Bench, entry: str, blocks: int) -> None:
    """Otherwise their rate would be too high."""
    tiles, words = 5, 4 * 4 * 256  # of a tile
    source = np.arange(tiles * words, dtype=np.float32)
    given = np.zeros_like(source), source, np.int64(tiles)
    copied, kept = bench.run(calibration_program().text, entry, given, grid=blocks, block=256)
    np.testing.assert_array_equal(copied, source)
    np.testing.assert_array_equal(kept, source)


@pytest.mark.parametrize("place", [0, 3, 4 * 1024 - 1, 4 * 1024, 5 * 4 * 1024 - 2])
def test_the_reads_that_bound_read_everything(bench: Bench, place: int) -> None:
    """A thread tests for a sum that never occurs in a calibration: here of one element, all others being 0."""
    source = np.zeros(5 * 4 * 4 * 256, dtype=np.float32)
    source[place] = 12345.678
    given = np.zeros(1, np.float32), source, np.int64(5)
    told, _ = bench.run(calibration_program().text, "read_memory", given, grid=2, block=256)
    assert told[0] == source[place]
