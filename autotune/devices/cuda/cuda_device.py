"""One GPU as a `Device`: memory, copies, launches, and timing with events, optionally with a cold L2 cache."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pycuda.driver as driver

from autotune.compilation.compile import NVCC_FLAGS, Binary
from autotune.compilation.toolchain import compiler_version, find_nvcc
from autotune.devices.cuda.cuda_module import CudaModule, SmClocks, Streams, rejecting
from autotune.devices.cuda.nvml import Sensors
from autotune.devices.device import (
    Baseline,
    DeviceInfo,
    Environment,
    Health,
    HostArray,
    Launch,
    Passes,
    Sample,
    Variation,
)
from autotune.devices.driver_api import device_info
from autotune.devices.graphs import record
from autotune.errors import DeviceError, Rejected
from autotune.problem import Problem
from autotune.trial import LONG_US, Outcome

_FLUSH_L2_SIZES = 4  # multiple of the L2 size written before a cold sample; long enough to hide the next launch
_SPIN_CLOCKS = 200_000  # about 100 us, longer than Python takes to enqueue a pass or a graph
_PROBE = Path(__file__).parent / "probe.ptx"


class CudaDevice:
    """A GPU. Its primary context is shared with the process's other libraries."""

    def __init__(self, number: int) -> None:
        try:
            driver.init()
            count = driver.Device.count()
        except driver.Error as error:
            raise DeviceError(f"cuda:{number}: the NVIDIA driver does not answer: {error}") from None
        if number >= count:
            raise DeviceError(f"cuda:{number}: this machine has {count} CUDA device(s), cuda:0 to cuda:{count - 1}")
        self._number = number
        self._device = driver.Device(number)
        self._context = self._device.retain_primary_context()
        self._context.push()
        self._info = device_info(number)
        self._allocations: dict[int, driver.DeviceAllocation] = {}
        self._flush_bytes = max(_FLUSH_L2_SIZES * self._info.l2_bytes, 64 << 20)
        self._flush = driver.mem_alloc(self._flush_bytes)
        self._flushes = 0
        self._start, self._end = driver.Event(), driver.Event()
        self._streams = Streams()
        self._probe = CudaModule(_PROBE.read_bytes() + b"\0", self._streams)
        self._clocks = SmClocks(self._probe, self._info.sm_count)
        self._sensors = Sensors(self._device.pci_bus_id())

    @property
    def info(self) -> DeviceInfo:
        """The GPU's identity and limits, from the driver."""
        return self._info

    @property
    def environment(self) -> Environment:
        """The driver, nvcc and the compiler flags."""
        version = driver.get_driver_version()
        return Environment(
            driver=_driver_name() or f"CUDA {version // 1000}.{version % 1000 // 10}",
            toolkit=compiler_version(find_nvcc()),
            flags=" ".join(NVCC_FLAGS),
            attributes={
                "pci_bus": self._device.pci_bus_id(),
                "sm_clock_mhz": str(self._device.clock_rate // 1000),
                "pycuda": importlib.metadata.version("pycuda"),
                "host": platform.node(),
            },
        )

    def admit(self, problem: Problem) -> None:
        """Accept any layer."""

    def allocate(self, size_bytes: int) -> int:
        """Allocate device memory."""
        try:
            allocation = driver.mem_alloc(max(size_bytes, 1))
        except driver.Error as error:
            raise Rejected(Outcome.RUNTIME, "out_of_memory", f"{size_bytes} bytes: {error}") from None
        self._allocations[int(allocation)] = allocation
        return int(allocation)

    def free(self, address: int) -> None:
        """Free memory from `allocate`."""
        self._allocations.pop(address).free()

    def write(self, address: int, content: bytes) -> None:
        """Copy bytes to the device."""
        with rejecting():
            driver.memcpy_htod(address, np.frombuffer(content, dtype=np.uint8))

    def read(self, address: int, size_bytes: int) -> bytes:
        """Copy bytes from the device."""
        content = np.empty(size_bytes, dtype=np.uint8)
        with rejecting():
            driver.memcpy_dtoh(content, address)
        return content.tobytes()

    def fill(self, address: int, byte: int, size_bytes: int) -> None:
        """Set every byte of a range of memory."""
        with rejecting():
            driver.memset_d8(address, byte, size_bytes)

    def copy(self, to: int, source: int, size_bytes: int) -> None:
        """Copy from device memory to device memory."""
        with rejecting():
            driver.memcpy_dtod(to, source, size_bytes)

    def allocate_host(self, size_bytes: int, *, pinned: bool) -> HostArray:
        """Allocate page-locked memory through the driver, or ordinary memory."""
        if not pinned:
            return np.empty(size_bytes, np.uint8)
        try:
            return driver.pagelocked_empty((size_bytes,), np.uint8)
        except driver.Error as error:
            raise Rejected(Outcome.RUNTIME, "out_of_memory", f"{size_bytes} bytes of host memory: {error}") from None

    def copy_in(self, to: int, source: HostArray, *, stream: int) -> None:
        """Enqueue a copy. With pageable memory, the driver returns once it has staged the last part."""
        with rejecting():
            driver.memcpy_htod_async(to, source, self._streams[stream])

    def copy_out(self, to: HostArray, source: int, *, stream: int) -> None:
        """Enqueue a copy. With pageable memory, the driver returns once the copy is complete."""
        with rejecting():
            driver.memcpy_dtoh_async(to, source, self._streams[stream])

    def load(self, binary: Binary) -> CudaModule:
        """Load a cubin."""
        with rejecting():
            return CudaModule(binary.image, self._streams)

    def hide(self, address: int, size_bytes: int) -> bool:  # noqa: ARG002 - nothing watches them
        """Return False, because a GPU can't watch memory."""
        return False

    def watch(self, address: int, size_bytes: int, *, poisoned: bool = False) -> None:
        """Do nothing, because on a GPU, compute-sanitizer's tools detect such accesses."""

    def varied(self, how: Variation) -> AbstractContextManager[bool]:  # noqa: ARG002 - the hardware decides
        """Yield False, because a GPU can't vary launches."""
        return nullcontext(enter_result=False)

    def synchronize(self) -> None:
        """Wait for all work. Raises any earlier kernel's error."""
        with rejecting():
            driver.Context.synchronize()

    @property
    def stream_handle(self) -> int:
        """The address of stream 0, which is 0 for the default stream."""
        return self._streams.default_handle

    @property
    def short_us(self) -> float:
        """For longer passes, a graph's gain (1 to 3 us per launch) is lost in the noise."""
        return LONG_US

    def record(self, passes: Sequence[Callable[[], None]]) -> Passes:
        """Record the passes as one CUDA graph."""
        each = tuple(passes)

        def enqueue() -> None:
            for run in each:
                run()

        enqueue()  # a kernel's first launch loads its code, which a capture does not allow
        self.synchronize()
        with rejecting(), self._streams.recording() as stream:
            graph = record(stream, enqueue)

        def launch() -> None:
            with rejecting():
                graph.launch()

        return Passes(launch, len(each), launch="graph", close=graph.close)

    def time(self, passes: Passes, *, cold: bool) -> Sample:
        """Time the passes with events. The passes are queued while the device is busy before the first event.

        With `cold`, the device is busy overwriting the L2 cache. For several passes or hot ones, a spinning kernel also
        gives Python the time to queue them.
        """
        with rejecting():
            if cold:
                self._flushes += 1
                driver.memset_d8_async(int(self._flush), self._flushes % 251, self._flush_bytes)
            if passes.count > 1 or not cold:
                self._spin(_SPIN_CLOCKS)
            self._clocks.begin()
            self._start.record()
            passes.enqueue()
            self._end.record()
            self._clocks.end()
            self._end.synchronize()
            us = 1000.0 * float(self._end.time_since(self._start)) / passes.count
            return Sample(us, self._clocks.read_mhz())

    def _spin(self, clocks: int) -> None:
        self._probe.launch(Launch("spin", (1, 1, 1), (1, 1, 1), 0, (np.uint64(clocks),)))

    def health(self) -> Health:
        """Return power and temperature from NVML, if its bindings are installed."""
        return self._sensors.read()

    def busy_percent(self) -> int | None:
        """Return the utilization from NVML, or None if its bindings aren't installed."""
        return self._sensors.busy_percent()

    def baselines(
        self, baselines: Sequence[Baseline], problem: Problem, *, passes: int, cold: bool
    ) -> tuple[Passes | str, ...]:
        """Record passes of PyTorch's operators in this device's primary context."""
        if not baselines:
            return ()
        from autotune.devices.torch_baseline import record_baselines

        return record_baselines(baselines, problem, self._number, passes, cold=cold)

    def matrix_product(self, dtype: str, size: int) -> Callable[[], None]:
        """Return a function that enqueues PyTorch's matrix product (cuBLAS) in this device's primary context."""
        from autotune.devices.torch_baseline import cublas_runner

        return cublas_runner(dtype, size, self._number)

    def close(self) -> None:
        """Leave the primary context, because PyCUDA aborts at exit if a context is still on its stack."""
        self._streams.close()
        self._context.pop()


def _driver_name() -> str:
    """Return the driver's version from /proc/driver/nvidia, such as 580.159.03, or "" if it is unknown."""
    path = Path("/proc/driver/nvidia/version")
    fields = path.read_text().split("Kernel Module")[-1].split() if path.is_file() else []
    return next((field for field in fields if field[0].isdigit()), "")
