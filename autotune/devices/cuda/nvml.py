"""Power, temperature and utilization of a GPU from NVML, if its bindings are installed."""

from __future__ import annotations

import time
from contextlib import suppress

from autotune.devices.device import SHARED_PERCENT, Health

try:
    import pynvml
except ImportError:
    pynvml = None


_PERIOD_S = 1.0
"""The period of NVML's utilization is at most a second."""


class Sensors:
    """Power, temperature and utilization of a GPU from NVML."""

    def __init__(self, pci_bus_id: str) -> None:
        self._handle: object = None
        if pynvml is not None:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())

    def read(self) -> Health:
        """The current values; None for each sensor that does not exist."""
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
        """The share of the last second in which kernels of any process ran on the GPU; None if NVML does not know.

        Kernels that have just ended do not count: if the GPU is not idle, the value is read again a second later.
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
