"""Operations on every storage type: verified, wrong kernels refused, and exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autotune.checking.cases import CasePlan
from autotune.checking.check import CheckRow, FamilyCheck
from autotune.checking.dependence import doubtful_declarations
from autotune.errors import TemplateError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting import export_library
from autotune.exporting.build import self_test
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template
from autotune.measurement.storage import decoded, encoded, stored
from autotune.measurement.unread_inputs import doubtful_data
from autotune.operation.operation import parse_operation
from autotune.operation.storage_types import TYPES
from autotune.problem import Layer, make_problem
from autotune.trial import Value
from tests.compiled import built_for_host
from tests.exports import H200, chosen
from tests.long_run import every
from tests.operations import written

from .kernels import Bench

pytestmark = pytest.mark.cxx

PRODUCTS = {
    "operation.toml": """runtime = "rows"

[sizes]
rows = { doc = "rows" }
columns = { doc = "elements of a row" }

[words]
dtype = ["i8", "u8"]
sums = ["i32", "i64"]

[[array]]
name = "w"
role = "weights"
shape = ["rows", "columns"]
integers = ["0 if dtype == 'u8' else 0 - 128", "255 if dtype == 'u8' else 127"]

[[array]]
name = "x"
role = "in"
shape = ["columns"]
integers = ["0 if dtype == 'u8' else 0 - 128", "255 if dtype == 'u8' else 127"]

[[array]]
name = "y"
role = "out"
shape = ["rows"]
dtype = "sums"

[cost]
flops = "2 * rows * columns"

[errors]
model = "exact"
""",
    "reference.py": "def reference(p, w, x):\n    return w @ x\n",
    "products.cu.j2": """/*# kernel
summary  = "A warp computes a row, four products an instruction."
supports = { "columns are a multiple of 4" = "columns % 4 == 0" }
arch     = { "compute capability 6.1 or newer" = "device.arch >= 61" }
accuracy = "fp32"

[params]
warps = { values = [2, 4], doc = "warps of a block, a row each" }

[[stage]]
entry = "products"
args  = ["w", "x", "y", "rows"]
block = ["32 * warps", "1", "1"]
grid  = ["ceil_div(rows, warps)", "1", "1"]
#*/
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

#include "_dtype_${dtype}.cuh"
namespace cg = cooperative_groups;
using Sum = ${"int" if sums == "i32" else "long long"};
using Word = ${"int" if dtype == "i8" else "unsigned"};

extern "C" __global__ void products(const T* w, const T* x, Sum* y, int rows) {
    const auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    const int row = blockIdx.x * ${warps} + warp.meta_group_rank();
    if (row >= rows) return;
    const Word* const words = reinterpret_cast<const Word*>(w + static_cast<long long>(row) * ${columns});
    Word sum = 0;
    for (int i = warp.thread_rank(); i < ${columns} / 4; i += 32)
        sum = __dp4a(words[i], reinterpret_cast<const Word*>(x)[i], sum);
    sum = cg::reduce(warp, sum, cg::plus<Word>());
    if (warp.thread_rank() == 0) y[row] = sum;
}
""",
}
"""Products of bytes, summed exactly, with a second word of types."""
ROUNDED = {
    "operation.toml": """runtime = "rows"

[sizes]
rows = { doc = "rows" }
columns = { doc = "elements of a row" }

[words]
dtype = ["e4m3", "e5m2"]

[[array]]
name = "x"
role = "in"
shape = ["rows", "columns"]
dtype = "f32"
integers = [-8, 8]

[[array]]
name = "scale"
role = "weights"
shape = ["columns"]
dtype = "f32"
integers = [-2, 2]

[[array]]
name = "other"
role = "in"
shape = ["rows", "columns"]
integers = [-8, 8]

[[array]]
name = "y"
role = "out"
shape = ["rows", "columns"]

[cost]
reduction = "2"
flops = "2 * rows * columns"
""",
    "reference.py": """def reference(p, x, scale, other):
    return x * scale + other, abs(x * scale) + abs(other)
""",
    "rounded.cu.j2": """/*# kernel
summary  = "A thread computes an element."
supports = { "the grid has fewer than 2^31 blocks" = "rows * columns < 4294967296" }
arch     = { "compute capability 8.9 or newer" = "device.arch >= 89" }
accuracy = "fp32"

[params]
threads = { values = [64, 128], doc = "threads of a block" }

[[stage]]
entry = "rounded"
args  = ["x", "scale", "other", "y", "rows"]
block = ["threads", "1", "1"]
grid  = ["ceil_div(rows * columns, threads)", "1", "1"]
#*/
#include "_dtype_${dtype}.cuh"

