"""A GPU's power, temperature and utilization from NVML, if its Python bindings are installed."""

from __future__ import annotations

import time
from contextlib import suppress

from autotune.devices.device import SHARED_PERCENT, Health

try:
    import pynvml
except ImportError:
    pynvml = None


_PERIOD_S = 1.0
"""Maximum period over which NVML averages the utilization."""


class Sensors:
    """A GPU's power, temperature and utilization from NVML."""

    def __init__(self, pci_bus_id: str) -> None:
        self._handle: object = None
        if pynvml is not None:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())

    def read(self) -> Health:
        """Return the current values, with None for a sensor that can't be read."""
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
        """Return the percentage of the last second in which kernels of any process ran, or None if unknown.

        If the GPU isn't idle, the value is read again a second later, so that kernels that have just ended don't count.
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
