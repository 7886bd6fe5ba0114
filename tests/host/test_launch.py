"""Launching: geometry, limits, and failures that end a kernel but not the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from autotune.compilation.cache import BinaryCache
from autotune.compilation.compile import Program, Target
from autotune.devices.device import Launch, Passes
from autotune.devices.host import HostOptions
from autotune.devices.host_compile import HostCompiler, compile_host
from autotune.errors import DeviceError, Rejected, ToolchainError
from tests.compiled import host_device

from .kernels import Bench

NOTHING = 'extern "C" __global__ void nothing(int* y) {}'


def test_every_thread_of_a_three_dimensional_launch_runs_once(bench: Bench) -> None:
    text = """
    extern "C" __global__ void where(int* y) {
        const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        atomicAdd(y + block * (blockDim.x * blockDim.y * blockDim.z) + thread, 1 + threadIdx.z);
    }
    """
    (y,) = bench.run(text, "where", (np.zeros((5 * 3 * 7, 2, 3, 11), np.int32),), grid=(5, 3, 7), block=(11, 3, 2))
    np.testing.assert_array_equal(y[:, 0], 1)
    np.testing.assert_array_equal(y[:, 1], 2)


def test_a_ragged_grid_leaves_what_lies_behind_untouched(bench: Bench) -> None:
    text = """
    extern "C" __global__ void fill(float* y, int n) {
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = 1.0f;
    }
    """
    (y,) = bench.run(text, "fill", (np.zeros(1024, np.float32), np.int32(1000)), grid=8, block=128)
    assert y[:1000].all()
    assert not y[1000:].any()


@pytest.mark.parametrize(
    ("grid", "block", "smem_bytes", "words"),
    [
        ((1, 1, 1), (1025, 1, 1), 0, "block.x = 1025"),
        ((1, 1, 1), (1, 1, 65), 0, "block.z = 65"),
        ((1, 1, 1), (32, 33, 1), 0, "1056 threads"),
        ((1, 65536, 1), (1, 1, 1), 0, "grid.y = 65536"),
        ((0, 1, 1), (1, 1, 1), 0, "grid.x = 0"),
        ((1, 1, 1), (1, 1, 1), 232449, "232449 bytes of shared memory"),
    ],
)
def test_a_launch_beyond_the_limits_is_refused(
    bench: Bench, grid: tuple[int, int, int], block: tuple[int, int, int], smem_bytes: int, words: str
) -> None:
    with pytest.raises(Rejected, match=words) as rejected:
        bench.run(NOTHING, "nothing", (np.zeros(1, np.int32),), grid=grid, block=block, smem_bytes=smem_bytes)
    assert (rejected.value.outcome, rejected.value.reason) == ("runtime", "launch_failure")


def test_a_block_beyond_its_launch_bounds_is_refused(bench: Bench) -> None:
    text = """
    constexpr int WARPS = 2;
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) fill(int* y) { y[threadIdx.x] = 1; }
    """
    (y,) = bench.run(text, "fill", (np.zeros(64, np.int32),), block=64)
    assert y.all()
    with pytest.raises(Rejected, match="65 threads per block, at most 64") as rejected:
        bench.run(text, "fill", (np.zeros(65, np.int32),), block=65)
    assert rejected.value.reason == "launch_failure"


def test_static_and_dynamic_shared_memory_count_together(bench: Bench) -> None:
    text = 'extern "C" __global__ void k(int* y) { __shared__ int a[256]; a[y[0]] = 1; y[0] = a[3]; }'
    with pytest.raises(Rejected, match="232449 bytes of shared memory"):
        bench.run(text, "k", (np.zeros(1, np.int32),), smem_bytes=232449 - 1024)


def test_wrong_arguments_and_unknown_entries_are_refused(bench: Bench) -> None:
    module = bench.load(NOTHING, "nothing")
    for entry, args in (("nothing", (np.uint64(0), np.int32(1))), ("nothing", (np.int32(1),)), ("other", ())):
        with pytest.raises(Rejected) as rejected:
            module.launch(Launch(entry, (1, 1, 1), (1, 1, 1), 0, args))
        assert rejected.value.reason == "launch_failure"
    module.unload()


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        ("if (blockIdx.x == 3 && threadIdx.x == 5) __trap();", "trap", r"kernel.cu:\d+: .*\(3, 0, 0\), .*\(5, 0, 0\)"),
        ("__syncthreads(); assert(y[0] == 77);", "assert", r"kernel.cu:\d+: y\[0\] == 77"),
        ("__syncthreads(); y[1l << 40] = 1;", "illegal_address", r"block \(\d, 0, 0\), thread"),
        ("y[0] = 7 / y[0];", "trap", "division by zero"),
    ],
)
def test_a_kernel_that_fails_is_reported_and_the_device_goes_on(
    bench: Bench, body: str, reason: str, words: str
) -> None:
    text = f'extern "C" __global__ void bad(int* y) {{ {body} }}'
    with pytest.raises(Rejected, match=words) as rejected:
        bench.run(text, "bad", (np.zeros(1, np.int32),), grid=8, block=32)
    assert (rejected.value.outcome, rejected.value.reason) == ("runtime", reason)
    bench.device.synchronize()
    (y,) = bench.run(
        'extern "C" __global__ void good(int* y) { __syncthreads(); y[threadIdx.x] = threadIdx.x; }',
        *("good", (np.zeros(64, np.int32),)),
        block=64,
    )
    np.testing.assert_array_equal(y, np.arange(64))


def test_a_launch_past_its_time_limit_is_stopped(cxx: str) -> None:
    text = """
    extern "C" __global__ void slow(int* y) {
        for (long long end = clock64() + 3000000; clock64() < end;) {}
        atomicAdd(y, 1);
    }
    """
    short = Bench(host_device(cxx, HostOptions(cores=2, launch_limit_s=0.02)), cxx)
    with pytest.raises(Rejected, match="time limit") as rejected:
        short.run(text, "slow", (np.zeros(1, np.int32),), grid=100000)
    assert (rejected.value.outcome, rejected.value.reason) == ("timeout", "hang")


def test_a_compile_error_says_the_line(bench: Bench) -> None:
    text = '\n\nextern "C" __global__ void k(float* y) {\n    y[0] = undeclared_name;\n}\n'
    with pytest.raises(Rejected) as rejected:
        bench.load(text, "k")
    assert (rejected.value.outcome, rejected.value.reason) == ("compile", "compile_error")
    assert rejected.value.message.startswith("kernel.cu:4:")
    assert "undeclared_name" in rejected.value.message


def test_a_header_that_the_host_lacks_is_told(bench: Bench) -> None:
    with pytest.raises(Rejected, match=r"mma.h: No such file .*; the host supports only some of CUDA's headers"):
        bench.load("#include <mma.h>\n", "k")


def test_a_function_that_the_host_lacks_is_told(bench: Bench) -> None:
    text = 'extern "C" __global__ void k(int* y) { y[0] = __vavg4(1, 2); }'
    with pytest.raises(Rejected, match=r"'__vavg4' .*; the host supports only some of CUDA's functions"):
        bench.load(text, "k")


@pytest.mark.parametrize("before", ["", "template <int N>\n", "template <class T, int N = (3 > 2)> static\n"])
def test_a_kernel_with_the_name_that_cpp_gives_it_is_refused_as_on_a_gpu(bench: Bench, before: str) -> None:
    with pytest.raises(Rejected, match=r'no kernel k by that name: write extern "C" __global__ void k\(\.\.\.\)'):
        bench.load(before + "__global__ void k(float* y) { y[0] = 1.0f; }", "k")


def test_a_compiler_that_takes_too_long_or_is_missing() -> None:
    program = Program(NOTHING, ("nothing",))
    with pytest.raises(ToolchainError, match="set CXX"):
        compile_host(program, Target("host"), cxx="/nonexistent/c++")


def test_a_program_for_another_device_is_not_loaded(bench: Bench) -> None:
    binary = compile_host(Program(NOTHING, ("nothing",)), Target("null"), cxx=bench.cxx)
    with pytest.raises(DeviceError, match="null"):
        bench.device.load(binary)


def test_loading_again_and_again_leaves_nothing_behind(bench: Bench) -> None:
    def answer(value: int) -> int:
        text = f'__constant__ int c[1] = {{{value}}}; extern "C" __global__ void k(int* y) {{ y[0] = c[0]; }}'
        (y,) = bench.run(text, "k", (np.zeros(1, np.int32),))
        return int(y[0])

    answer(0)
    files = len(os.listdir("/proc/self/fd"))
    with open("/proc/self/maps") as maps:
        libraries = maps.read().count("autotune-kernel")
    assert [answer(value) for value in range(1, 6)] == [1, 2, 3, 4, 5]
    assert len(os.listdir("/proc/self/fd")) == files
    with open("/proc/self/maps") as maps:
        assert maps.read().count("autotune-kernel") == libraries


def test_time_is_that_of_the_launches(bench: Bench) -> None:
    text = """
    extern "C" __global__ void spin(int* y, int ticks) {
        for (long long end = clock64() + ticks; clock64() < end;) {}
    }
    """
    module = bench.load(text, "spin")
    y = bench.device.allocate(4)

    def spin(ticks: int) -> float:
        launch = Launch("spin", (1, 1, 1), (1, 1, 1), 0, (np.uint64(y), np.int32(ticks)))
        return min(
            bench.device.time(Passes(lambda: module.launch(launch)), cold=cold).us for cold in (False, True, False)
        )

    short, long = spin(1_000_000), spin(20_000_000)
    assert 10 < long / short < 40
    bench.device.free(y)
    module.unload()


def test_integer_and_rounding_intrinsics(bench: Bench) -> None:
    text = """
    extern "C" __global__ void k(unsigned* u, float* f) {
        u[0] = __brev(0x00000001u);
        u[1] = __popc(0xf0f00001u);
        u[2] = __clz(0x00010000);
        u[3] = __clz(0);
        u[4] = __umulhi(0x80000000u, 6u);
        u[5] = __byte_perm(0x33221100u, 0x77665544u, 0x7160);
        u[6] = __float_as_uint(-2.0f);
        u[7] = max(3, 5u) + min(-2, 9) + __ffs(8) + __float2int_rn(2.5f) + __funnelshift_l(0x80000000u, 1u, 1);
        f[0] = __int_as_float(0x40490fdb);
        f[1] = f[11] * f[12] - 1.0f;  // one operation, as on the GPU
        f[2] = __fadd_rn(__fmul_rn(f[9], f[10]), -1.0f);
        f[3] = fmaxf(fminf(3.0f, 7.0f), -1.0f) + sqrtf(4.0f) + abs(-1.5f) + rsqrtf(0.25f);
        const float4 v = make_float4(1, 2, 3, 4);
        *reinterpret_cast<float4*>(f + 4) = v;
        f[8] = __ldg(f + 7) + make_double2(0.5, 1.5).y;
    }
    """
    floats = np.zeros(13, np.float32)
    floats[9:] = [1 + 2.0**-23, 1 - 2.0**-23] * 2
    u, f = bench.run(text, "k", (np.zeros(8, np.uint32), floats))
    expected = [0x80000000, 9, 15, 32, 3, 0x77116600, 0xC0000000, 5 - 2 + 4 + 2 + 3]
    np.testing.assert_array_equal(u, expected)
    np.testing.assert_array_equal(
        f[:9], np.array([np.pi, -(2.0**-46), 0, 3 + 2 + 1.5 + 2, 1, 2, 3, 4, 5.5], np.float32)
    )


def test_the_portable_fiber_switch_runs_the_same_kernels(cxx: str) -> None:
    command = [sys.executable, "-m", "tests.host.portable", cxx]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout.strip()) == (0, "ran"), done.stderr


def test_a_forked_process_starts_its_own_threads(bench: Bench) -> None:
    text = 'extern "C" __global__ void k(int* y) { __syncthreads(); atomicAdd(y, 1); }'
    bench.run(text, "k", (np.zeros(1, np.int32),), grid=50, block=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # ends it if it waits for threads that it does not have
        (y,) = bench.run(text, "k", (np.zeros(1, np.int32),), grid=50, block=40)
        os._exit(0 if y[0] == 2000 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_what_a_cache_has_is_not_compiled_again(cxx: str, tmp_path: Path) -> None:
    """The compiler is identified by its name and version, so one that compiles nothing can take its place."""
    cache, known, other = BinaryCache(tmp_path / "cache"), Program(NOTHING, ("nothing",)), Program("int own;", ())
    compiled = HostCompiler(cxx, cache)(known)
    useless = tmp_path / Path(cxx).name
    useless.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec {cxx} --version\nexit 1\n')
    useless.chmod(0o755)
    again = HostCompiler(str(useless), cache)
    assert again(known) == compiled
    with pytest.raises(ToolchainError, match="a library of the host device: the compiler failed without a message"):
        again.own(other)