extern "C" __global__ void rounded(const float* x, const float* scale, const T* other, T* y, int rows) {
    const long long at = static_cast<long long>(blockIdx.x) * ${threads} + threadIdx.x;
    if (at >= static_cast<long long>(rows) * ${columns}) return;
    y[at] = from_float<T>(x[at] * scale[at % ${columns}] + to_float(other[at]));
}
""",
}
"""Scaled numbers in 8 bits."""
QUANTIZED = {
    "operation.toml": ROUNDED["operation.toml"].replace('"e4m3", "e5m2"', '"i8"'),
    "reference.py": ROUNDED["reference.py"],
    "rounded.cu.j2": ROUNDED["rounded.cu.j2"]
    .replace("from_float<T>(", "static_cast<T>(rintf(")
    .replace("to_float(other[at]));", "other[at]));"),
}
"""The same, rounded to integers by the kernel alone."""
SUMS = {
    "operation.toml": """runtime = "rows"

[sizes]
rows = { doc = "rows" }
columns = { doc = "elements of a row" }

[words]
dtype = ["f64"]

[[array]]
name = "x"
role = "in"
shape = ["rows", "columns"]
integers = [-1000, 1000]

[[array]]
name = "y"
role = "out"
shape = ["rows"]

[cost]
reduction = "columns"
flops = "rows * columns"
""",
    "reference.py": "def reference(p, x):\n    return x.sum(axis=1), abs(x).sum(axis=1)\n",
    "sums.cu.j2": """/*# kernel
summary  = "A thread sums a row."
supports = { "a row's index fits 31 bits" = "columns < 2147483648" }
arch     = { "compute capability 6.0 or newer" = "device.arch >= 60" }
accuracy = "fp64"

[params]
threads = { values = [64, 128], doc = "threads of a block" }

[[stage]]
entry = "sums"
args  = ["x", "y", "rows"]
block = ["threads", "1", "1"]
grid  = ["ceil_div(rows, threads)", "1", "1"]
#*/
extern "C" __global__ void sums(const double* x, double* y, int rows) {
    const long long row = static_cast<long long>(blockIdx.x) * ${threads} + threadIdx.x;
    if (row >= rows) return;
    double sum = 0.0;
    for (int i = 0; i < ${columns}; ++i) sum += x[row * ${columns} + i];
    y[row] = sum;
}
""",
}
"""Sums in double precision."""
PLACES: dict[str, tuple[dict[str, str], dict[str, Value]]] = {
    "i8": (PRODUCTS, {"rows": 37, "columns": 260, "dtype": "i8", "sums": "i32"}),
    "u8 to i64": (PRODUCTS, {"rows": 37, "columns": 260, "dtype": "u8", "sums": "i64"}),
    "e4m3": (ROUNDED, {"rows": 19, "columns": 100, "dtype": "e4m3"}),
    "e5m2": (ROUNDED, {"rows": 19, "columns": 100, "dtype": "e5m2"}),
    "i8 rounded": (QUANTIZED, {"rows": 19, "columns": 100}),
    "f64": (SUMS, {"rows": 41, "columns": 333}),
}
"""Problems by the types that they test."""
FAULTS = {
    "i8": ("sum = 0;", "sum = threadIdx.x == 3;"),
    "u8 to i64": ("sum = cg::reduce", "sum = static_cast<short>(sum), sum = cg::reduce"),
    "e4m3": ("y[at] = from_float<T>(x[at]", "y[at] = from_float<T>(1.1f * x[at]"),
    "e5m2": ("+ to_float(other[at])", "+ 1.2f * to_float(other[at])"),
    "i8 rounded": ("rintf", ""),
    "f64": ("double sum = 0.0", "float sum = 0.0f"),
}
"""A fault of each."""


def first_row(path: Path, host: DeviceEvaluator, sizes: dict[str, Value]) -> CheckRow:
    """The first config of the family in a file, checked on one problem."""
    template = load_template(path)
    plan = CasePlan(template, host.info, layers=[Layer("own", make_problem(template.operation, sizes))])
    return next(FamilyCheck(plan, host).rows(most=1))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name == "e5m2" else name for name in PLACES]
)
def test_a_right_kernel_is_right_and_a_wrong_one_is_not(name: str, tmp_path: Path, host: DeviceEvaluator) -> None:
    texts, sizes = PLACES[name]
    row = first_row(written(tmp_path / f"right_{name.split()[0]}", texts), host, sizes)
    assert row.outcome == "correct", row.message
    row = first_row(written(tmp_path / f"wrong_{name.split()[0]}", texts, FAULTS[name]), host, sizes)
    assert row.outcome == "wrong_result", row.message


def test_sums_that_16_bits_hold_are_told(tmp_path: Path) -> None:
    texts, sizes = PLACES["i8"]
    small = texts["operation.toml"].replace("0 - 128", "0 - 2").replace("else 127", "else 2")
    template = load_template(written(tmp_path / "small", {**texts, "operation.toml": small}))
    told, *_ = doubtful_declarations([make_problem(template.operation, sizes)])
    assert "y is at most" in told
    assert "16 bits" in told


def test_counts_that_larger_problems_do_not_increase_are_not_told(tmp_path: Path) -> None:
    texts, sizes = PLACES["i8"]
    counts = {**texts, "reference.py": texts["reference.py"].replace("w @ x", "(w @ x > 0) * 32.0")}
    template = load_template(written(tmp_path / "counts", counts))
    assert not any("16 bits" in told for told in doubtful_data([make_problem(template.operation, sizes)]))


def test_bytes_in_an_array_of_wider_integers_are_told(tmp_path: Path) -> None:
    texts, sizes = PLACES["i8"]
    wide = texts["operation.toml"].replace('dtype = ["i8", "u8"]', 'dtype = ["i8", "u8", "i32"]')
    template = load_template(written(tmp_path / "wide", {**texts, "operation.toml": wide}))
    told = doubtful_declarations([make_problem(template.operation, {**sizes, "dtype": "i32"})])
    assert any("are -128 to 127: a kernel that is wrong for other numbers of i32 passes" in warning for warning in told)


@pytest.mark.parametrize("name", every(4, ["e4m3", "u8 to i64", "i8 rounded", "f64"]))
def test_an_export_passes_its_self_test(name: str, cxx: str, tmp_path: Path) -> None:
    texts, sizes = PLACES[name]
    template = load_template(written(tmp_path / "declared", texts))
    problem = make_problem(template.operation, sizes)
    space = SearchSpace(BoundTemplate(template, problem, H200), {}, most_rows=0, sampled_rows=1)
    assert space.default is not None
    exported = export_library([chosen(template, problem, space.default, "own")], tmp_path / "exported", ())
    passed, said = self_test(built_for_host(exported, tmp_path / "built", cxx=cxx))
    assert passed, said
    assert "integers exact" in said


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_are_stored_as_the_nearest_that_a_type_holds(dtype: str) -> None:
    codes = np.arange(256, dtype=np.uint8) if TYPES[dtype].size_bytes == 1 else None
    if codes is not None:
        held = decoded(codes.tobytes(), dtype)
        held = held[~np.isnan(held)]
        assert len(held) >= 248
        np.testing.assert_array_equal(decoded(encoded(held, dtype), dtype), held)
    values = np.random.default_rng(0).uniform(0, 100, 1000)
    near = stored(np.round(values) if not TYPES[dtype].is_float else values, dtype)
    assert np.all(
        abs(near - values) <= np.maximum(TYPES[dtype].rounding * values, 0.5 * (not TYPES[dtype].is_float) + 1e-5)
    )
    if TYPES[dtype].rounding and TYPES[dtype].size_bytes == 1:
        halfway = 1 + TYPES[dtype].rounding  # between 1 and the next number, which is odd
        assert list(stored(np.array([halfway, -halfway, 1e9]), dtype)) == [1, -1, TYPES[dtype].whole[1]]


CONVERSIONS = """
#include <cuda_fp8.h>
extern "C" __global__ void conversions(const float* x, __nv_fp8_e4m3* four, __nv_fp8_e5m2* five, float4* back, int n) {
    for (int i = 0; i < n; ++i) four[i] = __nv_fp8_e4m3(x[i]), five[i] = __nv_fp8_e5m2(x[i]);
    back[0] = static_cast<float4>(*reinterpret_cast<const __nv_fp8x4_e4m3*>(four));
}
"""


def test_the_host_converts_to_eight_bits_as_numpy_does(bench: Bench) -> None:
    special = np.array([0.0, -0.0, 1.0625, 1.1875, 2.0**-10, 3 * 2.0**-10, 2.0**-17, 1e9, -1e9, 460.0], np.float32)
    scales = 2.0 ** np.arange(-20, 20).repeat(50)
    x = np.concatenate([special, np.random.default_rng(1).standard_normal(2000) * scales]).astype(np.float32)
    results = np.zeros(len(x), np.uint8), np.zeros(len(x), np.uint8), np.zeros(4, np.float32)
    _, four, five, back = bench.run(CONVERSIONS, "conversions", (x, *results, np.int32(len(x))))
    assert four.tobytes() == encoded(x, "e4m3")
    assert five.tobytes() == encoded(x, "e5m2")
    np.testing.assert_array_equal(back, stored(x[:4], "e4m3").astype(np.float32))


def test_a_word_that_has_no_types_is_no_type_of_an_array(tmp_path: Path) -> None:
    text = PRODUCTS["operation.toml"].replace('["i32", "i64"]', '["exact", "i64"]')
    with pytest.raises(TemplateError, match=r"dtype: 'exact': expected one of f32, f16.* or a word of types"):
        parse_operation(tmp_path / "products", text)
