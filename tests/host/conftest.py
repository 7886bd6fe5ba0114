"""One host device, and one exported library built for it, for all tests of this folder."""

from __future__ import annotations

import fcntl
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.compilation.toolchain import find_cxx
from autotune.devices.host import HostDevice
from autotune.errors import ToolchainError
from autotune.exporting import Exported, export_library
from autotune.exporting.build import Built
from tests.compiled import built_for_host, host_device
from tests.exports import KERNELS

from .kernels import Bench


@pytest.fixture(scope="session")
def cxx() -> str:
    """The C++ compiler."""
    try:
        return str(find_cxx())
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def device(cxx: str) -> Iterator[HostDevice]:
    """The host device in this process."""
    device = host_device(cxx)
    yield device
    device.close()


@pytest.fixture(scope="session")
def bench(device: HostDevice, cxx: str) -> Bench:
    """The host device, to run kernels on."""
    return Bench(device, cxx)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A library of four kernels; tests must not write to it."""
    return export_library(KERNELS, tmp_path_factory.mktemp("exported"), ())


@pytest.fixture(scope="session")
def built(exported: Exported, cxx: str, run_folder: Path) -> Built:
    """The library for the CPU; the first pytest worker that needs it builds it."""
    folder, kept = run_folder / "built", run_folder / "built.pickle"
    with open(run_folder / "built.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.is_file():
            kept.write_bytes(pickle.dumps(built_for_host(exported, folder, cxx=cxx)))
    found: Built = pickle.loads(kept.read_bytes())
    return found
