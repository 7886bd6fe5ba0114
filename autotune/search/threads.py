"""Limit the number of threads that numpy's linear algebra uses during a search."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController


@contextmanager
def single_threaded() -> Iterator[None]:
    """Keep numpy's linear algebra on one thread within the block. Use one block for a whole run.

    The compilers use the cores, and a search's matrices are small: with two threads, while other processes were
    running, a proposal took six times as long. The limit isn't set for each proposal, because OpenBLAS's threads spin
    for milliseconds whenever they wake up. With one thread, sums have a fixed order, so proposals are the same on every
    machine.
    """
    with ThreadpoolController().limit(limits=1, user_api="blas"):
        yield
