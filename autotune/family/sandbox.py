"""Limit the time and memory of rendering a template's text and of listing its configs."""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from autotune.errors import TemplateError

RENDER_S = 1.0  # of CPU time; the largest family of this project takes about 0.01 s
SPACE_S = 30.0  # of CPU time; the largest family of this project takes about 3 s
MOST_BYTES = 1 << 29  # by which the process may grow
_LOOK_S = 0.05  # of CPU time between two checks


@contextmanager
def limited(path: Path, what: str, seconds: float) -> Iterator[None]:
    """Raise TemplateError, which names the template, if the block takes too much CPU time or memory.

    The limit protects against mistakes, not against attackers. Python handles signals only in its main thread; in other
    threads, and inside another limit, nothing is limited.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_PROF)[0]:
        yield
        return
    until, most = time.process_time() + seconds, _memory_bytes() + MOST_BYTES

    def look(_number: int, _frame: FrameType | None) -> None:
        if time.process_time() > until:
            raise TemplateError(f"{path}: {what} takes more than {seconds:g} s")
        if _memory_bytes() > most:
            raise TemplateError(f"{path}: {what} takes more than {MOST_BYTES >> 20} MiB of memory")

    previous = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, _LOOK_S, _LOOK_S)
    try:
        yield
    except MemoryError:
        raise TemplateError(f"{path}: {what} takes more memory than there is") from None
    except RecursionError:
        raise TemplateError(f"{path}: {what} recurses too deeply") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def _memory_bytes() -> int:
    """The memory of this process; 0 if it is unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
