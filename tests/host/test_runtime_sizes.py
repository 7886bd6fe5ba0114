"""An operation with two run-time sizes: one compiled kernel serves all values of both, checked, exported and called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from autotune.autotune_runtime.c_library import CLibrary
from autotune.autotune_runtime.prepared import Prepared, run
from autotune.checking.cases import CasePlan
from autotune.checking.check import FamilyCheck
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting import export_library
from autotune.exporting.build import self_test
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template
from autotune.measurement.exported import interface_of
from autotune.operation.registry import find_operation
from autotune.problem import make_problem
from tests.compiled import built_for_host
from tests.exports import H200, chosen
from tests.host.host_driver import Array, device_array, host_driver
from tests.operations import SAXPY, written

pytestmark = pytest.mark.cxx

PRODUCTS: Mapping[str, str] = {
    "operation.toml": """runtime = ["batch", "m"]

[sizes]
batch = { doc = "matrix products" }
m     = { doc = "rows of a product" }
n     = { doc = "columns of a product" }
k     = { doc = "products summed" }

[words]
dtype = ["f32", "f16"]

[[array]]
name = "x"
role = "in"
shape = ["batch", "m", "k"]
integers = [-4, 4]

[[array]]
name = "w"
role = "weights"
shape = ["k", "n"]
integers = [-4, 4]

[[array]]
name = "y"
role = "out"
shape = ["batch", "m", "n"]

[cost]
reduction = "k"
flops = "2 * batch * m * n * k"
""",
    "reference.py": """def reference(p, x, w):
    return x @ w, abs(x) @ abs(w)
""",
    "products.cu.j2": """/*# kernel
summary  = "A thread computes an output."
supports = { "an index fits 31 bits" = "batch * m * max(n, k) < 2147483648" }
arch     = { "compute capability 7.5 or newer" = "device.arch >= 75" }
accuracy = "fp32"

[params]
block  = { values = [128, 64], doc = "threads of a block, which are outputs of a row" }
unroll = { values = [1, 4], doc = "products unrolled" }

[constraints]
"unroll divides k" = "k % unroll == 0"

[[stage]]
entry = "rows_by_columns"
args  = ["batch", "m", "x", "w", "y"]
block = ["block", "1", "1"]
grid  = ["ceil_div(n, block)", "min(m, 65535)", "batch"]
#*/
#include "_dtype_${dtype}.cuh"

constexpr int N = ${n}, K = ${k};

