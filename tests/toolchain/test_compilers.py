"""The compilers' output is read correctly, and a missing compiler is reported with the way to install it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.compilation.compile import NVCC_FLAGS, PRELUDE, Binary, Program, Target, compile_cubin, ptxas_resources
from autotune.compilation.toolchain import compiler_version, find_cxx, find_nvcc
from autotune.devices.backends import compile_program
from autotune.errors import Rejected, ToolchainError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.problem import Conv2dProblem
from autotune.workers import compilers
from tests.long_run import every

KNOWN = """
__constant__ float table[100];
extern "C" __global__ void plain(float* y) { y[threadIdx.x] = table[threadIdx.x]; }
extern "C" __global__ void sharing(float* y) {
    __shared__ float tile[300];
    tile[threadIdx.x] = y[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[299 - threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(1024, MIN_BLOCKS) hoarding(float* y) {
    float kept[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) kept[i] = y[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; ++i) y[i * 1024 + threadIdx.x] = kept[63 - i] * kept[i];
}
"""
ENTRIES = ("plain", "sharing", "hoarding")


def compiled(min_blocks: int, arch: int) -> Binary:
    """100 floats of constant memory, 300 of shared, 64 registers a thread or 32 and spills."""
    return compile_cubin(Program(KNOWN.replace("MIN_BLOCKS", str(min_blocks)), ENTRIES), arch, find_nvcc())


def test_a_kernel_with_the_name_that_cpp_gives_it_is_refused() -> None:
    program = Program("__global__ void k(float* y) { y[0] = 1.0f; }", ("k",))
    with pytest.raises(Rejected, match=r'no kernel k by that name: write extern "C" __global__ void k\('):
        compile_cubin(program, 90, find_nvcc())


def register_counts(image: bytes) -> list[int]:
    """Registers of each kernel from the cubin's section `.nv.info`, not from ptxas -v."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", image, table + i * size) for i in range(count)]
    found = []
    for name, _, _, _, offset, length in headers:
        if not image.startswith(b".nv.info\0", headers[names][4] + name):
            continue
        at = offset
        while at < offset + length:
            form, attribute, value = struct.unpack_from("<BBH", image, at)
            if (form, attribute) == (4, 0x2F):  # EIATTR_REGCOUNT: symbol, registers
                found.append(struct.unpack_from("<II", image, at + 4)[1])
            at += 4 + (value if form == 4 else 0)
    return found


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", every(2, [75, 80, 90, 100, 120]))
def test_resources_of_known_kernels(arch: int) -> None:
    resources = compiled(1, arch).resources
    assert resources.static_smem_bytes == 1200
    assert resources.constant_bytes == 400
    assert resources.spill_bytes == 0
    counts = register_counts(compiled(1, arch).image)
    assert len(counts) == len(ENTRIES)
    assert resources.registers == max(counts) >= 60


ALL_NAMES = """
#include <cuda_bf16.h>
template <typename A, typename B>
__device__ void extremes(A a, B b, A* y) {
    y[0] = min(a, b);
    y[1] = max(a, b);
}
extern "C" __global__ void __launch_bounds__(64) all_names(
    __half* h, float* f, double* d, int* i, unsigned* u, long* l, unsigned long* ul, long long* ll,
    unsigned long long* ull) {
    extern __shared__ __align__(16) float smem[];
    smem[threadIdx.x] = fmaf(f[0], f[1], f[2]) + sqrtf(f[3]) + logf(f[4]) + cosf(f[5]) + sinf(f[6]) + tanhf(f[7]);
    __syncthreads();
    f[blockIdx.x * blockDim.x] = smem[63 - threadIdx.x] + fabsf(f[8]) + __fsub_rn(f[9], f[10]);
    __syncwarp();
    u[gridDim.x] = static_cast<unsigned>(__cvta_generic_to_shared(smem)) + __float_as_uint(f[11]);
    u[21] = __float2uint_rz(f[12]), u[22] = __byte_perm(u[23], u[24], u[25]);
    f[19] = __fmaf_rn(f[1], f[2], f[3]) + __fmaf_ieee_rn(f[1], f[2], f[3]);
    f[20] = __uint_as_float(u[1]) + fminf(f[13], f[14]) + fmaxf(f[15], f[16]);
    i[0] = __shfl_sync(0xffffffffu, i[1], 0) + __float2int_rz(f[17]);
    d[0] = fabs(d[1]) + fmax(d[2], d[3]) + exp(d[4]) + erfc(d[5]) + tanh(d[6]);
    h[0] = __float2half_rn(__half2float(h[1]) + __bfloat162float(__float2bfloat16_rn(f[18])));
    h[2] = __hfma(h[3], h[4], h[5]);
    __half2 pair = __hfma2(__halves2half2(h[6], h[7]), __half2half2(h[8]), __floats2half2_rn(f[30], f[31]));
    pair = __hfma2(pair, pair, __float2half2_rn(f[32]));
    f[33] = __low2float(pair) - __high2float(pair);
    memcpy(ll, d, sizeof *ll);
    atomicAdd(i, 1), atomicAdd(u, 1u), atomicAdd(ull, 1ull), atomicAdd(f, 1.0f), atomicAdd(d, 1.0);
    atomicMin(ull + 1, 1ull), atomicMax(ull + 2, 1ull);
    extremes(i[2], i[3], i + 4), extremes(u[2], u[3], u + 4), extremes(u[6], i[7], u + 8), extremes(u[2], i[9], u + 10);
    extremes(l[0], l[1], l + 2), extremes(ul[0], ul[1], ul + 2), extremes(ul[4], l[5], ul + 6);
    extremes(ll[0], ll[1], ll + 2), extremes(ull[0], ull[1], ull + 2), extremes(ull[4], ll[5], ull + 6);
    extremes(f[21], f[22], f + 23);
    u[20] = min(i[12], u[13]), ul[20] = max(l[12], ul[13]), ull[20] = min(ll[12], ull[13]);
}
"""
"""every name of prelude.h, and of the cuda_fp16.h and cuda_bf16.h next to it"""


def by_nvcc_alone(text: str, arch: int, folder: Path) -> bytes:
    """The cubin that nvcc makes with CUDA's own headers."""
    (folder / "kernel.cu").write_text(text)
    command = [str(find_nvcc()), *NVCC_FLAGS, f"-arch=sm_{arch}", "-cubin", "kernel.cu"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return (folder / "kernel.cubin").read_bytes()


@pytest.mark.nvcc
def test_the_prelude_changes_no_cubin(tmp_path: Path) -> None:
    whole = by_nvcc_alone(ALL_NAMES, 90, tmp_path)
    command = [str(find_nvcc()), *NVCC_FLAGS, *PRELUDE, "-arch=sm_90", "-cubin", "kernel.cu"]
    with_prelude = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert b"warning" not in with_prelude.stderr
    assert (tmp_path / "kernel.cubin").read_bytes() == whole


MORE = {
    "a function": "y[__popc(threadIdx.x)] = rsqrtf(min(static_cast<double>(y[1]), 2.0));",
    "an operator": "y[0] = __half2float(__float2half_rn(y[1]) + __float2half_rn(y[2]));",
    "a half of a number": "y[0] = __half2float(__half{1});",
    "another overload": "y[0] = exp(y[1]);",
    "another overload of two": "y[0] = fmax(y[1], y[2]);",
}


@pytest.mark.nvcc
@pytest.mark.parametrize("what", every(2, MORE))
def test_a_text_that_needs_more_of_cuda_is_compiled_with_all_headers(what: str, tmp_path: Path) -> None:
    text = f'#include <cuda_fp16.h>\nextern "C" __global__ void more(float* y) {{ {MORE[what]} }}\n'
    assert compile_cubin(Program(text, ("more",)), 90, find_nvcc()).image == by_nvcc_alone(text, 90, tmp_path)


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", [75, 80])
def test_types_of_16_bits_before_hopper_are_cudas_own(arch: int, tmp_path: Path) -> None:
    compiled = compile_cubin(Program(ALL_NAMES, ("all_names",)), arch, find_nvcc())
    assert compiled.image == by_nvcc_alone(ALL_NAMES, arch, tmp_path)


@pytest.mark.nvcc
def test_spills_are_counted() -> None:
    resources = compiled(2, 90).resources
    assert resources.registers == 32
    assert resources.spill_bytes > 40


def test_ptxas_report_is_the_largest_over_the_kernels() -> None:
    resources = ptxas_resources(
        "ptxas info    : 0 bytes gmem\n"
        "ptxas info    : Compiling entry function 'a' for 'sm_90'\n"
        "    8 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem\n"
        "ptxas info    : Compiling entry function 'b' for 'sm_90'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 128 registers, used 0 barriers\n"
    )
    assert (resources.registers, resources.spill_bytes, resources.static_smem_bytes) == (128, 32, 1024)


@pytest.mark.nvcc
def test_products_of_four_warps_are_compiled_for_their_architecture_alone() -> None:
    text = 'extern "C" __global__ void fence() { asm volatile("wgmma.fence.sync.aligned;"); }\n'
    assert compile_cubin(Program(text, ("fence",)), 90, find_nvcc()).image
    with pytest.raises(Rejected, match="wgmma"):
        compile_cubin(Program(text, ("fence",)), 80, find_nvcc())


BROKEN = 'extern "C" __global__ void broken(float* y) {\n    const int i = threadIdx.x;\n    y[i] = nothing;\n}\n'


@pytest.mark.nvcc
def test_nvcc_error_names_the_line() -> None:
    with pytest.raises(Rejected, match=r"kernel\.cu\(3\): error: identifier \"nothing\" is undefined") as error:
        compile_cubin(Program(BROKEN, ("broken",)), 90, find_nvcc())
    assert (error.value.outcome, error.value.reason) == ("compile", "compile_error")
    assert "/tmp" not in error.value.message


@pytest.mark.cxx
def test_host_error_names_the_line() -> None:
    with pytest.raises(Rejected, match=r"kernel\.cu:3:\d+: error: .*nothing") as error:
        compile_program(Program(BROKEN, ("broken",)), Target("host"))
    assert (error.value.outcome, error.value.reason) == ("compile", "compile_error")


@pytest.mark.nvcc
def test_nvcc_version_is_read() -> None:
    name, version = compiler_version(find_nvcc()).split()
    assert name == "nvcc"
    assert len(version.split(".")) == 3


# ---- a missing compiler ----


def test_missing_cxx_compiler_says_how_to_get_one() -> None:
    with pytest.raises(ToolchainError, match=r"apt-get install g\+\+.*CXX"):
        find_cxx({"PATH": "/nonexistent"})


def test_cxx_variable_chooses_the_compiler(tmp_path: Path) -> None:
    own = tmp_path / "mycxx"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    assert find_cxx({"CXX": str(own), "PATH": os.environ["PATH"]}) == own


def test_cuda_home_comes_first(tmp_path: Path) -> None:
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\n")
    assert find_nvcc({"CUDA_HOME": str(tmp_path), "PATH": ""}) == nvcc


NO_CUDA = """
import sys
import time
from collections.abc import Callable
from pathlib import Path
sys.modules["cuda"] = None  # the CUDA wheels are not installed
from autotune.compilation.toolchain import find_nvcc
find_nvcc({"PATH": ""}, system=Path("/nonexistent"))
"""


def test_missing_nvcc_says_how_to_get_it() -> None:
    done = subprocess.run([sys.executable, "-c", NO_CUDA], capture_output=True, text=True, check=False)
    assert "ToolchainError: nvcc not found" in done.stderr
    assert "pip install 'autotune-conv[cuda13]'" in done.stderr


def test_compiler_without_an_answer_is_reported(tmp_path: Path) -> None:
    silent = tmp_path / "nvcc"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    with pytest.raises(ToolchainError, match="--version fails"):
        compiler_version(silent)


OWN = Program('extern "C" __global__ void one(float* y) { y[0] = 1; }', ("one",))


@pytest.mark.cxx
def test_what_nothing_goes_on_without_may_take_longer_than_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_SEEN": 1, "LEAST_DEADLINE_S": 0.01, "DEADLINE_FACTOR": 0.0}.items():
        monkeypatch.setattr(compilers, name, value)
    pool = compilers.CompilePool(1, None)
    try:
        for _ in range(2):
            assert pool.submit_own(OWN, Target("host"), "it").result().image
        with pytest.raises(Rejected, match="no answer within 0 s"):
            pool.submit(OWN, Target("host")).result()
    finally:
        pool.close()


FUSSY = """#!/bin/sh
case "$*" in *--version*) exec {cxx} "$@";; esac
text=$(cat)
case "$text" in *fill_integers*) echo "internal compiler error" >&2; exit 4;; esac
printf '%s\\n' "$text" | {cxx} "$@"
"""


@pytest.mark.cxx
def test_compiler_that_fails_on_what_verifies_kernels_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fussy = tmp_path / "fussy"
    fussy.write_text(FUSSY.format(cxx=find_cxx()))
    fussy.chmod(0o755)
    monkeypatch.setenv("CXX", str(fussy))
    evaluator = DeviceEvaluator(["host"], 1)
    try:
        with pytest.raises(ToolchainError) as raised:
            evaluator.begin_layer(Conv2dProblem(1, 1, 4, 4, 1, 3, 3))
    finally:
        evaluator.close()
    words = str(raised.value)
    assert words.startswith("host: the program that verifies kernels with ")
    assert "reference.cuh cannot be compiled: " in words
    assert words.endswith("; check that the compiler works")
    assert "internal compiler error" in words


STUBBORN = """#!/bin/sh
case "$*" in *--version*) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit;; esac
touch "$TMPDIR/tmpxft"
exec sleep 1000
"""
ASK = """
import sys
from autotune.compilation.compile import Program, Target
from autotune.errors import Rejected
from autotune.workers.compilers import CompilePool
pool = CompilePool(1, None, deadline_s=float(sys.argv[1]))
try:
    pool.submit(Program("", (), ()), Target("cuda", 90)).result()
except Rejected as rejected:
    print(rejected.message)
pool.close()
"""


def asked(tmp_path: Path, deadline_s: float) -> tuple[subprocess.Popen[str], Path]:
    """A process that waits for an nvcc that never ends; their folder for temporary files."""
    nvcc, temporary = tmp_path / "bin" / "nvcc", tmp_path / "tmp"
    nvcc.parent.mkdir()
    temporary.mkdir()
    nvcc.write_text(STUBBORN)
    nvcc.chmod(0o755)
    environ = {**os.environ, "CUDA_HOME": str(tmp_path), "TMPDIR": str(temporary)}
    words = [sys.executable, "-c", ASK, str(deadline_s)]
    return subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True), temporary


def test_compiler_that_never_ends_leaves_no_temporary_file(tmp_path: Path) -> None:
    asking, temporary = asked(tmp_path, 1.0)
    with asking:
        assert asking.communicate()[0] == "no answer within 1 s\n"
    assert not list(temporary.iterdir())


def test_compiler_leaves_no_temporary_file_where_the_program_is_killed(tmp_path: Path) -> None:
    asking, temporary = asked(tmp_path, 60.0)
    with asking:
        until(lambda: list(temporary.rglob("tmpxft")))
        asking.kill()
    until(lambda: not list(temporary.iterdir()))


def test_idle_compilers_of_a_program_that_just_ends_leave_no_temporary_file(tmp_path: Path) -> None:
    words = (
        "import os\n"
        "from autotune.workers.compiler_messages import CompilerRequest\n"
        "from autotune.workers.worker import Worker\n"
        "for worker in [Worker() for _ in range(4)]: worker.ask(CompilerRequest('host'), 60.0)\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", words], check=True, env={**os.environ, "TMPDIR": str(tmp_path)})
    until(lambda: not list(tmp_path.iterdir()))


def until(reached: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    end_s = time.monotonic() + 10.0
    while not reached():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_tuning_without_a_compiler_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "tune", "quickstart", "--device", "host", "--db", str(tmp_path / "r.db")],
        capture_output=True,
        text=True,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "CXX"} | {"PATH": "/nonexistent"},
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("autotune: no C++ compiler found")
    assert "apt-get install g++" in done.stderr
    assert "Traceback" not in done.stderr
