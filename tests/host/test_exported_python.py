"""The Python loader of an exported folder, its library on the CPU: right for any n, with clear messages."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from autotune.autotune_runtime import (
    INTERFACE,
    Kernel,
    LibraryError,
    Prepared,
    Status,
    load,
    network_interfaces,
    prepare,
)
from autotune.autotune_runtime.arrays import stream_address
from autotune.autotune_runtime.c_library import ABI_VERSION
from autotune.autotune_runtime.interface import DeclaredProblem
from autotune.autotune_runtime.network_interfaces import BY_NAME
from autotune.errors import Rejected
from autotune.exporting import Exported
from autotune.exporting.build import Built
from autotune.exporting.kernel import SelectedKernel
from autotune.measurement.exported import interface_of, prepared
from autotune.measurement.launcher import Tensors
from autotune.operation.registry import operation
from autotune.problem import Conv2dProblem, as_conv2d
from autotune.workers.worker import FinalsRequest, FinalsTimings
from tests import exports
from tests.compiled import compiled
from tests.host.host_driver import Array, DeviceArray, OnHostDriver, device_array, host_driver
from tests.host.watched import addresses, opened

pytestmark = pytest.mark.cxx

RELU, CHUNKED, ADDED = (
    as_conv2d(tested.problem, "this test") for tested in (exports.CONSTANT, exports.CHUNKED, exports.ADDED)
)
"""A kernel with its filters in constant memory, and one with a workspace."""


@pytest.fixture(scope="module")
def on_cpu(built: Built) -> Iterator[OnHostDriver]:
    with host_driver(built) as run:
        yield run


def x_shape(problem: Conv2dProblem, n: int) -> tuple[int, ...]:
    return (n, problem.c, problem.h, problem.w)


def y_shape(problem: Conv2dProblem, n: int) -> tuple[int, ...]:
    return (n, problem.k, problem.p, problem.q)


def w_shape(problem: Conv2dProblem) -> tuple[int, ...]:
    return (problem.k, problem.c // problem.groups, problem.r, problem.s)


def normal(*shape: int) -> Array:
    """Values of a normal distribution, the same for the same shape."""
    return np.random.default_rng(7).standard_normal(shape, np.float32)


def expected(problem: Conv2dProblem, x: Array, w: Array, bias: Array) -> Array:
    """The convolution by its definition, for these two problems."""
    padded = np.pad(x, ((0, 0), (0, 0), (problem.pad_h,) * 2, (problem.pad_w,) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3))
    y: Array = np.einsum("ncpqrs,kcrs->nkpq", windows, w)
    return np.maximum(y + bias[:, None, None], 0) if problem.epilogue == "bias_relu" else y


def made(library: str, problem: Conv2dProblem, w: Array, bias: Array, **sizes: int) -> Prepared:
    """A convolution whose filters were overwritten once they were prepared."""
    w_there, bias_there = device_array(w), device_array(bias) if problem.epilogue != "none" else None
    conv = prepare(w_there, bias_there, library=load(library), **{**asdict(problem), **sizes})
    w_there.array[...] = np.nan
    return conv


def outputs(library: str, problem: Conv2dProblem, w: Array, bias: Array, images: list[Array]) -> list[Array]:
    conv = made(library, problem, w, bias)
    answers = []
    for x in images:
        out = device_array(np.full(y_shape(problem, len(x)), np.nan, np.float32))
        workspace = device_array(np.empty(max(1, conv.handle.workspace_bytes(len(x) or 1)), np.uint8))
        assert conv(device_array(x), y=out, workspace=workspace) is out
        answers.append(np.array(out.array, np.float32))
    conv.handle.release()
    return answers


@pytest.mark.parametrize("problem", [RELU, CHUNKED], ids=["constant memory", "workspace"])
def test_is_right_for_any_n(problem: Conv2dProblem, on_cpu: OnHostDriver) -> None:
    w, bias = normal(*w_shape(problem)), normal(problem.k)
    images = [normal(*x_shape(problem, n)) for n in (1, 7, problem.n, 0)]
    for x, y in zip(images, on_cpu(outputs, problem, w, bias, images), strict=True):
        np.testing.assert_allclose(y, expected(problem, x, w, bias), rtol=1e-4, atol=1e-4)


def added(library: str, w: Array, bias: Array, x: Array, z: Array) -> tuple[Array, list[str]]:
    conv = made(library, ADDED, w, bias)
    out = device_array(np.full(z.shape, np.nan, np.float32))
    conv(device_array(x), device_array(z), y=out)
    said = []
    for wrong in (None, device_array(z[:1])):
        with pytest.raises((ValueError, TypeError)) as raised:
            conv(device_array(x), wrong, y=out)
        said.append(str(raised.value))
    return np.array(out.array, np.float32), said


def test_a_residual_is_added(on_cpu: OnHostDriver) -> None:
    w, bias = normal(*w_shape(ADDED)), normal(ADDED.k)
    x, z = normal(*x_shape(ADDED, 3)), normal(*y_shape(ADDED, 3))
    y, said = on_cpu(added, w, bias, x, z)
    sums = expected(replace(ADDED, epilogue="none"), x, w, bias)
    np.testing.assert_allclose(y, sums + bias[:, None, None] + z, rtol=1e-4, atol=1e-4)
    assert said[0].startswith("z: ")
    assert said[1].startswith("z: has shape")


def in_a_worker(library: str, x: Array, w: Array, bias: Array) -> Array:
    """An output as the worker that proves a library sees it."""
    arrays = {"x": x, "w": w, "bias": bias, "y": np.empty(y_shape(RELU, len(x)), np.float32)}
    there = {name: device_array(array) for name, array in arrays.items()}
    tensors = Tensors({name: array.array.ctypes.data for name, array in there.items()})
    with prepared(Path(library), exports.CONSTANT.problem.with_runtime(len(x)), tensors) as handle:
        handle.run(tensors, 0)
        with pytest.raises(Rejected, match="a required pointer is NULL"):
            handle.run(replace(tensors, arrays={**tensors.arrays, "x": 0}), 0)
    return np.array(there["y"].array, np.float32)


def test_worker_runs_a_library(on_cpu: OnHostDriver, tmp_path: Path) -> None:
    x, w, bias = normal(*x_shape(RELU, 5)), normal(*w_shape(RELU)), normal(RELU.k)
    np.testing.assert_allclose(on_cpu(in_a_worker, x, w, bias), expected(RELU, x, w, bias), rtol=1e-4, atol=1e-4)
    with (
        pytest.raises(Rejected, match="cannot load the exported library"),
        prepared(tmp_path / "nothing.so", exports.CONSTANT.problem, Tensors({})),
    ):
        pass


def timed_beside(library: str, cxx: str, name: str) -> tuple[FinalsTimings, set[frozenset[int]], int]:
    """A kernel, twice, next to its library: the arrays of its passes in a sample, and the number of workspaces."""
    tested: SelectedKernel = getattr(exports, name)
    device, server = opened(tested.problem, cxx, short_us=1e9)
    device.paced_us = 100.0  # four passes per sample
    kernel = tested.source, compiled(tested.source.program, cxx=cxx)
    request = FinalsRequest((kernel, kernel), (), "cold", 0.05, 0, ((library, tested.source),))
    server.answer(request)
    held = dict(device.held)
    device.measured.clear()
    device.most.clear()
    found = server.answer(request)
    assert isinstance(found, FinalsTimings)
    assert device.held == held, "all is given back"
    device.close()
    given = {frozenset(addresses(sampled)) for sampled in device.measured if len(sampled) == 4}
    return found, given, device.most[tested.source.workspace_bytes]


@pytest.mark.parametrize(("name", "each", "shared"), [("PACKED", "xy", 1), ("ADDED", "xyz", 2)])
def test_passes_of_a_kernel_beside_its_library_share_weights_as_the_librarys_do(
    on_cpu: OnHostDriver, cxx: str, name: str, each: str, shared: int
) -> None:
    found, given, _ = on_cpu(timed_beside, cxx, name)
    assert found.again is not None
    assert [timing.passes for timing in (*found.kernels, *found.libraries, found.again)] == [4, 4, 4, 4]
    first, again = given
    assert len(first) == len(again) == 4 * len(each) + shared
    assert len(first & again) == 4 * len(each), "the kernel that is entered again has its weights elsewhere"


def test_a_library_runs_in_the_workspaces_of_its_kernels_passes(on_cpu: OnHostDriver, cxx: str) -> None:
    found, _, workspaces = on_cpu(timed_beside, cxx, "CHUNKED")
    assert found.libraries
    assert workspaces == 4 * len(found.kernels), "each pass of a kernel has a workspace, and no other pass has one"


def kernels(library: str) -> tuple[str, tuple[Kernel, ...]]:
    return load(library).version, load(library).kernels()


def test_kernels_are_those_of_the_provenance(exported: Exported, on_cpu: OnHostDriver) -> None:
    version, found = on_cpu(kernels)
    provenance = json.loads((exported.folder / "provenance.json").read_text())
    assert version == f"autotune {provenance['autotune']}"
    assert [one.name for one in found] == [one["name"] for one in provenance["kernels"]]
    assert [one.problem.values for one in found] == [one.problem.values for one in exported.served]
    assert [one.accuracy for one in found] == ["fp32", "fp16", "fp32", "fp32", "fp16", "tf32", "fp32"]
    assert [one.constant_weights for one in found] == [one.source.constants != () for one in exported.served]
    assert [one.deterministic for one in found] == [one["deterministic"] for one in provenance["kernels"]]


def declared(problem: Conv2dProblem) -> DeclaredProblem:
    return INTERFACE.problem(asdict(problem))


def names(library: str, problems: list[Conv2dProblem]) -> list[str | None]:
    return [load(library).kernel_name(declared(problem)) for problem in problems]


def test_kernel_of_a_problem_has_a_name(on_cpu: OnHostDriver) -> None:
    assert on_cpu(names, [RELU, replace(RELU, n=3), replace(RELU, epilogue="none")]) == ["tested.constant"] * 2 + [None]


def last_errors(library: str) -> list[bytes]:
    """The last error after a call that is refused, and after one that is not."""
    gc.collect()  # to free a handle in between is also a call
    c = ctypes.CDLL(library)
    c.conv2d_last_error.restype = ctypes.c_char_p
    with contextlib.suppress(LibraryError):
        load(library).workspace_bytes(declared(replace(RELU, epilogue="none")))
    refused = bytes(c.conv2d_last_error())
    load(library).workspace_bytes(declared(RELU))
    return [refused, bytes(c.conv2d_last_error())]


def test_last_error_is_of_the_latest_call(on_cpu: OnHostDriver) -> None:
    assert on_cpu(last_errors) == [b"the library has no kernel for this shape", b""]


def released(library: str) -> tuple[str, list[str]]:
    """The messages of a handle that was released, twice."""
    conv = made(library, RELU, normal(*w_shape(RELU)), normal(RELU.k))
    conv.handle.release()
    conv.handle.release()
    said = []
    for call in (lambda: conv.handle.workspace_bytes(3), lambda: conv.handle.enqueuer(3)):
        with pytest.raises(LibraryError) as error:
            call()
        said.append(str(error.value))
    return conv.kernel_name, said


def test_released_handle_is_refused_and_keeps_its_name(on_cpu: OnHostDriver) -> None:
    assert on_cpu(released) == ("tested.constant", ["a required pointer is NULL"] * 2)


def refused(library: str, what: str) -> None:
    """Make a call that is refused."""
    w, bias = normal(*w_shape(RELU)), normal(RELU.k)
    images = normal(*x_shape(RELU, 3))
    x, out = device_array(images), device_array(normal(*y_shape(RELU, 3)))
    conv, chunked = made(library, RELU, w, bias), made(library, CHUNKED, w, bias)
    misaligned = device_array(np.zeros(images.size + 1, np.float32)).array[1:].reshape(images.shape)
    without_bias = asdict(replace(RELU, epilogue="none"))
    calls: dict[str, Callable[[], object]] = {
        "no kernel": lambda: made(library, replace(RELU, epilogue="none"), w, bias),
        "no convolution": lambda: made(library, RELU, w, bias, h=2),
        "a size of more than 32 bits": lambda: made(library, RELU, w, bias, h=2**32 + RELU.h),
        "more images than 32 bits count": lambda: conv.handle.workspace_bytes(2**32 + 1),
        "no bias": lambda: prepare(device_array(w), library=load(library), **asdict(RELU)),
        "a bias too many": lambda: prepare(device_array(w), device_array(bias), library=load(library), **without_bias),
        "filters": lambda: made(library, RELU, normal(4, 2, 3, 4), bias),
        "images": lambda: conv(device_array(normal(3, 2, 9, 12)), y=out),
        "halves": lambda: conv(device_array(images.astype(np.float16)), y=out),
        "strides": lambda: conv(DeviceArray(np.swapaxes(normal(3, 2, 11, 9), 2, 3)), y=out),
        "out": lambda: conv(x, y=device_array(normal(*y_shape(RELU, 2)))),
        "no out": lambda: conv(x),
        "not on a GPU": lambda: conv(images, y=out),
        "address": lambda: conv(DeviceArray(misaligned), y=out),
        "workspace": lambda: chunked(
            device_array(normal(*x_shape(CHUNKED, 3))),
            y=device_array(normal(*y_shape(CHUNKED, 3))),
            workspace=device_array(np.empty(8, np.uint8)),
        ),
    }
    calls[what]()


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("no kernel", LibraryError, "the library has no kernel for this problem"),
        ("no convolution", LibraryError, "invalid problem of conv2d: "),
        (
            "a size of more than 32 bits",
            ValueError,
            "4294967305 is too large for the library, whose sizes have 32 bits",
        ),
        ("more images than 32 bits count", ValueError, "4294967297 is too large for the library"),
        ("no bias", ValueError, "bias: missing"),
        ("a bias too many", ValueError, "bias: this problem of conv2d has none"),
        ("filters", ValueError, "w: has shape (4, 2, 3, 4), but s is 3"),
        ("images", ValueError, "x: has shape (3, 2, 9, 12), but w is 11"),
        ("halves", ValueError, "x: its elements are <f2, the problem's <f4 (f32)"),
        ("strides", ValueError, "x: is not contiguous (C order); copy it first"),
        ("out", ValueError, "y: has shape (2, 4, 7, 9), but n is 3"),
        ("no out", TypeError, "cannot make an array like a DeviceArray; give the output"),
        ("not on a GPU", TypeError, "x: a ndarray is not an array on a GPU: it has no __cuda_array_interface__"),
        ("address", LibraryError, "a device pointer is not a multiple of 16 bytes"),
        ("workspace", ValueError, "workspace: has 8 bytes, expected "),
    ],
)
def test_what_is_wrong_is_said(what: str, error: type[Exception], words: str, on_cpu: OnHostDriver) -> None:
    with pytest.raises(error, match=re.escape(words)):
        on_cpu(refused, what)


def status_of_a_thread_without_a_context(library: str) -> Status | None:
    found = []

    def prepare() -> None:
        try:
            made(library, RELU, normal(*w_shape(RELU)), normal(RELU.k))
        except LibraryError as error:
            found.append(error.status)

    thread = threading.Thread(target=prepare)
    thread.start()
    thread.join()
    return found[0] if found else None


def test_thread_without_a_context_is_told(on_cpu: OnHostDriver) -> None:
    assert on_cpu(status_of_a_thread_without_a_context) == Status.NO_CONTEXT


def test_exported_package_finds_the_library_beside_it(exported: Exported, built: Built, tmp_path: Path) -> None:
    python, program = tmp_path / "python", "import autotune_runtime as a; print(a.load().path)"
    shutil.copytree(exported.folder / "python", python)
    missing = alone(python, program)
    places = (python / "autotune_runtime", python, tmp_path, tmp_path / "build")
    assert f"FileNotFoundError: no libconv2d.so in {', '.join(map(str, places))}; build it" in missing
    for place in reversed(places):
        place.mkdir(exist_ok=True)
        shutil.copy(built.library, place)
        assert alone(python, program).strip() == str(place / "libconv2d.so")


def alone(python: Path, program: str) -> str:
    """The output of a program that only has an exported python folder and the standard library."""
    command = [sys.executable, "-B", "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(python)!r})\n{program}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_the_old_name_of_the_package_says_the_new_one(exported: Exported) -> None:
    said = alone(exported.folder / "python", "from autotune_conv2d.torch_convert import convert")
    assert "ImportError: autotune_conv2d is now called autotune_runtime: import autotune_runtime" in said


def test_other_libraries_are_refused(cxx: str, tmp_path: Path) -> None:
    for name, text in (("newer", 'extern "C" int conv2d_abi_version() { return 99; }'), ("foreign", "int nothing;")):
        (tmp_path / f"{name}.cpp").write_text(text)
        command = [cxx, "-shared", "-fPIC", "-o", str(tmp_path / f"{name}.so"), str(tmp_path / f"{name}.cpp")]
        subprocess.run(command, check=True)
    with pytest.raises(ImportError, match=f"has version 99 of the interface and this loader version {ABI_VERSION}"):
        load(tmp_path / "newer.so")
    with pytest.raises(ImportError, match="is not a library of conv2d or conv or conv_transpose"):
        load(tmp_path / "foreign.so")
    with pytest.raises(OSError, match=r"nothing\.so"):
        load(tmp_path / "nothing.so")


def test_words_that_a_problem_cannot_have_are_refused() -> None:
    with pytest.raises(ValueError, match="layout = 'chwn': expected one of nchw, nhwc"):
        INTERFACE.problem({**asdict(RELU), "layout": "chwn"})


def test_loader_and_header_say_the_same(exported: Exported) -> None:
    header = (exported.folder / "autotune_runtime.h").read_text()
    assert f"#define CONV2D_ABI_VERSION {ABI_VERSION}\n" in header
    statuses = re.findall(r"CONV2D_(\w+) = (\d+)", header[: header.index("} conv2d_status;")])
    assert {name: int(number) for name, number in statuses} == {status.name: status.value for status in Status}
    for kind, words in INTERFACE.words.items():
        enumeration = header[header.index(f"typedef enum conv2d_{kind} {{") : header.index(f"}} conv2d_{kind};")]
        found = re.findall(r"CONV2D_(\w+) = (\d+)", enumeration)
        assert [(name.lower(), int(number)) for name, number in found] == [(word, at) for at, word in enumerate(words)]
    arguments = header[header.index("typedef struct conv2d_arguments") : header.index("} conv2d_arguments;")]
    assert tuple(re.findall(r"void \*(\w+);", arguments)) == ("workspace", *(array.name for array in INTERFACE.arrays))


def test_loader_declares_what_the_operation_does(update_golden: bool) -> None:
    current = [interface_of(operation(name)) for name in BY_NAME]
    if update_golden:
        lines = ",\n".join(json.dumps(asdict(each)) for each in current)
        Path(network_interfaces.__file__).with_suffix(".json").write_text(f"[\n{lines}\n]\n")
    else:
        assert current == list(BY_NAME.values()), "write them anew with --update-golden"


def test_streams_of_every_library_are_understood() -> None:
    array = object()
    kinds = (
        SimpleNamespace(ptr=5),  # CuPy
        SimpleNamespace(handle=5),  # PyCUDA
        SimpleNamespace(cuda_stream=5),  # PyTorch
        SimpleNamespace(__cuda_stream__=lambda: (0, 5)),  # cuda.core
        5,
    )
    assert [stream_address(stream, array) for stream in kinds] == [5] * 5
    assert stream_address(None, array) == 0
