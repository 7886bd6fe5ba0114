"""One host device for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune.devices.host import HostDevice
from autotune.errors import ToolchainError
from autotune.toolchain import find_cxx

from .kernels import Bench


@pytest.fixture(scope="session")
def cxx() -> str:
    """The C++ compiler."""
    try:
        return str(find_cxx())
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def bench(cxx: str) -> Iterator[Bench]:
    """A device to run kernels on."""
    device = HostDevice(cxx)
    yield Bench(device, cxx)
    device.close()
