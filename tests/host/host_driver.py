"""A process whose CUDA driver is the host device, so that an exported library runs on the CPU, called from Python."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from autotune.devices.host_compile import DRIVER_NAME, RUNTIME_NAME
from autotune.exporting.build import Built

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
Array = npt.NDArray[np.float32]
IMPORTED = ["tests.exports", "tests.torch_backends", "tests.torch_training"]
"""Modules that the forked processes share: PyTorch and its compiler take 5 s to import. Without PyTorch, its modules
are left out.
"""


class OnHostDriver:
    """Runs functions of a module in the process, each with the library's path as its first argument."""

    def __init__(self, pool: ProcessPoolExecutor, library: str) -> None:
        self._pool = pool
        self._library = library

    def __call__(
        self, function: Callable[Concatenate[str, Given], Answer], *args: Given.args, **kwargs: Given.kwargs
    ) -> Answer:
        """Return the function's result, or raise its exception."""
        return self._pool.submit(function, self._library, *args, **kwargs).result(timeout=300)


@contextmanager
def host_driver(built: Built) -> Iterator[OnHostDriver]:
    """Start a process for a library that was built for the host.

    Its working directory is empty: a results database in the current one would change which kernels are chosen.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    environment = {**os.environ, **built.environment}
    with (
        tempfile.TemporaryDirectory() as empty,
        ProcessPoolExecutor(1, context, _begin, (environment, built.folder, empty)) as pool,
    ):
        yield OnHostDriver(pool, str(built.library))


def _begin(environment: Mapping[str, str], folder: Path, working_directory: str) -> None:
    """Load the host device's driver under the name that the exported library looks for."""
    os.environ.update(environment)
    os.chdir(working_directory)
    for name in (RUNTIME_NAME, DRIVER_NAME):
        ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    make_context_current()


def make_context_current() -> None:
    """Give the calling thread the host device's context, as the CUDA runtime does for its callers."""
    driver, context = ctypes.CDLL(DRIVER_NAME), ctypes.c_void_p()
    assert not driver.cuInit(0)
    assert not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    assert not driver.cuCtxSetCurrent(context)


class DeviceArray:
    """A NumPy array as an array on a GPU."""

    def __init__(self, array: npt.NDArray[np.generic]) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        held = self.array.__array_interface__
        return {**held, "version": 3, "strides": None if self.array.flags.c_contiguous else self.array.strides}


def device_array(array: npt.NDArray[np.generic]) -> DeviceArray:
    """A copy at an address that the library takes."""
    room = np.empty(array.nbytes + 64, np.uint8)
    begin = -room.ctypes.data % 64
    placed = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    placed[...] = array
    return DeviceArray(placed)
