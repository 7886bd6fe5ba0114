"""A small operation that does not come along, for what must hold of any."""

from __future__ import annotations

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
supports = "columns < 2147483648"
arch     = "device.arch >= 50"
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

template <class Problem>
REFERENCE_FUNCTION double activation_error(const Problem&, double, double) {
    return 0.0;
}

template <class Problem, class Inputs>
REFERENCE_FUNCTION Output reference_output(const Problem& problem, const Inputs& in, long long at) {
    const double value = 2.0 * in.x[at / problem.inner * problem.columns + at % problem.inner + problem.halo];
    return {value, value < 0.0 ? -value : value};
}
"""


def whole(directory: Path, *edits: tuple[str, str], reference: str = "reference.py") -> Path:
    """The folder of the operation with a family and a reference, in which texts are replaced."""
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
