"""Defects that tests plant in shipped kernels, and in one of `autotune new-op`, with the expected result of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.api.starter import new_operation
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_template
from autotune.problem import Problem, make_problem
from autotune.resources import shipped
from autotune.trial import Value

from .injected_faults import FAULTS, GOOD

Edits = tuple[tuple[str, str], ...]

NEW_OP = "add_bias"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A correct kernel: its family, a problem, and the parameters that differ from the defaults."""

    operation: str
    family: str
    problem: Mapping[str, Value]
    config: Mapping[str, Value] = field(default_factory=dict)

    def template(self, folder: Path, edits: Edits = ()) -> KernelTemplate:
        """The family with edits, written into a folder with the name of its operation."""
        if self.operation == NEW_OP:
            new_operation(NEW_OP, folder)
            path = folder / NEW_OP / f"{NEW_OP}.cu.j2"
            text = path.read_text()
        else:
            own = shipped("templates") / self.operation / f"{self.family}.cu.j2"
            path = folder / self.operation / own.name
            path.parent.mkdir()
            text = (own if own.is_file() else GOOD).read_text()
        for old, new in edits:
            if old not in text:
                raise ValueError(f"{self.family}: {old!r} does not occur")
            text = text.replace(old, new)
        path.write_text(text)
        return load_template(path)

    def bound_problem(self, template: KernelTemplate) -> Problem:
        """The problem, for the operation that the template's folder declares."""
        return make_problem(template.operation, self.problem)


_IMAGES: Mapping[str, Value] = {"n": 3, "c": 3, "h": 13, "w": 11, "k": 5, "r": 3, "s": 3}
_RAGGED: Mapping[str, Value] = {
    "n": 3,
    "c": 2,
    "h": 19,
    "w": 21,
    "k": 3,
    "r": 3,
    "s": 3,
    "pad_h": 1,
    "pad_w": 1,
    "epilogue": "bias",
}
_GRADIENT: Mapping[str, Value] = {
    "n": 6,
    "c": 16,
    "h": 9,
    "w": 11,
    "k": 16,
    "r": 3,
    "s": 3,
    "dtype": "f16",
    "layout": "nhwc",
    **dict.fromkeys(("pad_h", "pad_w", "pad_h_end", "pad_w_end"), 1),
}
_UPSAMPLED: Mapping[str, Value] = {
    "n": 4,
    "c": 6,
    "h": 7,
    "w": 9,
    "k": 5,
    "r": 4,
    "s": 4,
    "epilogue": "bias",
    **dict.fromkeys(("stride_h", "stride_w"), 2),
    **dict.fromkeys(("padding_h", "padding_w"), 1),
}
KERNELS: Mapping[str, Kernel] = {
    "conv2d": Kernel("conv2d", "shared_tile", _RAGGED),
    "conv2d scatter": Kernel("conv2d", "input_scatter", _IMAGES),
    "conv_filter_gradient": Kernel("conv_filter_gradient", "conv_filter_gradient_mma", _GRADIENT),
    "conv_transpose": Kernel("conv_transpose", "conv_transpose_direct", _UPSAMPLED),
    "gemm f16": Kernel("gemm", "gemm_mma", {"batch": 9, "m": 24, "n": 40, "k": 88, "dtype": "f16"}),
    "gemm bf16": Kernel("gemm", "gemm_tiled", {"batch": 9, "m": 20, "n": 33, "k": 37, "dtype": "bf16"}),
    "gemm": Kernel("gemm", "gemm_tiled", {"batch": 3, "m": 40, "n": 50, "k": 37, "epilogue": "bias_relu"}),
    "max_pool2d": Kernel(
        "max_pool2d",
        "max_pool2d_rows",
        {"n": 3, "c": 3, "h": 13, "w": 11, "r": 3, "s": 3, "stride_h": 2, "stride_w": 2},
    ),
    "norm": Kernel("norm", "norm_rows", {"n": 9, "c": 300}),
    "norm warps": Kernel("norm", "norm_rows", {"n": 9, "c": 300}, {"row_threads": 128}),
    "norm groups": Kernel("norm", "norm_groups", {"n": 9, "pixels": 6, "c": 16, "groups": 4, "kind": "rms"}),
    "norm slices": Kernel("norm", "norm_groups", {"n": 9, "pixels": 36, "c": 16, "groups": 4}, {"slices": 2}),
    "softmax": Kernel("softmax", "softmax_rows", {"rows": 5, "columns": 300}),
    "softmax shared": Kernel("softmax", "softmax_rows", {"rows": 5, "columns": 300}, {"keep": "shared"}),
    "stencil": Kernel("stencil", "stencil_rows", {"n": 3, "h": 9, "w": 131}, {"block_w": 64, "rows": 2}),
    "new-op": Kernel(NEW_OP, NEW_OP, {"rows": 9, "columns": 100}, {"threads": 64}),
}