extern "C" __global__ void rows_by_columns(int batch, int m, const T* x, const T* w, T* y) {
    const int column = blockIdx.x * ${block} + threadIdx.x;
    if (column >= N || blockIdx.z >= batch) return;
    for (int row = blockIdx.y; row < m; row += gridDim.y) {
        const int at = blockIdx.z * m + row;
        float sum = 0.0f;
#pragma unroll ${unroll}
        for (int i = 0; i < K; ++i) sum += to_float(x[at * K + i]) * to_float(w[i * N + column]);
        y[at * N + column] = from_float<T>(sum);
    }
}
""",
}
"""y [batch, m, n] = x [batch, m, k] w [k, n]"""
TUNED = {"few": (4, 30), "many": (16, 60)}
N, K = 40, 36


def called(path: str, folder: Path, x: Array, w: Array) -> tuple[list[Array], list[str]]:
    """The product by a prepared kernel and by one call, and the names of the kernels."""
    declared = find_operation("products", [folder])
    library = CLibrary(path, (interface_of(declared),))
    outputs = [device_array(np.full((*x.shape[:2], N), np.nan, np.float32)) for _ in range(2)]
    handle = Prepared(library, device_array(w), x=device_array(x))
    handle(device_array(x), y=outputs[0])
    run(library, device_array(x), device_array(w), y=outputs[1])
    run(library, device_array(x[:, :0]), device_array(w), y=device_array(outputs[0].array[:, :0]))  # no outputs
    sizes = dict(zip(("batch", "m", "k"), x.shape, strict=True))
    kernel = library.kernel_name(library.interface.problem({**sizes, "n": N}))
    return [np.array(each.array) for each in outputs], [handle.kernel_name, str(kernel)]


def test_an_export_serves_all_run_time_sizes(tmp_path: Path, cxx: str) -> None:
    template = load_template(written(tmp_path / "products", PRODUCTS))
    kernels = []
    for layer, (batch, m) in TUNED.items():
        problem = make_problem(template.operation, {"batch": batch, "m": m, "n": N, "k": K})
        config = SearchSpace(BoundTemplate(template, problem, H200), {}, most_rows=0, sampled_rows=1).default
        assert config is not None
        kernels.append(chosen(template, problem, config, layer))
    library = built_for_host(export_library(kernels, tmp_path / "exported", ()), tmp_path / "built", cxx=cxx)
    passed, said = self_test(library)
    assert passed, said
    at = "right at batch x m = 3 x 3 and 1 x 1, also at"
    assert f"tested.few: {at} 4 x 3 and 3 x 16 and 3 x 30 and 4 x 30" in said
    assert f"tested.many: {at} 16 x 3 and 3 x 32 and 3 x 60 and 16 x 60" in said
    random = np.random.default_rng(7)
    w = random.standard_normal((K, N), np.float32)
    with host_driver(library) as on_driver:
        for batch, m, serves in ((2, 45, "few"), (1, 999, "many"), (70, 1, "few")):
            x = random.standard_normal((batch, m, K), np.float32)
            outputs, names = on_driver(called, tmp_path, x, w)
            assert names == [f"tested.{serves}"] * 2
            for y in outputs:
                np.testing.assert_allclose(y, x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("row < m", "row < m - (m > 40 && batch > 10)", "batch x m = 33 x 64"),
        ("blockIdx.z >= batch", "blockIdx.z >= 20", "batch x m = 144 x 2"),
    ],
)
def test_check_varies_each_run_time_size_and_both(
    old: str, new: str, wrong: str, tmp_path: Path, host: DeviceEvaluator
) -> None:
    template = load_template(written(tmp_path / "products", PRODUCTS, (old, new)))
    row = next(FamilyCheck(CasePlan(template, host.info), host).rows(most=1))
    assert row.message.startswith(f"wrong for {wrong}, right for 3 x 2, "), row.message


def test_a_stage_may_run_at_some_run_time_sizes_only(tmp_path: Path, host: DeviceEvaluator, cxx: str) -> None:
    second = """

[derived]
first = "2 * threads"

[[stage]]
entry = "rest"
args  = ["n", "a", "x", "y"]
block = ["threads", "1", "1"]
grid  = ["ceil_div(n, threads) - 2", "1", "1"]
when  = "n > first"
#*/"""
    rest = """
extern "C" __global__ void rest(int n, const float* a, const float* x, float* y) {
    const long long i = (blockIdx.x + 2LL) * ${threads} + threadIdx.x;
    if (i < n) y[i] += a[0] * x[i];
}
"""
    edits = (
        ('"ceil_div(n, threads)"', '"min(ceil_div(n, threads), 2)"'),
        ("\n#*/", second),
        ("+= a[0] * x[i];\n}\n", "+= a[0] * x[i];\n}\n" + rest),
    )
    template = load_template(written(tmp_path / "saxpy", SAXPY, *edits))
    row = next(FamilyCheck(CasePlan(template, host.info), host).rows(most=1))
    assert row.outcome == "correct", row.message
    problem = make_problem(template.operation, {"n": 5})
    config = SearchSpace(BoundTemplate(template, problem, H200), {}, most_rows=0, sampled_rows=1).default
    assert config is not None
    exported = export_library([chosen(template, problem, config, "few")], tmp_path / "exported", ())
    library = built_for_host(exported, tmp_path / "built", cxx=cxx)
    passed, said = self_test(library)
    assert passed, said
    x, y = np.arange(3000, dtype=np.float32), np.ones(3000, np.float32)
    with host_driver(library) as on_driver:
        result = on_driver(added, tmp_path, np.array([2.0], np.float32), x, y)
    np.testing.assert_array_equal(result, 2 * x + 1)


def added(path: str, folder: Path, a: Array, x: Array, y: Array) -> Array:
    """y + a x, by the library's kernel."""
    declared = find_operation("saxpy", [folder])
    result = device_array(y)
    run(CLibrary(path, (interface_of(declared),)), device_array(a), device_array(x), y=result)
    return np.array(result.array)
