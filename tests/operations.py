"""A small operation that is not bundled, for tests of rules that hold for every operation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

DECLARATION = """runtime = "rows"

[sizes]
rows = { doc = "rows" }
columns = { doc = "columns" }
halo = { doc = "columns on both sides that are not scaled", default = 0, least = 0 }

[words]
dtype = ["f32", "f16"]

[derived]
inner = "columns - 2 * halo"

[rules]
"halo = ${halo} leaves nothing of ${columns} columns" = "inner > 0"

[[array]]
name = "x"
role = "in"
shape = ["rows", "columns"]
integers = [-2, 2]

[[array]]
name = "y"
role = "out"
shape = ["rows", "inner"]

[similarity]
factors = { columns = 1.0, rows = 0.1 }

[cost]
reduction = "1"
flops = "rows * inner"
"""


def declare(directory: Path, name: str = "scale", text: str = DECLARATION) -> Path:
    """The folder of an operation in a directory."""
    folder = directory / name
    folder.mkdir()
    (folder / "operation.toml").write_text(text)
    return folder


FAMILY = """/*# kernel
summary  = "Twice the inner columns of each row; a thread computes one after the other."
supports = { "a column's index fits 31 bits" = "columns < 2147483648" }
arch     = { "compute capability 5.0 or newer" = "device.arch >= 50" }
accuracy = "fp32"

[params]
block = { values = [64, 128], doc = "threads of a block" }

[[stage]]
entry = "scale"
args  = ["x", "y", "rows"]
block = ["block", "1", "1"]
grid  = ["rows", "1", "1"]
#*/
// y [rows, INNER] = 2 x [rows, COLUMNS], without HALO columns on both sides
#include "_dtype_${dtype}.cuh"

constexpr int COLUMNS = ${columns}, INNER = ${inner}, HALO = ${halo}, BLOCK = ${block};

extern "C" __global__ void scale(const T* x, T* y, int rows) {
    const long long row = blockIdx.x;
    for (int i = threadIdx.x; i < INNER; i += BLOCK) {
        y[row * INNER + i] = from_float<T>(2.0f * to_float(x[row * COLUMNS + i + HALO]));
    }
}
"""
REFERENCE = """def reference(p, x):
    y = 2 * x[:, p.halo : p.columns - p.halo]
    return y, abs(y)
"""
IN_CUDA = """#pragma once

struct Output {
    double value, magnitude;
};

template <class Problem, class Inputs>
REFERENCE_FUNCTION Output reference_output(const Problem& problem, const Inputs& in, long long at) {
    const double value = 2.0 * in.x[at / problem.inner * problem.columns + at % problem.inner + problem.halo];
    return {value, value < 0.0 ? -value : value};
}
"""


SAXPY = {
    "operation.toml": """runtime = "n"

[sizes]
n = { doc = "elements" }

[words]
dtype = ["f32"]

[[array]]
name = "a"
role = "weights"
shape = ["1"]
integers = [-3, 3]

[[array]]
name = "x"
role = "in"
shape = ["n"]
integers = [-8, 8]

[[array]]
name = "y"
role = "inout"
shape = ["n"]
integers = [-8, 8]

[cost]
reduction = "2"
flops = "2 * n"
""",
    "reference.py": """def reference(p, a, x, y):
    return y + a[0] * x, abs(y) + abs(a[0] * x)
""",
    "saxpy.cu.j2": """/*# kernel
summary  = "A thread computes an element."
supports = { "the batch fits 31 bits" = "n < 2147483648" }
arch     = { "compute capability 5.0 or newer" = "device.arch >= 50" }
accuracy = "fp32"

[params]
threads = { values = [256, 64], doc = "threads of a block" }

[[stage]]
entry = "saxpy"
args  = ["n", "a", "x", "y"]
block = ["threads", "1", "1"]
grid  = ["ceil_div(n, threads)", "1", "1"]
#*/
extern "C" __global__ void saxpy(int n, const float* a, const float* x, float* y) {
    const long long i = static_cast<long long>(blockIdx.x) * ${threads} + threadIdx.x;
    if (i < n) y[i] += a[0] * x[i];
}
""",
}
"""y += a * x, in which y is read and written."""
GATHERED = {
    "operation.toml": """runtime = "rows"

