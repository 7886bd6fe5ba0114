"""Exports of operations other than conv2d, on the CPU: built from their files, right, and refused once one is wrong."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.api.device_names import binary_cache
from autotune.api.starter import new_operation
from autotune.autotune_runtime.c_library import CLibrary
from autotune.autotune_runtime.prepared import Prepared, run
from autotune.errors import StoreError
from autotune.exporting import Exported, SelectedKernel, export_library
from autotune.exporting.build import Built, self_test
from autotune.exporting.exporter import library_texts
from autotune.exporting.golden import MOST_PRODUCTS, golden, self_test_problems
from autotune.exporting.proof import prove
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_template
from autotune.measurement.exported import interface_of
from autotune.operation.registry import operation
from autotune.problem import make_problem
from autotune.trial import Value
from tests.compiled import built_for_host
from tests.exports import H200, chosen, contents
from tests.host.host_driver import Array, OnHostDriver, device_array, host_driver
from tests.long_run import every
from tests.operations import FAMILY, GATHERED, REFERENCE, SAXPY, declare, whole, written
from tests.templates.shipped_families import family

pytestmark = pytest.mark.cxx


def first_of(template: KernelTemplate, layer: str, **sizes: Value) -> SelectedKernel:
    """The default config of a family for a problem of its operation."""
    problem = make_problem(template.operation, sizes)
    space = SearchSpace(BoundTemplate(template, problem, H200), {}, most_rows=0, sampled_rows=1)
    assert space.default is not None
    return chosen(template, problem, space.default, layer)


SOFTMAX = (
    first_of(family("softmax_rows"), "few", rows=20, columns=33),
    first_of(family("softmax_rows"), "many", rows=500, columns=33),
    first_of(family("softmax_rows"), "half", rows=64, columns=100, dtype="f16"),
)
MORE_SIZES = {"few": "16 and 20", "many": "144 and 500", "half": "64"}
STENCIL = (first_of(family("stencil_rows"), "points", n=4, h=9, w=33),)


@pytest.fixture(scope="module")
def softmax(cxx: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnHostDriver]:
    folder = tmp_path_factory.mktemp("softmax")
    library = built_for_host(export_library(SOFTMAX, folder / "exported", ()), folder / "built", cxx=cxx)
    passed, said = self_test(library)
    assert passed, said
    *kernels, rejected, ended = said.splitlines()[1:]
    assert (rejected, ended) == ("invalid calls: all rejected", "self-test passed")
    for (name, more), line in zip(MORE_SIZES.items(), kernels, strict=True):
        assert re.match(rf"tested\.{name}: right at rows = 3 and 1, also at {more}( and \d+)?;", line), line
    with host_driver(library) as run:
        yield run


def loaded(path: str, name: str = "softmax") -> CLibrary:
    return CLibrary(path, (interface_of(operation(name)),))


def rows_of(path: str, x: Array, out: Array) -> tuple[Array, str | None, list[str]]:
    """An output for any run-time size, the kernel of its problem, and the messages about arrays that do not fit."""
    library = loaded(path)
    there = device_array(out)
    assert run(library, device_array(x), y=there) is there
    said = []
    for wrong in ({"y": device_array(out[:, :-1])}, {"columns": 32}, {"dtype": "f16"}, {"dtypes": "f16"}, {"y": None}):
        with pytest.raises((ValueError, TypeError)) as raised:
            run(library, device_array(x), **{"y": there, **wrong})
        said.append(str(raised.value))
    kernel = library.kernel_name(library.interface.problem({"rows": len(x), "columns": x.shape[1]}))
    return np.array(there.array), kernel, said


DEEP: dict[str, Value] = {
    "c": 16,
    "d": 5,
    "h": 6,
    "w": 7,
    "k": 24,
    "t": 3,
    "r": 3,
    "s": 3,
    "pad_d": 2,
    "dtype": "bf16",
    "layout": "nhwc",
}
SIGNAL: dict[str, Value] = {
    "c": 16,
    "w": 70,
    "k": 24,
    "s": 3,
    "pad_w": 40,
    "dilation_w": 20,
    "dtype": "f16",
    "layout": "nhwc",
}
UP: dict[str, Value] = {"c": 6, "h": 6, "w": 7, "k": 5, "r": 4, "s": 4, "stride_h": 2, "stride_w": 2, "padding_h": 1}


@pytest.mark.parametrize(
    "kernels",
    [
        (
            first_of(family("conv_implicit_gemm_sm90"), "deep", n=2, **DEEP),
            first_of(family("conv_implicit_gemm_sm90"), "signal", n=2, **SIGNAL),
        ),
        (first_of(family("conv_transpose_direct"), "up", n=2, **UP),),
    ],
)
def test_convolutions_of_any_rank_are_exported(kernels: tuple[SelectedKernel, ...], cxx: str, tmp_path: Path) -> None:
    library = built_for_host(export_library(kernels, tmp_path / "exported", ()), tmp_path / "built", cxx=cxx)
    passed, said = self_test(library)
    assert passed, said
    assert said.count(": right at n = ") == len(kernels)


@pytest.mark.parametrize(("rows", "kernel"), [(7, "tested.few"), (200, "tested.many")])
def test_python_runs_an_operation_of_any_size(rows: int, kernel: str, softmax: OnHostDriver) -> None:
    x = np.random.default_rng(3).standard_normal((rows, 33), np.float32)
    y, serves, said = softmax(rows_of, x, np.full_like(x, np.nan))
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(y, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)
    assert serves == kernel
    assert said[:4] == [
        f"y: has shape ({rows}, 32), but columns is 33",
        f"x: has shape ({rows}, 33), but columns is 32",
        "x: its elements are <f4, the problem's <f2 (f16)",
        "dtypes: softmax has no such size or word; it has columns, dtype, rows",
    ]
    assert said[4].startswith("cannot make an array like a DeviceArray"), said


@pytest.fixture(scope="module")
def stencil(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A library whose only operation has weights; tests must not write to it."""
    return export_library(STENCIL, tmp_path_factory.mktemp("stencil"), ())


