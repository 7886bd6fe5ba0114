"""One host device, and one exported library built for it, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.compilation.toolchain import find_cxx
from autotune.devices.host import HostDevice
from autotune.errors import ToolchainError
from autotune.exporting import Exported, export_library
from autotune.exporting.build import Built, build_for_host
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
    device = HostDevice(cxx)
    yield device
    device.close()


@pytest.fixture(scope="session")
def bench(device: HostDevice, cxx: str) -> Bench:
    """It, to run kernels on."""
    return Bench(device, cxx)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A library of four kernels; not to be written to."""
    return export_library(KERNELS, tmp_path_factory.mktemp("exported"), ())


@pytest.fixture(scope="session")
def built(exported: Exported, cxx: str, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """It, on the CPU."""
    return build_for_host(exported, tmp_path_factory.mktemp("built"), cxx=Path(cxx))
