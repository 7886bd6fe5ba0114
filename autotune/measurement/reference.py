"""The verification program of one problem: `check.cu` behind the problem and the operation's reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from autotune.compilation.compile import Program
from autotune.declarations import Bounds
from autotune.errors import TemplateError
from autotune.family.text import Includes
from autotune.measurement.forward import Tensors
from autotune.measurement.numpy_reference import in_numpy
from autotune.operation import REFERENCE, Operation
from autotune.problem import Problem
from autotune.reading import read_text

ENTRIES = ("fill_normal", "fill_integers", "compare", "hash_words", "count_changed")
_ONCE = "#pragma once\n"
_NO_ACTIVATION = """template <class Problem>
__device__ inline double activation_error(const Problem&, double, double) {
    return 0.0;
}
"""

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


_VALUES = """using wide = long long;

__device__ inline double as_double(element value) { return static_cast<double>(to_float(value)); }

// An array whose elements are read as doubles.
struct Values {
    const element* values;
    __device__ double operator[](wide i) const { return as_double(values[i]); }
};
"""

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


def check_program(problem: Problem) -> Program:
    """The program that makes data for a problem, computes its float64 reference and compares outputs with it."""
    return _program(_ELEMENT[problem.dtype], problem)


def reference_program(problem: Problem) -> Program:
    """The same with inputs in double, whatever the problem's storage type: for layers that follow each other."""
    return _program(_DOUBLE, problem)


def reference_arguments(
    declared: Operation, tensors: Tensors, ref: int, magnitude: int, outputs: int
) -> tuple[np.generic, ...]:
    """Arguments of the entry `reference`: the inputs, where outputs and their terms' magnitudes go, and how many."""
    inputs = map(tensors.address, declared.inputs)
    return (*map(np.uint64, (*inputs, ref, magnitude)), np.int64(outputs))


def _program(element: str, problem: Problem) -> Program:
    parts = (element, _VALUES, _prologue(problem))
    body = _own("check.cu")
    if in_numpy(problem.operation):
        return Program("\n".join((*parts, _NO_ACTIVATION, body)), ENTRIES)
    reference = reference_text(problem.operation)
    return Program("\n".join((*parts, reference, body, _own("reference.cu"))), (*ENTRIES, "reference"))


def reference_text(declared: Operation) -> str:
    """An operation's reference.cuh with what it includes in its place. Raises TemplateError where one is not there."""
    path = declared.folder / REFERENCE
    text = read_text(path, TemplateError)
    for name, content in Includes().of(path, text, declared.folder):
        text = text.replace(f'#include "{name}"', content.removeprefix(_ONCE).strip("\n"))
    return text.removeprefix(_ONCE)


def _own(name: str) -> str:
    return read_text(Path(__file__).parent / name, TemplateError)


def error_unit(bounds: Bounds) -> str:
    """Of an output of the reference, in C++."""
    if bounds.model == "tolerance":
        return f"({bounds.atol!r} + {bounds.rtol!r} * fabs((exact).value))"
    return "((exact).magnitude)"


def _prologue(problem: Problem) -> str:
    """The problem and its inputs in C++, but for its run-time size."""
    declared, names = problem.operation, problem.names()
    sizes = [f"static constexpr int {name} = {names[name]};" for name in sorted(declared.numbers - {declared.runtime})]
    words = [f"static constexpr auto {kind} = {kind.capitalize()}::{names[kind]};" for kind in declared.enumerations]
    inputs = declared.inputs
    enumerations = (
        f"enum class {kind.capitalize()} {{ {', '.join(allowed)} }};" for kind, allowed in declared.enumerations.items()
    )
    return "\n".join(
        (
            *enumerations,
            f"struct Problem {{ {' '.join((*sizes, *words))} }};",
            f"struct Inputs {{ Values {', '.join(inputs)}; }};",
            f"#define REFERENCE_PARAMETERS {', '.join(f'const element* {name}' for name in inputs)}",
            f"#define REFERENCE_ARGUMENTS {', '.join(f'{{{name}}}' for name in inputs)}",
            "#define REFERENCE_FUNCTION __device__ inline",
            f"#define ERROR_UNIT(exact) {error_unit(declared.bounds)}",
            "",
        )
    )
