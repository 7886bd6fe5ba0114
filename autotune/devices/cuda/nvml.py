"""What NVML tells of a GPU, where its bindings are installed: power, temperature, and whether others use it."""

from __future__ import annotations

import time
from contextlib import suppress

from autotune.devices.device import SHARED_PERCENT, Health

try:
    import pynvml
except ImportError:
    pynvml = None


_PERIOD_S = 1.0
"""longer than what NVML's utilization is the mean of (at most a second)"""


class Sensors:
    """Power, temperature and utilization of a GPU from NVML."""

    def __init__(self, pci_bus_id: str) -> None:
        self._handle: object = None
        if pynvml is not None:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())

    def read(self) -> Health:
        """What the sensors say now; nothing where there are none."""
        if self._handle is None:
            return Health()
        try:
            return Health(
                power_w=pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1000,
                temperature_c=float(pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU)),
            )
        except pynvml.NVMLError:
            return Health()

    def busy_percent(self) -> int | None:
        """In how much of the last second kernels ran on the GPU, whoever's; None where NVML does not tell.

        What has just ended does not count: a GPU that is not idle is looked at once more, a second later.
        """
        first = self._utilization()
        if first is None or first < SHARED_PERCENT:
            return first
        time.sleep(_PERIOD_S)
        again = self._utilization()
        return first if again is None else min(first, again)

    def _utilization(self) -> int | None:
        if self._handle is None:
            return None
        try:
            return int(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        except pynvml.NVMLError:
            return None
