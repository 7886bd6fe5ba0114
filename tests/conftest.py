"""What a test needs of the machine (`gpu`, `nvcc`, `cxx`: resolved here alone); shared devices; golden files."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from autotune.__main__ import COLLECTED_AFTER
from autotune.api.device_names import binary_cache
from autotune.compilation.toolchain import find_cxx, find_nvcc
from autotune.errors import ToolchainError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.search import single_threaded
from tests.fork_server import ForkServer


def _no_gpu() -> str:
    """Why no CUDA device can be used here; empty when one can."""
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


def _no_nvcc() -> str:
    try:
        find_nvcc()
    except ToolchainError as error:
        return str(error)
    return ""


def _no_cxx() -> str:
    try:
        find_cxx()
    except ToolchainError as error:
        return str(error)
    return ""


_WHY_NOT: Mapping[str, Callable[[], str]] = {"gpu": _no_gpu, "nvcc": _no_nvcc, "cxx": _no_cxx}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files anew")


def pytest_configure() -> None:
    """In the background of a script (`pytest &`) Ctrl-C is ignored, and by all that tests start: here it is heeded."""
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
    """What was imported and collected stays: nobody looks for garbage in it after each few hundred objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--update-golden", default=False))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Linear algebra keeps to one thread, as in a run: on two, each process's threads spin on the other's core."""
    with single_threaded():
        yield


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one run of the tests, which all of its workers have."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session", autouse=True)
def binaries(run_folder: Path) -> Iterator[None]:
    """Compiled programs are kept for one run of the tests, by all of its workers, and not in the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(run_folder / "cache"))
        if "PYTHONDONTWRITEBYTECODE" in os.environ:  # else each of hundreds of processes compiles every module
            patch.delenv("PYTHONDONTWRITEBYTECODE")
            patch.setenv("PYTHONPYCACHEPREFIX", str(run_folder / "bytecode"))
        yield


@pytest.fixture(scope="session")
def fork_server(binaries: None) -> Iterator[ForkServer]:
    """Where runs of `autotune` as processes of their own come from."""
    opened = ForkServer()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def host(binaries: None) -> Iterator[DeviceEvaluator]:
    """The host device; all tests share compiled programs, verification's above all, through a cache."""
    evaluator = DeviceEvaluator(["host"], 2, cache=binary_cache())
    yield evaluator
    evaluator.close()
