"""Ctrl-C in a run that measures: the first asks for an orderly end, the second ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def orderly_interrupts(on_first: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Yields whether Ctrl-C was pressed; the second one does what Ctrl-C did before.

    Outside the main thread, where Python hears no signal, Ctrl-C stays as it is; so it does where it is ignored.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        yield lambda: False
        return
    asked: list[int] = []
    previous = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if asked and callable(previous):
            previous(number, frame)
        asked.append(number)
        on_first()

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, previous)
