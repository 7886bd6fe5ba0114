"""Operations as users write them, with defects in their kernels: `check` finds each."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.checking.cases import CasePlan
from autotune.checking.check import FamilyCheck
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting import export_library
from autotune.exporting.build import self_test
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template
from autotune.problem import make_problem
from autotune.trial import Outcome, Value
from tests.compiled import built_for_host
from tests.exports import H200, chosen
from tests.long_run import every
from tests.operations import written

from .test_storage_types import first_row

pytestmark = pytest.mark.cxx

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"

ROW_ARGMAX: Mapping[str, str] = {
    "operation.toml": """runtime = "rows"
[sizes]
rows = { doc = "rows" }
columns = { doc = "columns" }
[words]
dtype = ["f32", "f16"]
[[array]]
name = "x"
role = "in"
shape = ["rows", "columns"]
integers = [-4, 4]
[[array]]
name = "at"
role = "out"
shape = ["rows"]
dtype = "i32"
[errors]
model = "exact"
[cost]
flops = "rows * columns"
""",
    "reference.py": """import numpy as np


def reference(p, x):
    return np.argmax(x, axis=1)
""",
    "rowargmax.cu.j2": """/*# kernel
summary  = "A block finds the first of the largest numbers of a row."
supports = { "sizes fit" = "columns < 2147483648 and rows < 2147483648" }
arch     = { "compute capability 7.0 or newer" = "device.arch >= 70" }
accuracy = "fp32"

[params]
threads = { values = [128, 64], doc = "threads of a block" }

[[stage]]
entry = "rowargmax"
args  = ["x", "at", "rows"]
block = ["threads", "1", "1"]
grid  = ["rows", "1", "1"]

#*/

#include "_dtype_${dtype}.cuh"
constexpr int COLUMNS = ${columns}, THREADS = ${threads}, WARPS = THREADS / 32;

__device__ inline bool better(float a, int i, float b, int j) { return a > b || (a == b && i < j); }

extern "C" __global__ __launch_bounds__(THREADS) void rowargmax(const T* x, int* at, int rows) {
    __shared__ float values[WARPS];
    __shared__ int places[WARPS];
    const T* row = x + static_cast<long long>(blockIdx.x) * COLUMNS;
    float best = -__builtin_huge_valf();
    int place = 0x7fffffff;
    for (int i = threadIdx.x; i < COLUMNS; i += THREADS) {
        const float value = to_float(row[i]);
        if (better(value, i, best, place)) { best = value; place = i; }
    }
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_down_sync(0xffffffffu, best, step);
        const int there = __shfl_down_sync(0xffffffffu, place, step);
        if (better(other, there, best, place)) { best = other; place = there; }
    }
    if (threadIdx.x % 32 == 0) { values[threadIdx.x / 32] = best; places[threadIdx.x / 32] = place; }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; ++w)
            if (better(values[w], places[w], best, place)) { best = values[w]; place = places[w]; }
        at[blockIdx.x] = place;
    }
}
""",
}
INT4_MATVEC: Mapping[str, str] = {
    "operation.toml": """runtime = "n"
[sizes]
n = { doc = "vectors" }
rows = { doc = "outputs of a vector" }
k = { doc = "elements of a vector" }
group = { doc = "weights with one scale", default = 32 }
[words]
dtype = ["f16", "bf16"]
[rules]
"k is a multiple of group" = "k % group == 0 and group % 8 == 0"
[[array]]
name = "x"
role = "in"
shape = ["n", "k"]
integers = [-4, 4]
[[array]]
name = "w"
role = "weights"
shape = ["rows", "k // 2"]
dtype = "u8"
integers = [0, 255]
[[array]]
name = "scale"
role = "weights"
shape = ["rows", "k // group"]
integers = [-2, 2]
[[array]]
name = "y"
role = "out"
shape = ["n", "rows"]
[errors]
nan = "propagates"
[cost]
reduction = "k"
flops = "2 * n * rows * k"
""",
    "reference.py": """import numpy as np


def reference(p, x, w, scale):
    bits = w.astype(np.uint8)
    weights = np.stack([bits & 15, bits >> 4], axis=-1).reshape(p.rows, p.k).astype(float) - 8
    weights = weights * np.repeat(scale, p.group, axis=1)
    return x @ weights.T, abs(x) @ abs(weights).T
""",
    "matvec4.cu.j2": """/*# kernel
summary  = "A block computes an output of a vector from pairs of 4-bit weights."
supports = { "sizes fit" = "n < 65536" }
arch     = { "compute capability 7.0 or newer" = "device.arch >= 70" }
accuracy = "'fp16' if dtype == 'f16' else 'bf16'"

[params]
threads = { values = [128, 64], doc = "threads of a block" }

[[stage]]
entry = "matvec4"
args  = ["x", "w", "scale", "y", "n"]
block = ["threads", "1", "1"]
grid  = ["rows", "n", "1"]

#*/

#include "_dtype_${dtype}.cuh"
constexpr int ROWS = ${rows}, K = ${k}, GROUP = ${group}, THREADS = ${threads}, WARPS = THREADS / 32;

