"""Build the verification program from `check.cu` and the operation's reference.

Its kernels take sizes as arguments, so all problems of an operation with the same words share one program.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from autotune.autotune_runtime.activations import BY_WORD, in_cpp
from autotune.compilation.compile import Program
from autotune.errors import TemplateError
from autotune.family.text import Includes
from autotune.measurement.launcher import Tensors
from autotune.measurement.numpy_reference import in_cuda, in_numpy
from autotune.operation.declarations import Bounds
from autotune.operation.operation import REFERENCE, Operation
from autotune.operation.storage_types import TYPES, StorageType
from autotune.problem import Problem
from autotune.text_file import read_text

ENTRIES = ("hash_words",)
OF_DTYPE = ("fill_normal", "fill_uniform", "fill_integers", "fill_indices", "put_edges", "compare")
"""Entries that exist once per storage type; `entry_of` returns the full name."""
_ONCE = "#pragma once\n"
_NO_ACTIVATION = """template <class Problem>
REFERENCE_FUNCTION double activation_error(const Problem&, double, double) {
    return 0.0;
}
"""

_STORED = """struct stored_{name} {{
    using element = {element};
    static constexpr double LEAST_ROUNDING = {least};
    static __device__ inline float to_float(element value) {{ return static_cast<float>(value); }}
    static __device__ inline element from_float(float value) {{ return static_cast<element>(value); }}
    static __device__ inline double to_double(element value) {{ return {to_double}; }}
    static __device__ inline element from_double(double value) {{ return {from_double}; }}
    static __device__ inline bool all_ones(element value) {{ return {all_ones}; }}
}};
"""
_BITS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}


def _stored(kind: StorageType) -> str:
    """Return C++ conversions for a storage type. Types narrower than float are converted to and from float, and numbers
    are rounded to the nearest integer of an integer type.
    """
    bits = _BITS[kind.size_bytes]
    exact = kind.is_float and kind.size_bytes <= 4
    least, most = kind.whole
    nearest = "value" if kind.is_float else f"fmin(fmax(rint(value), {least}.0), {most}.0)"
    return _STORED.format(
        name=kind.name,
        element=kind.cuda,
        least=kind.least_rounding.hex(),
        to_double="static_cast<double>(to_float(value))" if exact else "static_cast<double>(value)",
        from_double="from_float(static_cast<float>(value))" if exact else f"static_cast<element>({nearest})",
        all_ones=f"bits_of<{bits}>(value) == static_cast<{bits}>(-1)" if kind.is_float else "false",
    )


_VALUES = """using wide = long long;

template <class Bits, class Element>
__device__ inline Bits bits_of(Element value) {
    Bits image;
    memcpy(&image, &value, sizeof image);
    return image;
}