SEEN = ("wrong_result/unwritten", "wrong_result/wrong", "wrong_result/inexact", "wrong_result/nondeterministic")
RACE = ("runtime/race", "runtime/unwritten")
STATE = ("wrong_result/keeps_state",)


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect, and the acceptable results as `outcome/reason`."""

    number: int
    """class: 1 unwritten memory is read, 2 warps are not ordered, 3 blocks are not ordered, 4 extreme inputs"""
    kernel: str
    """of KERNELS"""
    name: str
    edits: Edits
    host: tuple[str, ...] = SEEN
    """empty: `host` detects it only if two blocks meet on two cores, or never"""
    checked: tuple[str, ...] = (*SEEN, "runtime/race", "runtime/unwritten")
    """empty: only `host` detects it"""


_POOL_STORED = "stored.at[j] = from_float<T>(outputs[p][q][j]);"
_POOL_THERE = "to_float(row[(first_q + q) * PIXEL + j])"
_POOL_END = "    float outputs[THREAD_P][THREAD_Q][CHANNELS];\n"
_SOFTMAX_STORE = "        to[chunk] = result;\n"
_STENCIL_STORE = "if (column < W && first + i < H) to[(first + i) * (W / VECTOR)] = result;"
_STENCIL_AT = "to[(first + i) * (W / VECTOR)].at[j]"
_GEMM_AT = "y[(product * M + row) * N + column]"
_GEMM_SUM = "finish<EPILOGUE>(sums[i][j], bias, column)"
_GEMM_STORE = f"{_GEMM_AT} = from_float<T>({_GEMM_SUM});"
_GEMM_LOOP = "#pragma unroll\n        for (int k = 0"
_CONV_AT = "y[((static_cast<long long>(image) * K + k) * P + p) * Q + q]"
_CONV_STORE = f"{_CONV_AT} = sum;"
_NEW_SUM = "to_float(x[at]) + to_float(bias[at % COLUMNS])"
_NEW_STORE = f"if (at < elements) y[at] = from_float<T>({_NEW_SUM});"
_NEW_GRID = (('["ceil_div(rows * columns', '["2 * ceil_div(rows * columns'),)
_HALVES = (("blockIdx.x", "(blockIdx.x % (gridDim.x / 2))"),)
_FIRST_HALF = "blockIdx.x < gridDim.x / 2"


def _stencil(statement: str) -> Edits:
    stored = f"if (column < W && first + i < H) for (int j = 0; j < VECTOR; ++j) {{ {statement} }}"
    return ((_STENCIL_STORE, stored),)


def _softmax(statement: str) -> Edits:
    return ((_SOFTMAX_STORE, f"        for (int i = 0; i < VECTOR; ++i) {{ {statement} }}\n"),)


def _gemm(result: str) -> Edits:
    return ((_GEMM_STORE, f"const float sum = {_GEMM_SUM}; {_GEMM_AT} = from_float<T>({result});"),)


def _f16_store(result: str) -> Edits:
    store = "const T first = from_float<T>(finish<EPILOGUE>(sums[0], bias, column));"
    rounded = f"const auto rounded = [](float sum) {{ return from_float<T>({result}); }};\n            "
    return (
        (store, f"{rounded}const T first = rounded(finish<EPILOGUE>(sums[0], bias, column));"),
        (
            "from_float<T>(finish<EPILOGUE>(sums[1], bias, column + 1))",
            "rounded(finish<EPILOGUE>(sums[1], bias, column + 1))",
        ),
    )


def _flag(pointer: str, used: tuple[str, str]) -> Edits:
    """Let the first block write a 1 that all others multiply by: a word of the workspace."""
    return (
        ("[[stage]]", '[workspace]\nbytes = "4"\n\n[[stage]]'),
        ('"y", ', '"y", "workspace", '),
        (pointer, f"{pointer} float* one,"),
        (used[0], f"if (blockIdx.x == 0) *one = 1.0f;\n    {used[0]}"),
        (used[1], f"{used[1]} *one *"),
    )


def _once_shared(place: str, used: str) -> Edits:
    """Let the first thread write a 1 to shared memory that all others multiply by, after a barrier of its warp."""
    return (
        (place, f"    __shared__ float one;\n    if (threadIdx.x == 0) one = 1.0f;\n    __syncwarp();\n{place}"),
        (used, f"{used} one *"),
    )


def _remembered(variable: str, statement: str) -> Edits:
    """Let a variable of the new operation outlive a launch."""
    return (
        ('extern "C" __global__', f'{variable}\nextern "C" __global__'),
        (_NEW_STORE, f"{statement}\n        {_NEW_STORE}"),
    )


def _counted(when: str = "true", threads: int = 64) -> Edits:
    """Let threads of a block of 64 count in shared memory without an atomic."""
    return (
        (
            "    const long long elements",
            "    __shared__ int count;\n    if (threadIdx.x == 0) count = 0;\n    __syncthreads();\n"
            f"    if ({when}) count += 1;\n    __syncthreads();\n    const long long elements",
        ),
        (_NEW_SUM, f"count / {threads} * ({_NEW_SUM})"),
    )


_DEFECTS = (
    # 1: memory that nothing has written, through functions that ignore NaN
    Defect(
        1, "softmax", "maximum starts from shared memory", (("= -3.402823466e38f;", "= largest_of[threadIdx.y][0];"),)
    ),
    Defect(
        1,
        "softmax",
        "sum starts from shared memory's negative part",
        (("float sum = 0.0f;", "float sum = fminf(sum_of[threadIdx.y][0], 0.0f);"),),
    ),
    Defect(
        1,
        "softmax",
        "sum starts from small numbers in shared memory",
        (
            ("    float largest = -3", "    const float left = sum_of[threadIdx.y][0];\n    float largest = -3"),
            ("float sum = 0.0f;", "float sum = fabsf(left) < 1e3f ? left : 0.0f;"),
        ),
        host=("wrong_result/unwritten", "wrong_result/wrong"),
        checked=("wrong_result/unwritten", "wrong_result/wrong"),
    ),
    Defect(
        1,
        "softmax",
        "maximum with the output",
        _softmax("to[chunk].at[i] = from_float<T>(fmaxf(to_float(to[chunk].at[i]), to_float(result.at[i])));"),
    ),
    Defect(
        1,
        "softmax",
        "minimum with the output",
        _softmax("to[chunk].at[i] = from_float<T>(fminf(to_float(to[chunk].at[i]), to_float(result.at[i])));"),
    ),
    Defect(
        1,
        "max_pool2d",
        "maximum with the output",
        ((_POOL_STORED, f"stored.at[j] = from_float<T>(fmaxf(outputs[p][q][j], {_POOL_THERE}));"),),
    ),
    Defect(
        1,
        "max_pool2d",
        "minimum with the output",
        ((_POOL_STORED, f"stored.at[j] = from_float<T>(fminf(outputs[p][q][j], {_POOL_THERE}));"),),
    ),
    Defect(
        1,
        "max_pool2d",
        "output kept if it is larger",
        (
            (
                _POOL_STORED,
                f"{{ {_POOL_STORED} if ({_POOL_THERE} > outputs[p][q][j]) stored.at[j] = 0; }}",
            ),
        ),
    ),
    Defect(1, "stencil", "maximum with the output", _stencil(f"{_STENCIL_AT} = fmaxf({_STENCIL_AT}, result.at[j]);")),
    Defect(1, "stencil", "minimum with the output", _stencil(f"{_STENCIL_AT} = fminf({_STENCIL_AT}, result.at[j]);")),
    Defect(
        1,
        "stencil",
        "output kept if it is large",
        _stencil(f"if (!({_STENCIL_AT} > 1e30f)) {_STENCIL_AT} = result.at[j];"),
    ),
    Defect(
        1,
        "gemm",
        "atomicMax of ReLU's bits over the output",
        ((_GEMM_STORE, f"atomicMax(reinterpret_cast<int*>(&{_GEMM_AT}), __float_as_int({_GEMM_SUM}));"),),
    ),
    Defect(1, "gemm", "minimum with the output", ((_GEMM_STORE, f"{_GEMM_AT} = fminf({_GEMM_AT}, {_GEMM_SUM});"),)),
    Defect(
        1,
        "gemm",
        "negative part of shared memory in place of zeros",
        (("to_float(matrix[at]) : 0.0f;", "to_float(matrix[at]) : fminf(tile[k][row], 0.0f);"),),
    ),
    Defect(1, "conv2d", "maximum with the output", ((_CONV_STORE, f"{_CONV_AT} = fmaxf({_CONV_AT}, sum);"),)),
    Defect(
        1,
        "conv2d",
        "positive part of the workspace",
        (
            ("[[stage]]", '[workspace]\nbytes = "4 * k"\n\n[[stage]]'),
            ('"bias", "y", "n"]', '"bias", "y", "workspace", "n"]'),
            ("float* y, int n)", "float* y, const float* workspace, int n)"),
            ("float sum = 0.0f;", "float sum = fmaxf(workspace[k], 0.0f);"),
        ),
    ),
    Defect(
        1,
        "new-op",
        "maximum with the output",
        ((_NEW_STORE, f"if (at < elements) y[at] = from_float<T>(fmaxf(to_float(y[at]), {_NEW_SUM}));"),),
    ),
    Defect(
        1,
        "new-op",
        "minimum with the output",
        ((_NEW_STORE, f"if (at < elements) y[at] = from_float<T>(fminf(to_float(y[at]), {_NEW_SUM}));"),),
    ),
    Defect(
        1,
        "new-op",
        "an output of 7 is kept",
        ((_NEW_STORE, f"if (at < elements && to_float(y[at]) != 7.0f) y[at] = from_float<T>({_NEW_SUM});"),),
        host=(),
        checked=("runtime/unwritten",),
    ),
    Defect(
        1,
        "gemm",
        "sums start from registers",
        (("float sums[THREAD_M][THREAD_N] = {};", "float sums[THREAD_M][THREAD_N];"),),
        checked=(),
    ),
    Defect(
        1,
        "gemm f16",
        "no zeros behind the depth",
        (
            (
                "copy_async<VECTOR * sizeof(T)>(to, from, inside);",
                "if (inside) copy_async<VECTOR * sizeof(T)>(to, from);",
            ),
            ("*to = inside ? *from : from_float<T>(0.0f);", "if (inside) *to = *from;"),
        ),
    ),
    Defect(
        1,
        "norm slices",
        "sums of squares kept if they are larger",
        (
            (
                "workspace[own.sums(group) + own.slice] = of_slice;",
                "Sums& to = workspace[own.sums(group) + own.slice]; "
                "of_slice.square = fmaxf(of_slice.square, to.square); to = of_slice;",
            ),
        ),
    ),
    Defect(
        1,
        "norm slices",
        "positive part of shared memory in place of zeros",
        (
            (
                "Sums sums[PARTS] = {};",
                "Sums sums[PARTS];\n    for (Sums& each : sums) each = {fmaxf(of_parts[0][0].value, 0.0f), 0.0f};",
            ),
        ),
    ),
    Defect(
        1,
        "conv_transpose",
        "an output near 0 limits the sum",
        (
            (
                "y[to] = from_float<T>(finish<EPILOGUE>(sums[i], bias, k));",
                "y[to] = from_float<T>(fminf(finish<EPILOGUE>(sums[i], bias, k), fabsf(to_float(y[to])) * 1e9f));",
            ),
        ),
        host=(),
        checked=("runtime/unwritten",),
    ),
    Defect(
        1,
        "new-op",
        "a zero output is kept",
        ((_NEW_STORE, f"if (at < elements && to_float(y[at]) != 0.0f) y[at] = from_float<T>({_NEW_SUM});"),),
        host=(),
        checked=("runtime/unwritten",),
    ),
    Defect(
        1,
        "new-op",
        "adds an integer that nothing has set",
        (
            ("#pragma unroll", "    int added;\n#pragma unroll"),
            (_NEW_STORE, f"if (at < elements) y[at] = from_float<T>({_NEW_SUM} + added);"),
        ),
        checked=(),
    ),
    Defect(
        1,
        "new-op",
        "maximum with a variable that nothing has set",
        (
            ("#pragma unroll", "    float least;\n#pragma unroll"),
            (_NEW_STORE, f"if (at < elements) y[at] = from_float<T>(fmaxf(least, {_NEW_SUM}));"),
        ),
        host=(),
    ),
    Defect(
        1,
        "new-op",
        "adds an ordinary number that nothing has written",
        (
            ("    const long long elements", "    __shared__ float left[THREADS];\n    const long long elements"),
            (_NEW_SUM, f"(fabsf(left[threadIdx.x]) < 1e3f ? left[threadIdx.x] : 0.0f) + {_NEW_SUM}"),
        ),
        host=("wrong_result/inexact",),
    ),
    Defect(
        1,
        "new-op",
        "a NaN is not stored",
        (("if (at < elements)", "if (at < elements && !isnan(to_float(x[at])))"),),
        host=("wrong_result/unwritten",),
    ),
    # 2: warps of a block, and shared memory that is too small
    Defect(2, "softmax", "no barrier before the sum of warps", (("        __syncthreads();\n", ""),)),
    Defect(
        2,
        "softmax",
        "warp barrier before the sum of warps",
        (("        __syncthreads();\n", "        __syncwarp();\n"),),
    ),
    Defect(
        2, "softmax", "sums overwrite maxima", (("combined(sum, sum_of, Sum())", "combined(sum, largest_of, Sum())"),)
    ),
    Defect(
        2,
        "softmax shared",
        "half of the shared memory",
        (('smem_bytes = "smem"', 'smem_bytes = "smem // 2"'),),
        host=("runtime/oob_write",),
        checked=("runtime/oob_write",),
    ),
    Defect(
        2,
        "gemm",
        "no barrier before the product",
        (
            (
                f"        __syncthreads();\n{_GEMM_LOOP}",
                _GEMM_LOOP,
            ),
        ),
    ),
    Defect(
        2,
        "gemm",
        "warp barrier before the product",
        (
            (
                f"        __syncthreads();\n{_GEMM_LOOP}",
                f"        __syncwarp();\n{_GEMM_LOOP}",
            ),
        ),
    ),
    Defect(2, "gemm", "no barrier before the next tile", (("        __syncthreads();\n    }\n", "    }\n"),)),
    Defect(2, "conv2d", "no barrier before the products", FAULTS["no_barrier_before_use"].edits),
    Defect(2, "conv2d", "no barrier before the next tile", FAULTS["no_barrier_before_overwrite"].edits),
    Defect(2, "conv2d", "no barrier after the first thread", FAULTS["no_barrier_after_first_thread"].edits),
    Defect(
        2,
        "conv2d",
        "a word of shared memory",
        FAULTS["smem_declared_too_small"].edits,
        host=("runtime/oob_write",),
        checked=("runtime/oob_write",),
    ),
    Defect(
        2,
        "max_pool2d",
        "warp barrier after the first thread",
        _once_shared(_POOL_END, "stored.at[j] = from_float<T>("),
    ),
    Defect(
        2,
        "stencil",
        "neighbour of another warp after a warp barrier",
        (
            (
                "        const float before = __shfl_up_sync(WARP, middle.at[VECTOR - 1], 1);\n",
                "        __shared__ float last[BLOCK_H][BLOCK_W];\n"
                "        last[threadIdx.y][threadIdx.x] = middle.at[VECTOR - 1];\n"
                "        __syncwarp();\n"
                "        const float before = threadIdx.x > 0 ? last[threadIdx.y][threadIdx.x - 1] : 0.0f;\n",
            ),
            ("lane == 0 ? edge[i] : before", "threadIdx.x == 0 ? edge[i] : before"),
        ),
    ),
    Defect(
        2,
        "stencil",
        "warp barrier after the first thread",
        _once_shared("    const float centre = weights[0]", "result.at[j] ="),
    ),
    Defect(
        2,
        "new-op",
        "no barrier before the staged bias",
        (
            (
                "#pragma unroll\n    for (int i = 0; i < WORK",
                "    __shared__ float staged[COLUMNS];\n"
                "    for (int c = threadIdx.x; c < COLUMNS; c += THREADS) staged[c] = to_float(bias[c]);\n"
                "#pragma unroll\n    for (int i = 0; i < WORK",
            ),
            ("to_float(bias[at % COLUMNS])", "staged[at % COLUMNS]"),
        ),
    ),
    Defect(2, "new-op", "threads count in a word of shared memory with +=", _counted(), host=(), checked=RACE),
    Defect(
        2,
        "new-op",
        "lanes of a warp count in a word of shared memory with +=",
        _counted("threadIdx.x < 32", 32),
        host=(),
        checked=RACE,
    ),
    Defect(
        2,
        "new-op",
        "a lane of each warp counts in a word of shared memory with +=",
        _counted("threadIdx.x % 32 == 0", 2),
        host=(),
        checked=RACE,
    ),
    Defect(
        2,
        "softmax",
        "warps add to a shared sum with +=",
        (
            (
                "    sum = combined(sum, sum_of, Sum());\n",
                "    if (threadIdx.x == 0) sum_of[threadIdx.y][0] = 0.0f;\n"
                "    __syncthreads();\n"
                "    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);\n"
                "    if (threadIdx.x % 32 == 0) sum_of[threadIdx.y][0] += sum;\n"
                "    __syncthreads();\n"
                "    sum = sum_of[threadIdx.y][0];\n",
            ),
        ),
        host=(),
        checked=RACE,
    ),
    Defect(2, "norm warps", "squares overwrite sums", (("sum_rows(scales, squares_of)", "sum_rows(scales, sums_of)"),)),
    Defect(2, "norm warps", "warp barrier before the sum of warps", (("__syncthreads()", "__syncwarp()"),)),
    Defect(
        2, "norm slices", "no barrier before the sums of groups", (("= sums[i];\n    __syncthreads();", "= sums[i];"),)
    ),
    Defect(
        2,
        "norm slices",
        "no barrier before the means are read",
        (("        });\n    __syncthreads();", "        });"),),
    ),
    Defect(
        2,
        "gemm f16",
        "waits for one copy too few",
        (("copy_async_wait<STAGES - 2>()", "copy_async_wait<STAGES - 1>()"),),
    ),
    Defect(
        2,
        "gemm f16",
        "no barrier after the copies",
        (("copy_async_wait<STAGES - 2>();\n        __syncthreads();", "copy_async_wait<STAGES - 2>();"),),
    ),
    Defect(
        2,
        "conv_filter_gradient",
        "the next tile overwrites stages that are read",
        (("        __syncthreads();  // the stages have been read\n", ""),),
    ),
    Defect(
        2,
        "new-op",
        "a warp adds without barriers",
        (
            (
                "    const long long elements",
                "    __shared__ volatile int ones[THREADS];\n    ones[threadIdx.x] = 1;\n    __syncthreads();\n"
                "    for (int d = 16; d > 0 && threadIdx.x < 32; d /= 2) ones[threadIdx.x] += ones[threadIdx.x + d];\n"
                "    __syncthreads();\n    const int lanes = ones[0];\n    const long long elements",
            ),
            (_NEW_SUM, f"(lanes == 32 ? 1.0f : 0.0f) * ({_NEW_SUM})"),
        ),
        checked=(*SEEN, *RACE),
    ),
    Defect(
        2,
        "new-op",
        "no barrier between a cleared count and atomicAdd",
        tuple((old, new.replace("__syncthreads();", "", 1)) for old, new in _counted("atomicAdd(&count, 1) < 0")),
    ),
    # 3: blocks of a launch
    Defect(
        3,
        "conv2d scatter",
        "+= in place of atomicAdd",
        (("atomicAdd(plane + p * Q + q, accumulator);", "plane[p * Q + q] += accumulator;"),),
        host=(),
        checked=RACE,
    ),
    Defect(
        3,
        "new-op",
        "a second block adds the bias",
        (
            *(*_NEW_GRID, *_HALVES),
            (_NEW_STORE, f"if (at < elements) y[at] = {_FIRST_HALF} ? x[at] : y[at] + bias[at % COLUMNS];"),
        ),
        checked=RACE,
    ),
    Defect(
        3,
        "new-op",
        "one block clears what another adds to",
        (
            *(*_NEW_GRID, *_HALVES),
            (_NEW_STORE, f"if (at < elements) {{ if ({_FIRST_HALF}) y[at] = 0; else atomicAdd(&y[at], {_NEW_SUM}); }}"),
        ),
        checked=RACE,
    ),
    Defect(
        3,
        "new-op",
        "a flag of the first block",
        _flag("T* __restrict__ y,", ("const long long first", "from_float<T>(")),
        checked=RACE,
    ),
    Defect(
        3,
        "softmax",
        "a second block adds its half",
        (
            ('["ceil_div(rows, block_rows)"', '["2 * ceil_div(rows, block_rows)"'),
            *_HALVES,
            *_softmax(
                f"const T half = result.at[i] * 0.5f; to[chunk].at[i] = {_FIRST_HALF} ? half : to[chunk].at[i] + half;"
            ),
        ),
        checked=RACE,
    ),
    Defect(
        3,
        "stencil",
        "a block clears the next one's first row",
        (
            (
                _STENCIL_STORE,
                f"{_STENCIL_STORE}\n        if (i == 0 && column < W && first + ROWS < H && threadIdx.y == BLOCK_H - 1)"
                " to[(first + ROWS) * (W / VECTOR)] = Chunk{};",
            ),
        ),
        checked=RACE,
    ),
    Defect(
        3,
        "stencil",
        "a second block adds its half",
        (
            ('["n * tiles_h * tiles_w"', '["2 * n * tiles_h * tiles_w"'),
            *_HALVES,
            *_stencil(
                f"const float half = 0.5f * result.at[j]; {_STENCIL_AT} = {_FIRST_HALF} ? half : {_STENCIL_AT} + half;"
            ),
        ),
        checked=RACE,
    ),
    Defect(
        3,
        "stencil",
        "a flag of the first block",
        _flag("float* __restrict__ y,", ("const int tile =", "result.at[j] =")),
        checked=RACE,
    ),
    Defect(
        3,
        "max_pool2d",
        "a block writes the next one's first output",
        (
            (
                _POOL_END,
                "    if (threadIdx.x == BLOCK - 1 && index + 1 < static_cast<long long>(n) * THREADS)"
                f" y[index + 1] = from_float<T>(0.0f);\n{_POOL_END}",
            ),
        ),
        checked=RACE,
    ),
    Defect(
        3,
        "max_pool2d",
        "a flag of the first block",
        _flag("T* __restrict__ y,", ("const long long index", "stored.at[j] = from_float<T>(")),
        checked=RACE,
    ),
    Defect(
        3,
        "gemm",
        "a second block adds its half",
        (
            ('["tiles_m * tiles_n * batch"', '["2 * tiles_m * tiles_n * batch"'),
            *_HALVES,
            (
                _GEMM_STORE,
                f"const float half = 0.5f * {_GEMM_SUM}; {_GEMM_AT} = {_FIRST_HALF} ? half : {_GEMM_AT} + half;",
            ),
        ),
        checked=RACE,
    ),
    Defect(
        3,
        "gemm",
        "one block clears what another adds to",
        (
            ('["tiles_m * tiles_n * batch"', '["2 * tiles_m * tiles_n * batch"'),
            *_HALVES,
            (_GEMM_STORE, f"if ({_FIRST_HALF}) {_GEMM_AT} = 0.0f; else atomicAdd(&{_GEMM_AT}, {_GEMM_SUM});"),
        ),
        checked=RACE,
    ),
    Defect(
        3,
        "norm slices",
        "a block overwrites sums that others read",
        (
            (
                "mean_of[group] = mean;",
                "mean_of[group] = mean; const_cast<Sums*>(workspace)[own.sums(group)].value = 1.1f * mean * COUNT;",
            ),
        ),
        checked=RACE,
    ),
    Defect(
        3,
        "conv_filter_gradient",
        "two blocks store their sums in one place",
        (("sums_of(workspace, part.tile, blockIdx.x,", "sums_of(workspace, part.tile, blockIdx.x / 2 * 2,"),),
        checked=(*SEEN, *RACE, "runtime/oob_write"),
    ),
    Defect(
        3,
        "gemm",
        "tiles overlap, and one lacks a product",
        (
            ("* TILE_N;\n", "* TILE_N - (blockIdx.x % TILES_N ? 1 : 0);\n"),
            ("sums[i][j] +=", "if (threadIdx.x || !(blockIdx.x % TILES_N) || first_k + k < K - 1) sums[i][j] +="),
        ),
        checked=RACE,
    ),
    # values that a launch leaves for later ones
    Defect(
        3,
        "new-op",
        "launches are counted, and the hundredth is wrong",
        _remembered("__device__ int launches;", "if (at == 0 && atomicAdd(&launches, 1) == 99) continue;"),
        host=STATE,
        checked=STATE,
    ),
    Defect(
        3,
        "stencil",
        "the first launch is remembered",
        (
            ('extern "C" __global__', 'static __device__ bool seen;\nextern "C" __global__'),
            (_STENCIL_STORE, f"{_STENCIL_STORE}\n        if (!seen) seen = true;"),
        ),
        host=STATE,
        checked=(*STATE, *RACE),
    ),
    Defect(
        3,
        "new-op",
        "an input is remembered by its address",
        (
            *_remembered(
                "__device__ const void* known;\n__device__ float first_bias;",
                "if (at == 0 && known != bias) { known = bias; first_bias = to_float(bias[0]); }",
            ),
            ("to_float(bias[at % COLUMNS])", "(at % COLUMNS == 0 ? first_bias : to_float(bias[at % COLUMNS]))"),
        ),
        host=STATE,
        checked=(*STATE, *RACE),
    ),
    # 4: large inputs overflow or cancel, and the handling of NaN and infinities
    Defect(
        4,
        "max_pool2d",
        "the maximum starts at -3e38",
        (("EMPTY = -__builtin_huge_valf()", "EMPTY = -3e38f"),),
    ),
    Defect(4, "max_pool2d", "a NaN is skipped", ((" || other != other", ""),)),
    Defect(
        4, "norm groups", "a NaN variance becomes 0", (("variance < 0.0f ? 0.0f : variance", "fmaxf(variance, 0.0f)"),)
    ),
    Defect(
        4,
        "softmax",
        "no maximum is subtracted",
        (("largest = combined(largest, largest_of, Larger());", "largest = 0.0f;"),),
    ),
    Defect(
        4,
        "softmax",
        "at most 64 is subtracted",
        (
            (
                "largest = combined(largest, largest_of, Larger());",
                "largest = fminf(combined(largest, largest_of, Larger()), 64.0f);",
            ),
        ),
    ),
    Defect(4, "conv2d", "outputs are at most 100", ((_CONV_STORE, f"{_CONV_AT} = fminf(sum, 100.0f);"),)),
    Defect(
        4,
        "norm",
        "variance as E[x^2] - E[x]^2",
        (
            ("= to_float(own.at[j]) - shifts[i] - means[i];", "= to_float(own.at[j]);"),
            (
                "inverse_deviation(scales[i] / C)",
                "inverse_deviation(scales[i] / C - (shifts[i] + means[i]) * (shifts[i] + means[i]))",
            ),
        ),
    ),
    Defect(
        4,
        "softmax",
        "a row of zeros becomes NaN",
        (
            (
                "return exp2f(fmaf(to_float(element), LOG2_E, -scaled));",
                "return exp2f(scaled == 0.0f ? 0.0f / scaled : fmaf(to_float(element), LOG2_E, -scaled));",
            ),
        ),
    ),
    Defect(4, "norm", "the variance of C - 1", (("scales[i] / C)", "scales[i] / (C > 1 ? C - 1 : 1))"),)),
    Defect(
        4,
        "softmax",
        "exp2 by a polynomial of degree 3",
        (
            (
                "return exp2f(fmaf(to_float(element), LOG2_E, -scaled));",
                "const float at = fmaf(to_float(element), LOG2_E, -scaled), whole = floorf(at), part = at - whole;\n"
                "        return exp2f(whole) * (1.0f + part * (0.6951786f + part * (0.2276411f + part * 0.0771803f)));",
            ),
        ),
    ),
    Defect(4, "gemm bf16", "a NaN becomes 0", _gemm("sum == sum ? sum : 0.0f")),
    Defect(
        4,
        "gemm bf16",
        "infinities become the largest float",
        _gemm("sum != sum ? sum : fmaxf(fminf(sum, 3e38f), -3e38f)"),
    ),
    Defect(
        4,
        "gemm bf16",
        "zeros of a are skipped",
        (("sums[i][j] +=", "if (a_tile[k][threadIdx.y + i * BLOCK_M] != 0.0f) sums[i][j] +="),),
    ),
    Defect(4, "gemm bf16", "small sums become 0", _gemm("fabsf(sum) < 1e-9f ? 0.0f : sum")),
    Defect(
        4,
        "gemm bf16",
        "small inputs become 0",
        (("inside ? to_float(matrix[at])", "inside && fabsf(to_float(matrix[at])) > 1e-9f ? to_float(matrix[at])"),),
    ),
    Defect(4, "gemm bf16", "bf16 outputs are truncated", _gemm("__uint_as_float(__float_as_uint(sum) & 0xffff0000u)")),
    Defect(
        4,
        "gemm f16",
        "denormal f16 outputs become 0",
        _f16_store("fabsf(sum) < 6.1e-5f ? 0.0f : sum"),
    ),
    Defect(
        4, "gemm f16", "f16 outputs are truncated", _f16_store("__uint_as_float(__float_as_uint(sum) & 0xffffe000u)")
    ),
    Defect(
        4,
        "conv_transpose",
        "inputs beyond 100 are cut off",
        (("sums[i] = fmaf(value,", "sums[i] = fmaf(fminf(value, 100.0f),"),),
    ),
)
DEFECTS: Mapping[str, Defect] = {f"{each.kernel}: {each.name}": each for each in _DEFECTS}