extern "C" __global__ __launch_bounds__(THREADS)
void matvec4(const T* x, const unsigned char* w, const T* scale, T* y, int n) {
    __shared__ float sums[WARPS];
    const long long row = blockIdx.x;
    const T* vector = x + static_cast<long long>(blockIdx.y) * K;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < K / 8; i += THREADS) {
        const unsigned int bits = reinterpret_cast<const unsigned int*>(w + row * (K / 2))[i];
        float part = 0.0f;
        for (int j = 0; j < 8; ++j)
            part += to_float(vector[8 * i + j]) * static_cast<float>(static_cast<int>(bits >> (4 * j) & 15) - 8);
        sum += part * to_float(scale[row * (K / GROUP) + 8 * i / GROUP]);
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int i = 0; i < WARPS; ++i) total += sums[i];
        y[static_cast<long long>(blockIdx.y) * ROWS + row] = from_float<T>(total);
    }
}
""",
}
OPERATIONS: Mapping[str, tuple[Mapping[str, str], dict[str, Value]]] = {
    "argmax": (ROW_ARGMAX, {"rows": 7, "columns": 300}),
    "int4": (INT4_MATVEC, {"n": 3, "rows": 20, "k": 320}),
}


_START = "-__builtin_huge_valf()"
_STORE = "at[blockIdx.x] = place;"
_SUM = "    float sum = 0.0f;"
DEFECTS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("argmax", "the last of equal numbers"): ("i < j", "i > j"),
    ("argmax", "the first of equal numbers in a warp only"): (
        "if (better(values[w], places[w], best, place))",
        "if (values[w] >= best)",
    ),
    ("argmax", "no number above 0"): (_START, "0.0f"),
    ("argmax", "no number above -100"): (_START, "-100.0f"),
    ("argmax", "no number above -1e30"): (_START, "-1e30f"),
    ("argmax", "the last column of whole blocks"): ("i < COLUMNS;", "i < COLUMNS - (COLUMNS % THREADS == 0);"),
    ("argmax", "more than 1024 columns"): ("i < COLUMNS;", "i < (COLUMNS < 1024 ? COLUMNS : 1024);"),
    ("argmax", "row 65536"): (_STORE, "if (blockIdx.x < 65536) at[blockIdx.x] = place;"),
    ("argmax", "no barrier"): ("    __syncthreads();\n", "    __syncwarp();\n"),
    ("int4", "a sign in the highest 4 bits"): (
        "bits >> (4 * j) & 15) - 8",
        "j == 7 ? static_cast<int>(bits) >> 28 : bits >> (4 * j) & 15) - 8",
    ),
    ("int4", "the scales of groups of more than 32"): ("8 * i / GROUP]", "8 * i / (GROUP > 32 ? 32 : GROUP)]"),
    ("int4", "sums in 16 bits"): ("sum += part *", "sum = to_float(from_float<T>(sum)); sum += part *"),
    ("int4", "outputs above 1000"): ("from_float<T>(total)", "from_float<T>(fminf(total, 1000.0f))"),
    ("int4", "NaN in x where the weight is 0"): (
        "            part +=",
        "            if ((bits >> (4 * j) & 15) != 8) part +=",
    ),
    ("int4", "the last vector of multiples of 8"): (
        _SUM,
        f"    if (n % 8 == 0 && blockIdx.y == n - 1) return;\n{_SUM}",
    ),
    ("int4", "no barrier"): ("    __syncthreads();\n", ""),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_kernel_is_right_and_its_export_tests_itself(
    name: str, tmp_path: Path, cxx: str, host: DeviceEvaluator, checked: DeviceEvaluator
) -> None:
    texts, sizes = OPERATIONS[name]
    for number, device in enumerate((host, checked)):
        row = first_row(written(tmp_path / f"{name}{number}", texts), device, sizes)
        assert row.outcome == "correct", row.message
    template = load_template(written(tmp_path / name, texts))
    problem = make_problem(template.operation, sizes)
    default = SearchSpace(BoundTemplate(template, problem, H200), {}, most_rows=0, sampled_rows=1).default
    assert default is not None
    exported = export_library([chosen(template, problem, default, "one")], tmp_path / "exported", ())
    passed, said = self_test(built_for_host(exported, tmp_path / "built", cxx=cxx))
    assert passed, said


@pytest.mark.parametrize("defect", every(3, DEFECTS))
def test_defect_is_found(defect: tuple[str, str], tmp_path: Path, host: DeviceEvaluator) -> None:
    texts, _ = OPERATIONS[defect[0]]
    template = load_template(written(tmp_path / defect[0], texts, DEFECTS[defect]))
    rows = FamilyCheck(CasePlan(template, host.info), host).rows()
    assert any(row.outcome == Outcome.WRONG_RESULT for row in rows)


@pytest.mark.long
@pytest.mark.parametrize("row", ["long long row", "int row"])
def test_an_offset_of_weights_that_overflows_is_told(
    row: str, tmp_path: Path, host: DeviceEvaluator, checked: DeviceEvaluator
) -> None:
    texts, _ = OPERATIONS["int4"]
    template = load_template(written(tmp_path / "int4", texts, ("long long row", row)))
    check = FamilyCheck(CasePlan(template, host.info), host, sanitizing=lambda: checked)
    assert all(row.outcome == Outcome.CORRECT for row in check.rows(most=0))
    assert any("signed integer overflow" in told for told in check.overflows) == (row == "int row")


def test_a_nan_that_gets_lost_is_named(tmp_path: Path, host: DeviceEvaluator) -> None:
    texts, sizes = OPERATIONS["int4"]
    lost = ("from_float<T>(total)", "from_float<T>(total == total ? total : 0.0f)")
    row = first_row(written(tmp_path / "int4", texts, lost), host, sizes)
    assert "; there, either the kernel or the reference gives NaN, but not both" in row.message
    assert "largest error" not in row.message


def test_the_page_has_the_table() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = lines.index("| operation | what is wrong |")
    found = list(itertools.takewhile(lambda line: line.startswith("| "), lines[first + 2 :]))
    assert found == [f"| {operation} | {name} |" for operation, name in DEFECTS]
