"""Power and temperature of a GPU, where NVML's bindings are installed."""

from __future__ import annotations

from contextlib import suppress

from autotune.devices.device import Health

try:
    import pynvml
except ImportError:
    pynvml = None


class Sensors:
    """Power and temperature of a GPU from NVML."""

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
