"""Load a cubin into the current context, launch kernels on streams, translate driver errors, and measure clocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pycuda.driver as driver

from autotune.autotune_runtime.driver import DriverError
from autotune.devices.device import Launch
from autotune.devices.driver_launch import DriverModule
from autotune.devices.tensor_map import BoundTensorMap
from autotune.errors import Rejected
from autotune.trial import Outcome

_STICKY = {
    "illegal memory access": "illegal_address",
    "misaligned address": "misaligned_address",
    "illegal instruction": "trap",
    "unspecified launch failure": "trap",
    "device-side assert": "assert",
    "too many resources requested": "launch_failure",
    "invalid argument": "launch_failure",
    "launch timed out": "hang",
    "out of memory": "out_of_memory",
}


@contextmanager
def rejecting() -> Iterator[None]:
    """Raise Rejected for a driver error, which may come from an earlier kernel."""
    try:
        yield
    except (driver.Error, DriverError) as error:
        raise rejected(error) from None


def rejected(error: Exception) -> Rejected:
    """Return a trial's rejection for a driver error."""
    message = str(error)
    reason = next((reason for phrase, reason in _STICKY.items() if phrase in message.lower()), "launch_failure")
    outcome = Outcome.TIMEOUT if reason == "hang" else Outcome.RUNTIME
    return Rejected(outcome, reason, message)


_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: a stream that does not wait for the default stream


class Streams:
    """Streams by number, created on first use. 0 is the default stream or, during a capture, a different one."""

    def __init__(self) -> None:
        self._made: dict[int, driver.Stream] = {}
        self._default: driver.Stream | None = None
        self._recording: driver.Stream | None = None

    @property
    def default_handle(self) -> int:
        """The address of stream 0."""
        return 0 if self._default is None else int(self._default.handle)

    @contextmanager
    def recording(self) -> Iterator[int]:
        """Replace stream 0 with a stream that can be captured, and yield its address."""
        if self._recording is None:
            self._recording = driver.Stream(_NON_BLOCKING)
        self._default = self._recording
        try:
            yield self.default_handle
        finally:
            self._default = None

    def __getitem__(self, number: int) -> driver.Stream | None:
        if number == 0:
            return self._default
        if number not in self._made:
            self._made[number] = driver.Stream()
        return self._made[number]

    def close(self) -> None:
        """Drop the streams while their context still exists."""
        self._made.clear()
        self._recording = None


class CudaModule:
    """A cubin loaded into the current context."""

    def __init__(self, image: bytes, streams: Streams) -> None:
        self._image = image
        self._module = driver.module_from_buffer(image)
        self._mapped: DriverModule | None = None
        """the cubin loaded a second time, for kernels that PyCUDA cannot launch"""
        self._streams = streams
        self._functions: dict[str, driver.Function] = {}

    def ready(self, launch: Launch) -> None:
        """Find the function and encode tensor maps."""
        with rejecting():
            if launch.early or any(isinstance(argument, BoundTensorMap) for argument in launch.args):
                self._by_driver().ready(launch)
            else:
                self._function(launch)

    def launch(self, launch: Launch, *, stream: int = 0) -> None:
        """Enqueue one kernel on a stream."""
        try:
            plain = [argument for argument in launch.args if not isinstance(argument, BoundTensorMap)]
            if launch.early or len(plain) < len(launch.args):
                on = self._streams[stream]
                self._by_driver().launch(launch, 0 if on is None else int(on.handle))
                return
            self._function(launch)(
                *plain,
                grid=launch.grid,
                block=launch.block,
                shared=launch.smem_bytes,
                stream=self._streams[stream],
            )
        except (driver.Error, DriverError) as error:
            raise rejected(error) from None

    def symbol(self, name: str) -> tuple[int, int]:
        """Return the address of a __constant__ or __device__ variable, and its size in bytes."""
        with rejecting():
            address, size_bytes = self._module.get_global(name)
        return int(address), int(size_bytes)

    def variables(self) -> Mapping[str, bytes]:
        """Return nothing, because the variables can't be listed."""
        return {}

    def unload(self) -> None:
        """Drop the module. PyCUDA unloads it once nothing refers to it."""
        self._functions.clear()
        if self._mapped is not None:
            self._mapped.unload()
        del self._module

    def _by_driver(self) -> DriverModule:
        if self._mapped is None:
            self._mapped = DriverModule(self._image)
        return self._mapped

    def _function(self, launch: Launch) -> driver.Function:
        function = self._functions.get(launch.entry)
        if function is None:
            function = self._module.get_function(launch.entry)
            if launch.smem_bytes:
                function.set_attribute(driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.smem_bytes)
            self._functions[launch.entry] = function
        return function


_LEAST_CLOCKED_NS = 50_000  # the nanosecond timer of some GPUs ticks once a microsecond


class SmClocks:
    """Measures the multiprocessors' mean clock from cycles and nanoseconds before and after a measurement."""

    def __init__(self, probe: CudaModule, sm_count: int) -> None:
        self._probe = probe
        self._notes = np.zeros((2, sm_count, 3), np.int64)
        self._memory = driver.mem_alloc(self._notes.nbytes)
        driver.memset_d8(int(self._memory), 0, self._notes.nbytes)
        self._serial = 0

    def begin(self) -> None:
        """Enqueue the first record."""
        self._serial += 1
        self._note(0)

    def end(self) -> None:
        """Enqueue the second record."""
        self._note(1)

    def _note(self, which: int) -> None:
        to = int(self._memory) + which * self._notes[0].nbytes
        blocks = (self._notes.shape[1], 1, 1)
        self._probe.launch(Launch("stamp", blocks, (1, 1, 1), 0, (np.uint64(to), np.uint64(self._serial))))

    def read_mhz(self) -> float | None:
        """Return the clock between the two records, or None if they are too close or no multiprocessor wrote both."""
        driver.memcpy_dtoh(self._notes, int(self._memory))
        before, after = self._notes
        same = (before[:, 2] == self._serial) & (after[:, 2] == self._serial)
        cycles, nanoseconds = (after - before)[same, 0], (after - before)[same, 1]
        if not same.any() or nanoseconds.max() < _LEAST_CLOCKED_NS:
            return None
        return round(float(np.median(1000.0 * cycles / nanoseconds)), 1)  # below the resolution of the timer
