"""An operation whose kernels take numbers by value: verified, exported, and called from C, Python and PyTorch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.autotune_runtime.c_library import CLibrary
from autotune.autotune_runtime.prepared import Prepared, run
from autotune.checking.dependence import doubtful_declarations
from autotune.errors import TemplateError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting import export_library
from autotune.exporting.build import self_test
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template
from autotune.measurement.exported import interface_of
from autotune.operation.registry import read_operation
from autotune.problem import make_problem
from autotune.trial import Value
from tests.compiled import built_for_host
from tests.exports import H200, chosen
from tests.host.host_driver import Array, OnHostDriver, device_array, host_driver
from tests.operations import written

from .test_storage_types import first_row

pytestmark = pytest.mark.cxx

SCALED = {
    "operation.toml": """runtime = "rows"

[sizes]
rows = { doc = "rows" }
columns = { doc = "columns" }

[words]
dtype = ["f32", "f16"]

[[array]]
name = "alpha"
role = "scalar"
dtype = "f32"
integers = [2, 3]

[[array]]
name = "x"
role = "in"
shape = ["rows", "columns"]
integers = [-8, 8]

[[array]]
name = "shift"
role = "scalar"
dtype = "i64"
integers = [1, "columns - 1"]

[[array]]
name = "bias"
role = "weights"
shape = ["columns"]
integers = [-8, 8]

[[array]]
name = "y"
role = "out"
shape = ["rows", "columns"]

[errors]
nan = "propagates"

[cost]
reduction = "2"
flops = "2 * rows * columns"
""",
    "reference.py": """import numpy as np


def reference(p, alpha, x, shift, bias):
    there = np.roll(x, -int(shift), axis=1)
    return alpha * there + bias, abs(alpha * there) + abs(bias)
""",
    "scaled.cu.j2": """/*# kernel
summary  = "A thread computes an element."
supports = { "an index fits 31 bits" = "rows * columns < 2147483648" }
arch     = { "compute capability 5.0 or newer" = "device.arch >= 50" }
accuracy = "'fp32' if dtype == 'f32' else 'fp16'"

[params]
threads = { values = [256, 64], doc = "threads of a block" }

[[stage]]
entry = "scaled"
args  = ["alpha", "x", "shift", "bias", "y", "rows"]
block = ["threads", "1", "1"]
grid  = ["ceil_div(rows * columns, threads)", "1", "1"]
#*/
#include "_dtype_${dtype}.cuh"

constexpr int COLUMNS = ${columns};

