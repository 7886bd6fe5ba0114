"""Limit the threads of numpy's linear algebra during a search."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController


@contextmanager
def single_threaded() -> Iterator[None]:
    """Keep numpy's linear algebra on one thread within the block; use one block for a whole run.

    The compilers use the cores, and the matrices of a search are small: with two threads, while other processes ran, a
    proposal took six times as long. The limit is not set for each proposal, because OpenBLAS's threads spin for
    milliseconds whenever they wake up. With one thread the order of sums is fixed, so that proposals are the same on
    every machine.
    """
    with ThreadpoolController().limit(limits=1, user_api="blas"):
        yield
