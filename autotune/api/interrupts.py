"""Handle Ctrl-C in a run that measures: the first asks for an orderly end, the second ends the run at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def orderly_interrupts(on_first: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed; a second Ctrl-C has its normal effect.

    Python handles signals only in the main thread, so in other threads Ctrl-C keeps its normal effect. If SIGINT was
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
