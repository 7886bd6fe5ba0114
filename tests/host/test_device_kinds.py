"""Another kind of device, as a subclass of the host's: it runs programs for its own kind only."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.compilation.compile import Program, Target
from autotune.devices.device import Launch
from autotune.devices.host import HostDevice
from autotune.devices.host_compile import runtime_program
from autotune.errors import DeviceError
from tests.compiled import compiled

pytestmark = pytest.mark.cxx

TEXT = 'extern "C" __global__ void seven(float* y) { y[threadIdx.x] = 7; }'


class SimulatedDevice(HostDevice):
    """The CPU under another name."""

    kind = "simulated"


@pytest.fixture
def device(cxx: str) -> SimulatedDevice:
    return SimulatedDevice(cxx, None, compiled(runtime_program(), cxx=cxx))


def test_a_device_runs_what_was_compiled_for_its_kind(device: SimulatedDevice, cxx: str) -> None:
    module = device.load(compiled(Program(TEXT, ("seven",)), Target("simulated"), cxx=cxx))
    y = device.allocate(16)
    module.launch(Launch("seven", (1, 1, 1), (4, 1, 1), 0, (np.uint64(y),)))
    device.synchronize()
    np.testing.assert_array_equal(np.frombuffer(device.read(y, 16), np.float32), 7)
    module.unload()
    device.close()
    assert (device.info.kind, device.info.can.gpu) == ("simulated", False)


def test_a_device_refuses_a_program_for_another_kind(device: SimulatedDevice, cxx: str) -> None:
    with pytest.raises(DeviceError, match="a program for host does not run on the simulated device"):
        device.load(compiled(Program(TEXT, ("seven",)), cxx=cxx))