[sizes]
rows = { doc = "rows" }
columns = { doc = "elements of a row" }

[words]
dtype = ["f32", "f16"]

[derived]
parts = "ceil_div(columns, 32)"

[[array]]
name = "x"
role = "in"
shape = ["rows", "columns"]
fill = "uniform"
between = [-1, 1]
integers = [-4, 4]

[[array]]
name = "order"
role = "in"
shape = ["rows", "columns"]
dtype = "i32"
fill = "permutation"

[[array]]
name = "partial"
role = "scratch"
shape = ["rows", "parts"]
dtype = "f32"

[[array]]
name = "total"
role = "out"
shape = ["rows"]
dtype = "f32"

[[array]]
name = "ordered"
role = "out"
shape = ["rows", "columns"]

[cost]
reduction = "columns"
flops = "rows * columns"
""",
    "reference.py": """import numpy as np


def reference(p, x, order):
    ordered = np.take_along_axis(x, order.astype(int), axis=1)
    return (x.sum(axis=1), abs(x).sum(axis=1)), (ordered, abs(ordered))
""",
    "gathered.cu.j2": """/*# kernel
summary  = "Sums of 32 elements, then their sum, and the row in another order."
supports = { "a column's index fits 31 bits" = "columns < 2147483648" }
arch     = { "compute capability 5.0 or newer" = "device.arch >= 50" }
accuracy = "'fp32' if dtype == 'f32' else 'fp16'"

[params]
threads = { values = [64, 128], doc = "threads of a block" }

[[stage]]
entry = "partial_sums"
args  = ["x", "partial"]
block = ["threads", "1", "1"]
grid  = ["rows", "ceil_div(parts, threads)", "1"]

[[stage]]
entry = "totals"
args  = ["x", "order", "partial", "total", "ordered"]
block = ["threads", "1", "1"]
grid  = ["rows", "1", "1"]
#*/
#include "_dtype_${dtype}.cuh"
constexpr int COLUMNS = ${columns}, PARTS = ${parts}, THREADS = ${threads};

extern "C" __global__ void partial_sums(const T* x, float* partial) {
    const int part = blockIdx.y * THREADS + threadIdx.x;
    if (part >= PARTS) return;
    const T* row = x + static_cast<long long>(blockIdx.x) * COLUMNS;
    float sum = 0.0f;
    for (int i = 32 * part; i < COLUMNS && i < 32 * (part + 1); ++i) sum += to_float(row[i]);
    partial[static_cast<long long>(blockIdx.x) * PARTS + part] = sum;
}

extern "C" __global__ void totals(const T* x, const int* order, const float* partial, float* total, T* ordered) {
    const long long row = blockIdx.x;
    for (int i = threadIdx.x; i < COLUMNS; i += THREADS)
        ordered[row * COLUMNS + i] = x[row * COLUMNS + order[row * COLUMNS + i]];
    if (threadIdx.x > 0) return;
    float sum = 0.0f;
    for (int i = 0; i < PARTS; ++i) sum += partial[row * PARTS + i];
    total[row] = sum;
}
""",
}
"""Two outputs of two types, an array of indices, and scratch memory from the caller."""


def written(folder: Path, texts: Mapping[str, str], *edits: tuple[str, str]) -> Path:
    """Write the folder of an operation with these files after replacing texts; returns its family's file."""
    folder.mkdir()
    for old, _ in edits:
        assert any(old in text for text in texts.values()), old
    for name, text in texts.items():
        for edit in edits:
            text = text.replace(*edit)  # noqa: PLW2901
        (folder / name).write_text(text)
    (family,) = folder.glob("*.cu.j2")
    return family


def whole(directory: Path, *edits: tuple[str, str], reference: str = "reference.py") -> Path:
    """Write the folder of the operation with a family and a reference after replacing texts."""
    folder = declare(directory)
    texts = {
        "operation.toml": DECLARATION,
        "scale.cu.j2": FAMILY,
        reference: REFERENCE if reference.endswith(".py") else IN_CUDA,
    }
    for old, new in edits:
        assert any(old in text for text in texts.values()), old
        texts = {name: text.replace(old, new) for name, text in texts.items()}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder
