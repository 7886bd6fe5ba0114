"""A library without C++ runs the kernels of one in C++ as that does, on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pytest

from autotune.autotune_runtime import Handle, LibraryError, Status, load
from autotune.autotune_runtime.interface import DeclaredProblem, Library
from autotune.compilation.compile import Binary, Target
from autotune.exporting import Exported
from autotune.exporting.build import Built
from autotune.exporting.kernel import SelectedKernel
from autotune.exporting.planned import planned as planned_fields
from autotune.exporting.planned import write_planned_library
from autotune.trial import Resources
from tests.exports import CHUNKED, KERNELS
from tests.host.host_driver import OnHostDriver, device_array, host_driver

pytestmark = pytest.mark.cxx

Array = npt.NDArray[np.generic]
DTYPES = {"f16": "float16", "f32": "float32"}


@pytest.fixture(scope="module")
def on_cpu(built: Built) -> Iterator[OnHostDriver]:
    with host_driver(built) as run:
        yield run


@pytest.fixture(scope="module")
def planned(exported: Exported, built: Built, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a library with the same kernels."""
    folder = tmp_path_factory.mktemp("planned")
    kernels = []
    for kernel in exported.served:
        image = (built.folder / f"{kernel.stem}.fatbin").read_bytes()
        binary = Binary(Target("host"), image, Resources(), "", kernel.source.program.entries)
        kernels.append((kernel, planned_fields(kernel), binary))
    write_planned_library(kernels, folder)
    return str(folder / "libconv2d.json")


def arrays_of(library: Library, problem: DeclaredProblem, seed: int) -> dict[str, Array]:
    """Normal inputs, and outputs of NaN."""
    random, arrays = np.random.default_rng(seed), {}
    for array in library.array_shapes(problem):
        values = random.standard_normal(array.shape) if array.role != "out" else np.full(array.shape, np.nan)
        arrays[array.name] = device_array(values.astype(DTYPES[array.dtype])).array
    return arrays


def addresses(arrays: Mapping[str, Array]) -> dict[str, int]:
    return {name: int(array.ctypes.data) for name, array in arrays.items()}


def outputs(path: str, values: Mapping[str, int | str]) -> list[bytes]:
    """The outputs of a kernel for two numbers of images: of a handle in a thread without a context, twice with other
    arrays, and of a pass without a handle.
    """
    library, found = load(path), []
    for n in (1, 3):
        problem = library.interface.problem({**values, "n": n})
        workspace = device_array(np.empty(library.workspace_bytes(problem) + 1, np.uint8)).array
        arrays = [arrays_of(library, problem, seed) for seed in range(3)]
        handle = Handle(library, problem, addresses(arrays[0]))
        enqueue = handle.enqueuer(n)
        for each in arrays[:2]:
            given = [addresses(each).get(array.name, 0) for array in library.interface.arrays]
            thread = threading.Thread(target=enqueue, args=(0, workspace.ctypes.data, given))
            thread.start()
            thread.join()
        library.forward(problem, addresses(arrays[2]), workspace.ctypes.data, workspace.nbytes)
        found += [each["y"].tobytes() for each in arrays]
        handle.release()
    return found


def both(in_cpp: str, planned: str, values: Mapping[str, int | str]) -> tuple[list[bytes], list[bytes]]:
    return outputs(in_cpp, values), outputs(planned, values)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.origin.layer)
def test_both_libraries_compute_the_same_bits(kernel: SelectedKernel, planned: str, on_cpu: OnHostDriver) -> None:
    expected, found = on_cpu(both, planned, dict(kernel.problem.values))
    assert found == expected
    assert len({*found}) == len(found), "each pass has inputs of its own"


def described(path: str, values: Mapping[str, int | str]) -> list[object]:
    """What a library says of a problem: its kernel, workspace and arrays, or why it has no kernel."""
    library = load(path)
    problem = library.interface.problem(values)
    found: list[object] = []
    for call in (library.kernel_name, library.workspace_bytes, library.array_shapes):
        try:
            found.append(call(problem))
        except (LibraryError, ValueError) as error:
            found.append(error.status if isinstance(error, LibraryError) else str(error))
    return found


def descriptions(in_cpp: str, planned: str, values: Mapping[str, int | str]) -> list[list[object]]:
    return [described(path, values) for path in (in_cpp, planned)]


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"n": 40}, id="the kernel of few images"),
        pytest.param({"n": 250}, id="the kernel of many images"),
        pytest.param({"n": 0}, id="no images"),
        pytest.param({"n": 2**31 - 1}, id="more images than its rules admit"),
        pytest.param({"n": 2**31}, id="a size of more than 32 bits"),
        pytest.param({"k": 5}, id="no kernel"),
        pytest.param({"h": 1, "pad_h": 0}, id="an invalid problem"),
    ],
)
def test_both_libraries_say_the_same(changed: dict[str, int | str], planned: str, on_cpu: OnHostDriver) -> None:
    expected, found = on_cpu(descriptions, planned, {**CHUNKED.problem.values, **changed})
    assert found == expected


def status_without_a_context(_: str, planned: str) -> list[Status]:
    library, found = load(planned), []

    def ask() -> None:
        try:
            library.workspace_bytes(library.kernels()[0].problem)
        except LibraryError as error:
            found.append(error.status)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found


def test_a_thread_without_a_context_has_no_kernels(planned: str, on_cpu: OnHostDriver) -> None:
    assert on_cpu(status_without_a_context, planned) == [Status.NO_CONTEXT]
