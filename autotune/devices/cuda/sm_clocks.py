"""The clock of a GPU's multiprocessors during a measurement."""

from __future__ import annotations

import numpy as np
import pycuda.driver as driver

from autotune.devices.cuda.cuda_module import CudaModule
from autotune.devices.device import Launch

_LEAST_CLOCKED_NS = 50_000  # the nanosecond timer of some GPUs ticks once a microsecond


class SmClocks:
    """Measures the mean clock: cycles and nanoseconds are recorded before and after the measurement."""

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
        """The mean clock between the two records; None if the time was too short, or no multiprocessor made both."""
        driver.memcpy_dtoh(self._notes, int(self._memory))
        before, after = self._notes
        same = (before[:, 2] == self._serial) & (after[:, 2] == self._serial)
        cycles, nanoseconds = (after - before)[same, 0], (after - before)[same, 1]
        if not same.any() or nanoseconds.max() < _LEAST_CLOCKED_NS:
            return None
        return round(float(np.median(1000.0 * cycles / nanoseconds)), 1)  # below the resolution of the timer
