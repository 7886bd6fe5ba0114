"""The verification program of one problem: `check.cu` with the problem's sizes in front of it."""

from __future__ import annotations

from pathlib import Path

from autotune.compilation.compile import Program
from autotune.problem import Conv2dProblem

ENTRIES = ("fill_normal", "fill_integers", "reference", "compare", "hash_words", "count_changed")

_ELEMENT = {
    "f32": """using element = float;
constexpr double LEAST_ROUNDING = 0.0;
__device__ inline float to_float(element value) { return value; }
__device__ inline element from_float(float value) { return value; }
__device__ inline bool all_ones(element value) {
    unsigned image;
    memcpy(&image, &value, sizeof image);
    return image == 0xFFFFFFFFu;
}
""",
    "f16": """#include <cuda_fp16.h>
using element = __half;
constexpr double LEAST_ROUNDING = 1.0 / (1 << 25);  // half of the smallest number above 0
__device__ inline float to_float(element value) { return __half2float(value); }
__device__ inline element from_float(float value) { return __float2half_rn(value); }
__device__ inline bool all_ones(element value) {
    unsigned short image;
    memcpy(&image, &value, sizeof image);
    return image == 0xFFFFu;
}
""",
    "bf16": """#include <cuda_bf16.h>
using element = __nv_bfloat16;
constexpr double LEAST_ROUNDING = 0.0;
__device__ inline float to_float(element value) { return __bfloat162float(value); }
__device__ inline element from_float(float value) { return __float2bfloat16_rn(value); }
__device__ inline bool all_ones(element value) {
    unsigned short image;
    memcpy(&image, &value, sizeof image);
    return image == 0xFFFFu;
}
""",
}


_DOUBLE = """using element = double;
constexpr double LEAST_ROUNDING = 0.0;
__device__ inline double to_float(element value) { return value; }
__device__ inline element from_float(float value) { return value; }
__device__ inline bool all_ones(element value) {
    unsigned long long image;
    memcpy(&image, &value, sizeof image);
    return image == ~0ull;
}
"""


def check_program(problem: Conv2dProblem) -> Program:
    """The program that makes data for a problem, computes its float64 reference and compares outputs with it."""
    return _program(_ELEMENT[problem.dtype], problem)


def reference_program(problem: Conv2dProblem) -> Program:
    """The same with x, w and bias in double, whatever the problem's storage type: for layers that follow each other."""
    return _program(_DOUBLE, problem)


def _program(element: str, problem: Conv2dProblem) -> Program:
    sizes = {name.upper(): value for name, value in problem.names().items() if isinstance(value, int) and name != "n"}
    prologue = [f"constexpr int {name} = {value};" for name, value in sizes.items()]
    flags = {
        "NHWC": problem.layout == "nhwc",
        "BIAS": problem.epilogue != "none",
        "RELU": problem.epilogue == "bias_relu",
    }
    prologue += [f"constexpr bool {name} = {str(value).lower()};" for name, value in flags.items()]
    body = (Path(__file__).parent / "check.cu").read_text(encoding="utf-8")
    return Program(element + "\n".join(prologue) + "\n\n" + body, ENTRIES)