@pytest.fixture(scope="module")
def built_stencil(stencil: Exported, cxx: str, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The library for the CPU."""
    return built_for_host(stencil, tmp_path_factory.mktemp("built"), cxx=cxx)


def test_weights_and_sums_pass_the_self_test(stencil: Exported, built_stencil: Built) -> None:
    header = (stencil.folder / "autotune_stencil.h").read_text()
    assert "conv2d" not in "".join(path.read_text() for path in stencil.folder.iterdir() if path.is_file())
    assert " *     arguments.weights = weights;\n" in header
    assert "    const void *weights; /* [2] */\n    void *y; /* [n, h, w] */\n" in header
    passed, said = self_test(built_stencil)
    assert passed, said
    assert said.splitlines()[1].endswith("of the bound, integers exact")


def prepared_once(path: str, x: Array, weights: Array) -> tuple[list[Array], list[str]]:
    """Outputs for two numbers of planes, after the prepared weights were deleted; and refusals."""
    library, there = loaded(path, "stencil"), device_array(weights)
    h, w = x.shape[1:]
    prepared = Prepared(library, there, h=h, w=w)
    there.array[...] = np.nan
    outputs = []
    for n in (len(x), 1):
        y = device_array(np.full_like(x[:n], np.nan))
        assert prepared(device_array(x[:n]), y=y) is y
        outputs.append(np.array(y.array))
    said = []
    refused: tuple[Callable[[], object], ...] = (
        lambda: Prepared(library, there),
        lambda: Prepared(library, h=h, w=w),
        lambda: prepared(device_array(x[:, 1:])),
        prepared,
    )
    for call in refused:
        with pytest.raises((ValueError, TypeError)) as raised:
            call()
        said.append(str(raised.value))
    return outputs, said


def test_weights_are_prepared_once_for_any_run_time_size(built_stencil: Built) -> None:
    x = np.random.default_rng(3).standard_normal((5, 9, 33), np.float32)
    with host_driver(built_stencil) as on_cpu:
        outputs, said = on_cpu(prepared_once, x, np.array([2, -1], np.float32))
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    beside = padded[:, :-2, 1:-1] + padded[:, 2:, 1:-1] + padded[:, 1:-1, :-2] + padded[:, 1:-1, 2:]
    for y in outputs:
        np.testing.assert_allclose(y, (2 * x - beside)[: len(y)], atol=1e-5)
    assert [len(y) for y in outputs] == [5, 1]
    assert said == [
        "h: missing",
        "stencil takes weights to be prepared",
        "x: has shape (5, 8, 33), but h is 9",
        "stencil takes x",
    ]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            ("((above.at[j] + below.at[j])", "((above.at[j] - below.at[j])"),
            "WRONG on integers, two calls at once: output ",
        ),
        pytest.param(
            ("if (column < W && first + i < H)", "if (column < W && first + i < H - 1)"),
            "nan, not written",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_wrong_kernel_fails_the_self_test(fault: tuple[str, str], words: str, cxx: str, tmp_path: Path) -> None:
    exported = export_library(STENCIL, tmp_path / "exported", ())
    path = tmp_path / "exported" / f"{STENCIL[0].stem}.cu"
    text = path.read_text()
    assert text.count(fault[0]) == 1
    path.write_text(text.replace(*fault))
    passed, said = self_test(built_for_host(exported, tmp_path / "built", cxx=cxx))
    assert not passed
    assert words in said


def test_a_new_operation_of_a_user_is_exported(cxx: str, tmp_path: Path) -> None:
    """Also if sums of its whole numbers exceed f16, and outputs are infinite."""
    new_operation("add_bias", tmp_path)
    path = tmp_path / "add_bias" / "operation.toml"
    path.write_text(path.read_text().replace("[-8, 8]", "[-60000, 60000]"))
    kernel = first_of(load_template(path.parent / "add_bias.cu.j2"), "small", rows=64, columns=20, dtype="f16")
    exported = export_library([kernel], tmp_path / "exported", ())
    passed, said = self_test(built_for_host(exported, tmp_path / "built", cxx=cxx))
    assert passed, said
    # The sizes of a tested problem are at least a warp's outputs.
    assert "tested.small: right at rows = 51 and 1, also at 64" in said
    export_library([kernel], tmp_path / "again", ())
    assert contents(tmp_path / "again") == contents(exported.folder)


@pytest.mark.parametrize("wrong", every(2, ["rows % 16 == 0", "at >= 100LL * COLUMNS"]))
def test_a_kernel_that_is_wrong_at_some_sizes_only_fails_the_self_test(wrong: str, cxx: str, tmp_path: Path) -> None:
    new_operation("add_bias", tmp_path)
    path = tmp_path / "add_bias" / "add_bias.cu.j2"
    path.write_text(path.read_text().replace("y[at] = from_float<T>(", f"y[at] = from_float<T>({wrong} ? 0.0f : "))
    kernel = first_of(load_template(path), "small", rows=256, columns=20)
    exported = export_library([kernel], tmp_path / "exported", ())
    passed, said = self_test(built_for_host(exported, tmp_path / "built", cxx=cxx))
    assert not passed
    assert re.search(r"at rows = \d+: output", said), said


@pytest.mark.parametrize("reference", ["reference.cuh", pytest.param("reference.py", marks=pytest.mark.long)])
def test_a_derived_size_that_follows_from_the_run_time_size(reference: str, cxx: str, tmp_path: Path) -> None:
    """It is computed for the size of a call, not kept from the tuned size."""
    folder = whole(
        tmp_path,
        ("[rules]", 'pairs = "ceil_div(rows, 2)"\n\n[rules]'),
        ('grid  = ["rows", "1", "1"]', 'grid  = ["2 * pairs", "1", "1"]'),
        ("row = blockIdx.x;", "row = blockIdx.x;\n    if (row >= rows) return;"),
        reference=reference,
    )
    kernel = first_of(load_template(folder / "scale.cu.j2"), "twice", rows=4, columns=40, halo=1)
    exported = export_library([kernel], tmp_path / "exported", ())
    passed, said = self_test(built_for_host(exported, tmp_path / "built", cxx=cxx))
    assert passed, said


@pytest.mark.parametrize("texts", [SAXPY, pytest.param(GATHERED, marks=pytest.mark.long)], ids=["inout", "outputs"])
def test_roles_types_and_fills_pass_the_self_test(texts: Mapping[str, str], cxx: str, tmp_path: Path) -> None:
    template = load_template(written(tmp_path / "declared", texts))
    sizes = {"n": 5000} if texts is SAXPY else {"rows": 9, "columns": 70}
    exported = export_library([first_of(template, "own", **sizes)], tmp_path / "exported", ())
    passed, said = self_test(built_for_host(exported, tmp_path / "built", cxx=cxx))
    assert passed, said
    assert "largest error 0.000" not in said, "it is compared with something"
    assert "integers exact" in said


@pytest.mark.long
def test_a_self_test_takes_no_longer_for_many_outputs_of_a_slow_reference(cxx: str, tmp_path: Path) -> None:
    """It computes some of 3,000,000 outputs that take 0.1 ms each, and finds a wrong one among these."""
    folder = whole(
        tmp_path,
        ("const double value = ", "for (volatile int i = 0; i < 50000; i = i + 1) {}\n    const double value = "),
        ('reduction = "1"', 'reduction = "1000000"'),
        reference="reference.cuh",
    )
    kernel = first_of(load_template(folder / "scale.cu.j2"), "slow", rows=4, columns=1_000_000)
    exported = export_library([kernel], tmp_path / "exported", ())
    passed, said = self_test(built_for_host(exported, tmp_path / "built", cxx=cxx), 60)
    assert passed, said
    source = exported.folder / f"{kernel.stem}.cu"
    source.write_text(source.read_text().replace("i += BLOCK", "i += BLOCK + (i < 500000 ? 0 : INNER)"))
    passed, said = self_test(built_for_host(exported, tmp_path / "wrong", cxx=cxx), 60)
    assert not passed
    assert "not written" in said


def test_run_time_sizes_that_rules_leave_out_are_passed_over_quickly(tmp_path: Path) -> None:
    folder = whole(tmp_path, ("[rules]", '[rules]\n"rows = ${rows} are few" = "rows >= 2000000000"'))
    declared = load_template(folder / "scale.cu.j2").operation
    for rows, tested in ((2_000_000_000, 2_000_000_000), (2_147_483_647, 2_147_483_647)):
        problems = self_test_problems(make_problem(declared, {"rows": rows, "columns": 40}))
        assert [problem.runtime_sizes for problem in problems] == [(tested,), (tested,)]


@pytest.mark.long
def test_what_takes_too_long_on_a_cpu_is_left_out_of_the_proof(cxx: str, tmp_path: Path) -> None:
    """8192^3: 1.1 TFLOP a pass, and 67 million outputs of 8192 products each."""
    large = first_of(family("gemm_tiled"), "large", m=8192, n=8192, k=8192)
    small = first_of(family("gemm_tiled"), "small", m=16, n=16, k=16)
    exported = export_library([large, small], tmp_path / "exported", ())
    lines = list(prove(exported, "no GPU here", "not in this test", cache=binary_cache()))
    assert "tested.large: not tested: batch = 1 would take too long on a CPU" in lines
    assert [line for line in lines if line.startswith(("tested.small: right at batch = 1 and 1;", "self-test passed"))]
    assert golden(large.problem, 0).most_outputs * 8192 <= MOST_PRODUCTS


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="an export has kernels of one operation, not of softmax, stencil"):
        export_library([*SOFTMAX, *STENCIL], tmp_path / "out", ())
    (declare(tmp_path, "test") / "reference.py").write_text(REFERENCE)
    (tmp_path / "test" / "twice.cu.j2").write_text(FAMILY)
    taken = first_of(load_template(tmp_path / "test" / "twice.cu.j2"), "twice", rows=4, columns=40)
    with pytest.raises(StoreError, match="cannot be exported: a library of this name would be mistaken for another"):
        library_texts([taken], [90], self_test=True)


def test_package_stands_alone(tmp_path: Path) -> None:
    """It is loaded with the standard library alone."""
    export_library(STENCIL, tmp_path, ())
    code = "import autotune_stencil as a; print(a.problem({'n': 3, 'h': 4, 'w': 5}).numbers); assert a.prepare"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'python')!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "(3, 4, 5, 0)\n"


def compiled_rows(path: str, rows: int) -> tuple[str, Array, Array, tuple[int, ...], list[str]]:
    """The operator's schema, its output (traced by `torch.compile` and on tensors without data), and refusals."""
    import torch

    from tests.torch_networks import CPU

    sys.path.insert(0, str(Path(path).parents[1] / "exported" / "python"))
    package = importlib.import_module("autotune_softmax")
    calls, operators = (
        importlib.import_module(f"autotune_softmax.{name}") for name in ("torch_call", "torch_operator")
    )
    softmax = operators.Operator(package.INTERFACE, "softmax")
    softmax.support("cpu", CPU)
    operator: Any = softmax.of(package.load(path))
    x = torch.linspace(-2, 2, 33 * rows).reshape(rows, 33)
    torch.library.opcheck(
        softmax.operator, (x, calls.Call(path, ()).text), test_utils=("test_schema", "test_faketensor")
    )
    traced = torch.compile(lambda each: operator(each + 1), backend="eager", fullgraph=True)(x)
    made, fake = operator(x.t().contiguous().t()), operator(x.to("meta"))
    said = []
    for wrong in (x.double(), x[0], x.requires_grad_()):
        with pytest.raises((ValueError, RuntimeError)) as raised:
            operator(wrong)
        said.append(str(raised.value))
    return calls.schema("softmax", package.INTERFACE), made.numpy(), traced.numpy(), tuple(fake.shape), said


def test_pytorch_has_an_operator_with_a_schema_and_a_fake_kernel(softmax: OnHostDriver) -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    words, made, traced, shape, said = softmax(compiled_rows, 5)
    x = torch.linspace(-2, 2, 33 * 5).reshape(5, 33)
    np.testing.assert_allclose(made, torch.softmax(x, 1).numpy(), rtol=1e-5)
    np.testing.assert_allclose(traced, made, rtol=1e-5)
    assert (words, shape) == ("softmax(Tensor x, str call) -> Tensor", (5, 33))
    assert said[0].startswith("x: is (5, 33), torch.float64 on cpu, expected (5, 33), torch.float32")
    assert said[1] == "x: has shape (33,), expected [rows, columns]"
    assert "a tensor requires gradients, but the kernels have no backward pass" in said[2]
