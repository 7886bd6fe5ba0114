"""The time that a check takes, measured so that a busy machine counts little more than an idle one."""

from __future__ import annotations

import time
from collections.abc import Callable


class Stopwatch:
    """Seconds since it was started: of CPU time, or of the clock if several cores worked."""

    def __init__(self, cpu: Callable[[], float]) -> None:
        self._cpu = cpu
        self._begun = time.monotonic(), cpu()

    @property
    def seconds(self) -> float:
        """The lesser of the two times."""
        began, used = self._begun
        return max(0.0, min(time.monotonic() - began, self._cpu() - used))  # a worker that was replaced used less
