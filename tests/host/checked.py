"""Run FAULTY in check mode without and with each fault: `python -m tests.host.checked CXX FOLDER`.

It is a process of its own, because AddressSanitizer must be loaded from the
start. It forks for each fault, because AddressSanitizer ends a process at the first error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from autotune.compilation.compile import Program, Target
from autotune.devices.device import Launch, Variation
from autotune.devices.host import HostDevice, HostModule
from autotune.devices.host_runtime import ORDERS
from tests.compiled import compiled, host_device

FAULTY = """
extern "C" __global__ void faulty(const float* __restrict__ x, float* __restrict__ y, int n, int fault) {
    extern __shared__ __align__(16) unsigned char smem[];
    float* tile = reinterpret_cast<float*>(smem);
    __shared__ float fixed[4][16];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int t = threadIdx.x;
    tile[t] = x[i];
    fixed[t / 16][t % 16] = x[i];
    __syncthreads();
    float v = tile[63 - t] + fixed[0][0];
    if (fault == 1) v += x[i + 1];
    if (fault == 2) y[n] = v;
    if (fault == 3) v += tile[64 + t];
    if (fault == 4) v += fixed[t % 16][t / 16];
    if (fault == 5) v += reinterpret_cast<const float4*>(x + 1)->x;
    if (fault == 6) v += (n + i) * 900000;
    __syncthreads();
    y[i] = v;
}
"""
FAULTS = 6
THREADS, BLOCKS = 64, 40
N = THREADS * BLOCKS


def main() -> None:
    """Compile once, then run each fault in a fork, whose output goes to FOLDER/FAULT; print the exit codes of the
    forks.
    """
    cxx, folder = sys.argv[1], Path(sys.argv[2])
    device = host_device(cxx)
    module = device.load(compiled(Program(FAULTY, ("faulty",)), Target("host", check=True), cxx=cxx))
    codes = []
    for fault in range(FAULTS + 1):
        child = os.fork()
        if child == 0:
            with open(folder / str(fault), "w") as words:
                os.dup2(words.fileno(), sys.stderr.fileno())
            run(device, module, fault)
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(*codes)


def run(device: HostDevice, module: HostModule, fault: int) -> None:
    """Run in four orders of threads, compare."""
    x, y = device.allocate(4 * N), device.allocate(4 * N)
    content = np.arange(N, dtype=np.float32)
    device.write(x, content.tobytes())
    args = (np.uint64(x), np.uint64(y), np.int32(N), np.int32(fault))
    rows = content.reshape(BLOCKS, THREADS)
    for order in ORDERS:
        with device.varied(Variation(order)):
            module.launch(Launch("faulty", (BLOCKS, 1, 1), (THREADS, 1, 1), 4 * THREADS, args))
        result = np.frombuffer(device.read(y, 4 * N), np.float32)
        np.testing.assert_array_equal(result, (rows[:, ::-1] + rows[:, :1]).reshape(-1))


if __name__ == "__main__":
    main()
