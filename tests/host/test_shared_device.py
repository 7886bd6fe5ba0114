"""A device that other programs use: `tune` asks once, when it opens the device, and not when a worker is replaced."""

from __future__ import annotations

import time

import pytest

from autotune.compilation.compile import Binary
from autotune.compilation.toolchain import find_cxx
from autotune.devices.device import BUSY_PERCENT
from autotune.devices.host import HostDevice
from autotune.workers.device_server import WorkerServer
from autotune.workers.worker import Opened, OpenRequest

pytestmark = pytest.mark.cxx


class SharedHost(HostDevice):
    """The host as a device that reports how busy other programs keep it."""

    def busy_percent(self) -> int:
        """A large share."""
        return 87


def shared_host(_name: str, runtime: Binary | None) -> SharedHost:
    """The signature of `open_device`."""
    return SharedHost(str(find_cxx()), runtime=runtime)


@pytest.mark.parametrize(("first", "busy"), [(True, "87"), (False, None)])
def test_only_who_opens_a_device_first_is_told(first: bool, busy: str | None) -> None:
    opened = WorkerServer(time.perf_counter, shared_host).answer(OpenRequest("host", first=first))
    assert isinstance(opened, Opened)
    assert opened.environment.attributes.get(BUSY_PERCENT) == busy
