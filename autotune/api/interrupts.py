"""Handle Ctrl-C while measuring. The first one asks for an orderly end, and the second one ends the run immediately."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def orderly_interrupts(on_first: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed. A second Ctrl-C has its usual effect.

    Python handles signals only in the main thread, so Ctrl-C has its usual effect in all other threads. If SIGINT was
    ignored, it stays ignored.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        yield lambda: False
        return
    signals: list[int] = []
    previous = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if signals and callable(previous):
            previous(number, frame)
        signals.append(number)
        on_first()

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: bool(signals)
    finally:
        signal.signal(signal.SIGINT, previous)