// An array whose elements are read as doubles.
template <class Stored>
struct Values {
    const typename Stored::element* values;
    __device__ double operator[](wide i) const { return Stored::to_double(values[i]); }
};
"""


def check_program(problem: Problem, dtype: str | None = None) -> Program:
    """Return a program that makes a problem's data, computes the float64 reference and compares outputs with it.

    All problems of an operation with the same words share one program. `dtype` replaces the arrays' storage types.
    """
    dtypes = {array.name: dtype or array.dtype for array in problem.arrays}
    used = tuple(dict.fromkeys(dtypes.values()))
    entries = (*ENTRIES, *(entry_of(entry, dtype) for dtype in used for entry in OF_DTYPE))
    stored = [_stored(TYPES[dtype]) for dtype in used]
    headers = dict.fromkeys(TYPES[dtype].header for dtype in used)
    above = (
        "".join(f"#include <{header}>\n" for header in headers if header),
        _VALUES,
        *stored,
        _prologue(problem, dtypes),
    )
    below = (_own("check.cu"), *(f"AUTOTUNE_CHECKS({dtype})" for dtype in used))
    if in_numpy(problem.operation):
        return Program("\n".join((*above, _NO_ACTIVATION, *below)), entries)
    reference = reference_text(problem.operation)
    placed = (f'#line 1 "{REFERENCE}"', reference, '#line 1 "check.cu"')  # so that compilers' errors name this file
    return Program("\n".join((*above, *placed, *below, _own("reference.cu"))), (*entries, "reference"))


def entry_of(entry: str, dtype: str) -> str:
    """Return the name of an entry for arrays of a storage type."""
    return f"{entry}_{dtype}"


def reference_arguments(
    problem: Problem, tensors: Tensors, ref: int, units: int, outputs: int
) -> tuple[np.generic, ...]:
    """Return the arguments of the entry `reference`.

    These are the addresses of the inputs, of the outputs (`ref`) and of the outputs' error units, followed by the
    reduction length, the number of outputs and the sizes.
    """
    inputs = map(tensors.address, problem.operation.inputs)
    return (
        *map(np.uint64, (*inputs, ref, units)),
        np.float64(problem.reduction),
        np.int64(outputs),
        *size_arguments(problem),
    )


def size_arguments(problem: Problem) -> tuple[np.generic, ...]:
    """Return the sizes, which are the last arguments of all entries that need the problem.

    As in C++, derived sizes that don't fit into 32 bits wrap around.
    """
    names = problem.names()
    return tuple(np.uint32(int(names[name]) & 0xFFFFFFFF) for name in _sizes(problem.operation))


def _sizes(declared: Operation) -> list[str]:
    """Return the names of the sizes that a reference takes, in order.

    The leading size is included only if one unit's outputs depend on other units.
    """
    return sorted(declared.numbers - ({declared.leading} if declared.independent else set()))


def reference_text(declared: Operation) -> str:
    """Return an operation's reference.cuh with all includes inlined.

    If it doesn't mention `activation_error`, a definition for no activation is added. Raises TemplateError if a file is
    missing.
    """
    text = in_cuda(declared)
    for name, content in reversed(Includes().of(declared.folder / REFERENCE, text, declared.folder)):  # outermost first
        text = text.replace(f'#include "{name}"', _with_activations(content, declared).removeprefix(_ONCE).strip("\n"))
    return text if "activation_error" in text else f"{text}\n{_NO_ACTIVATION}"


def _with_activations(text: str, declared: Operation) -> str:
    """Return a file's text with the activations that an operation declares."""
    each = [BY_WORD[word] for word in declared.enumerations.get("activation", ()) if word in BY_WORD]
    returned = {
        _EACH_ACTIVATION: {a.word: f"{{{in_cpp(a.expression, single=False)}, {a.steepest}}}" for a in each},
        _EACH_DERIVATIVE: {a.word: f"{{{in_cpp(a.derivative, single=False)}, {a.steepest}}}" for a in each},
        _EACH_EXACT: {a.word: "0.0" for a in each if not a.rounds},
    }
    for mark, cases in returned.items():
        lines = (f"case Activation::{word}: return {value};" for word, value in cases.items())
        text = text.replace(mark, "\n        ".join(lines))
    return text


_EACH_ACTIVATION = "// autotune puts a case here for each activation of the table in autotune_runtime/activations.py."
_EACH_DERIVATIVE = "// autotune puts a case here for each derivative of that table."
_EACH_EXACT = "// autotune puts a case here for each activation that does not round."


def _own(name: str) -> str:
    return read_text(Path(__file__).parent / name, TemplateError)


def error_unit(bounds: Bounds) -> str:
    """Return the C++ expression for the unit of an output's error."""
    if bounds.model == "tolerance":
        return f"({bounds.atol!r} + {bounds.rtol!r} * fabs((exact).value))"
    return "((exact).magnitude)"


def _prologue(problem: Problem, dtypes: Mapping[str, str]) -> str:
    """Return the C++ declarations of a problem and its inputs. The words are constants; the sizes are variables."""
    declared, names = problem.operation, problem.names()
    sizes = _sizes(declared)
    words = [f"static constexpr auto {kind} = {kind.capitalize()}::{names[kind]};" for kind in declared.enumerations]
    first = next(iter(dtypes.values()))
    stored = {
        name: f"stored_{dtypes.get(name, first)}" for name in declared.inputs
    }  # an absent input may have any type
    arrays = ", ".join(f"const {of}::element* array_{name}" for name, of in stored.items())
    enumerations = (
        f"enum class {kind.capitalize()} {{ {', '.join(allowed)} }};" for kind, allowed in declared.enumerations.items()
    )
    return "\n".join(
        (
            *enumerations,
            f"struct Problem {{ {' '.join((*(f'int {name};' for name in sizes), *words))} }};",
            f"#define PROBLEM_PARAMETERS {' '.join(f', int problem_{name}' for name in sizes)}",
            f"#define PROBLEM_ARGUMENTS {', '.join(f'problem_{name}' for name in sizes)}",
            f"struct Inputs {{ {' '.join(f'Values<{of}> {name};' for name, of in stored.items())} }};",
            f"#define REFERENCE_PARAMETERS {arrays}",
            f"#define REFERENCE_ARGUMENTS {', '.join(f'{{array_{name}}}' for name in stored)}",
            "#define REFERENCE_FUNCTION __device__ inline",
            f"#define ERROR_UNIT(exact) {error_unit(declared.bounds.of(declared.output))}",
            "",
        )
    )
