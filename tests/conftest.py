"""What a test needs from the machine (the markers `gpu`, `nvcc`, `nvrtc`, `cxx`), shared devices and golden files."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from autotune.__main__ import COLLECTED_AFTER
from autotune.api.device_names import binary_cache
from autotune.compilation.nvrtc import find_nvrtc
from autotune.compilation.toolchain import find_cxx, find_nvcc
from autotune.errors import ToolchainError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.search.threads import single_threaded
from autotune.workers.device_worker import Deadlines
from tests.fork_server import ForkServer

LONG = Deadlines(evaluate_s=200.0, compile_s=200.0)
"""Nothing hangs in the shared evaluators, and a busy machine may take many times as long as an idle one."""


def _no_gpu() -> str:
    """Why no CUDA device can be used here; empty if one can."""
    if importlib.util.find_spec("pycuda") is None:
        return "pycuda is not installed"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1)"
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return "the NVIDIA driver does not start"
    return "" if count.value else "no CUDA device"


def _missing(find: Callable[[], object]) -> str:
    """Why a tool is not found; empty if it is."""
    try:
        find()
    except ToolchainError as error:
        return str(error)
    return ""


_WHY_NOT: Mapping[str, Callable[[], str]] = {
    "gpu": _no_gpu,
    "nvcc": partial(_missing, find_nvcc),
    "nvrtc": partial(_missing, find_nvrtc),
    "cxx": partial(_missing, find_cxx),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files anew")


def pytest_configure() -> None:
    """Restore Ctrl-C. Tests in the background of a script (`pytest &`), and processes that they start, ignore it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot do, with the reason."""
    for marker, why_not in _WHY_NOT.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and (reason := why_not()):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Exclude imported modules and collected tests from garbage collection, because they live until the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--update-golden", default=False))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread for linear algebra, as in a run: with two, a process's threads spin on the other's core."""
    with single_threaded():
        yield


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of one test run share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session", autouse=True)
def binaries(run_folder: Path) -> Iterator[None]:
    """Cache compiled programs for one test run and all of its workers, not in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(run_folder / "cache"))
        if "PYTHONDONTWRITEBYTECODE" in os.environ:  # otherwise each of hundreds of processes compiles every module
            patch.delenv("PYTHONDONTWRITEBYTECODE")
            patch.setenv("PYTHONPYCACHEPREFIX", str(run_folder / "bytecode"))
        yield


@pytest.fixture(scope="session")
def fork_server(binaries: None) -> Iterator[ForkServer]:
    """The server that starts `autotune` in separate processes."""
    opened = ForkServer()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def host(binaries: None) -> Iterator[DeviceEvaluator]:
    """The host device; a cache shares compiled programs, mainly those of verification, among all tests."""
    evaluator = DeviceEvaluator(["host"], 2, cache=binary_cache(), deadlines=LONG)
    yield evaluator
    evaluator.close()


@pytest.fixture(scope="session")
def checked(binaries: None) -> Iterator[DeviceEvaluator]:
    """The host device with sanitizers; the configs share the verification programs through a cache."""
    evaluator = DeviceEvaluator(["host:check"], 1, cache=binary_cache(), deadlines=LONG)
    yield evaluator
    evaluator.close()