extern "C" __global__ void scaled(float alpha, const T* x, long long shift, const T* bias, T* y, int rows) {
    const int i = blockIdx.x * ${threads} + threadIdx.x, column = i % COLUMNS;
    if (i >= rows * COLUMNS) return;
    const int there = static_cast<int>((column + shift) % COLUMNS);
    y[i] = from_float<T>(alpha * to_float(x[i - column + there]) + to_float(bias[column]));
}
""",
}
SIZES: dict[str, Value] = {"rows": 7, "columns": 33}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("alpha * to_float", "2.0f * to_float"),
        ("column + shift", "column + 1"),
        ("alpha * to_float", "(alpha < 0.0f ? 1.0f : truncf(alpha)) * to_float"),
    ],
)
def test_a_kernel_that_does_not_use_a_number_is_wrong(
    old: str, new: str, tmp_path: Path, host: DeviceEvaluator, checked: DeviceEvaluator
) -> None:
    for device, name in ((host, "host"), (checked, "checked")):
        right = first_row(written(tmp_path / name, SCALED), device, SIZES)
        assert right.outcome == "correct", right.message
    wrong = first_row(written(tmp_path / "changed", SCALED, (old, new)), host, SIZES)
    assert wrong.outcome == "wrong_result"


def test_a_reference_that_does_not_use_a_number_is_noticed(tmp_path: Path) -> None:
    family = written(tmp_path / "scaled", SCALED, ("int(shift)", "1"))
    (warning,) = doubtful_declarations([make_problem(read_operation(family.parent), SIZES)])
    assert "shift" in warning


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('dtype = "f32"\n', "", "expected one of f32, f64, i32, i64"),
        ('dtype = "f32"\n', 'dtype = "f16"\n', "expected one of f32, f64, i32, i64"),
        ('dtype = "f32"\n', 'dtype = "f32"\nshape = ["rows"]\n', "leave it out: a scalar is one number"),
    ],
)
def test_a_wrong_declaration_is_refused(old: str, new: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=told):
        read_operation(written(tmp_path / "scaled", SCALED, (old, new)).parent)


@pytest.fixture(scope="module")
def scaled(cxx: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OnHostDriver, Path]]:
    folder = tmp_path_factory.mktemp("scalars")
    template = load_template(written(folder / "scaled", SCALED))
    problem = make_problem(template.operation, SIZES)
    space = SearchSpace(BoundTemplate(template, problem, H200), {}, most_rows=0, sampled_rows=1)
    assert space.default is not None
    exported = export_library([chosen(template, problem, space.default, "one")], folder / "exported", ())
    library = built_for_host(exported, folder / "built", cxx=cxx)
    passed, said = self_test(library)
    assert passed, said
    assert "right at rows = 3 and 1, also at 7" in said
    header = (exported.folder / "autotune_scaled.h").read_text()
    assert "    float alpha; /* a number */\n" in header
    assert "    int64_t shift; /* a number */\n" in header
    with host_driver(library) as on_driver:
        yield on_driver, folder / "scaled"


def expected(x: Array, bias: Array, alpha: float, shift: int) -> Array:
    result: Array = (alpha * np.roll(x, -shift, axis=1) + bias).astype(np.float32)
    return result


def from_python(path: str, folder: str, x: Array, bias: Array) -> tuple[list[Array], list[str]]:
    """Outputs of a call and of a prepared operation with two pairs of numbers; the messages about wrong numbers."""
    library = CLibrary(path, (interface_of(read_operation(Path(folder))),))
    outputs = [device_array(np.zeros_like(x)) for _ in range(3)]
    run(library, device_array(x), device_array(bias), alpha=0.5, shift=3, y=outputs[0])
    prepared = Prepared(library, device_array(bias), columns=x.shape[1])
    prepared(device_array(x), alpha=0.5, shift=3, y=outputs[1])
    prepared(device_array(x), alpha=-4, shift=1, y=outputs[2])
    said = []
    for wrong in ({"alpha": 1.0}, {"alpha": "1", "shift": 1}, {"alpha": 1, "shift": 1.5}):
        with pytest.raises(TypeError) as raised:
            run(library, device_array(x), device_array(bias), y=outputs[0], **wrong)
        said.append(str(raised.value))
    return [np.array(output.array) for output in outputs], said


def test_python_passes_numbers_by_name(scaled: tuple[OnHostDriver, Path]) -> None:
    on_driver, folder = scaled
    x, bias = np.arange(5 * 33, dtype=np.float32).reshape(5, 33), np.arange(33, dtype=np.float32)
    outputs, said = on_driver(from_python, str(folder), x, bias)
    for output, (alpha, shift) in zip(outputs, ((0.5, 3), (0.5, 3), (-4, 1)), strict=True):
        np.testing.assert_array_equal(output, expected(x, bias, alpha, shift))
    assert said == [
        "shift: scaled takes a whole number of this name, got None",
        "alpha: scaled takes a number of this name, got '1'",
        "shift: scaled takes a whole number of this name, got 1.5",
    ]


def from_torch(path: str, rows: int) -> tuple[str, list[Array]]:
    """The operator's schema, its outputs for two pairs of numbers, and its output as `torch.compile` traces it."""
    import torch

    from tests.torch_networks import CPU

    sys.path.insert(0, str(Path(path).parents[1] / "exported" / "python"))
    package = importlib.import_module("autotune_scaled")
    calls, operators = (importlib.import_module(f"autotune_scaled.{name}") for name in ("torch_call", "torch_operator"))
    scaled = operators.Operator(package.INTERFACE, "scaled")
    scaled.support("cpu", CPU)
    operator: Any = scaled.of(package.load(path))
    x, bias = torch.arange(rows * 33.0).reshape(rows, 33), torch.arange(33.0)
    torch.library.opcheck(
        scaled.operator, (x, bias, 0.5, 3, calls.Call(path, ()).text), test_utils=("test_schema", "test_faketensor")
    )
    traced = torch.compile(lambda each: operator(each, bias, alpha=0.5, shift=3), backend="eager", fullgraph=True)(x)
    made = (operator(x, bias, alpha=0.5, shift=3), traced, operator(x, bias, alpha=-4.0, shift=1))
    return calls.schema("scaled", package.INTERFACE), [each.numpy() for each in made]


def test_pytorch_takes_numbers(scaled: tuple[OnHostDriver, Path]) -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    on_driver, _ = scaled
    schema, outputs = on_driver(from_torch, 5)
    assert schema == "scaled(Tensor x, Tensor bias, float alpha, int shift, str call) -> Tensor"
    x, bias = np.arange(5 * 33, dtype=np.float32).reshape(5, 33), np.arange(33, dtype=np.float32)
    for output, (alpha, shift) in zip(outputs, ((0.5, 3), (0.5, 3), (-4, 1)), strict=True):
        np.testing.assert_array_equal(output, expected(x, bias, alpha, shift))
