"""The threads of numpy's linear algebra during a search."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController


@contextmanager
def single_threaded() -> Iterator[None]:
    """Keep numpy's linear algebra on one thread; enter it once for a whole run.

    The compilers use the cores, and the matrices of a search are small: with two threads, next to other work, a
    proposal took six times as long. It is not switched for each proposal, because OpenBLAS's threads spin for
    milliseconds whenever they wake up. A fixed order of sums also gives the same proposals on every machine.
    """
    with ThreadpoolController().limit(limits=1, user_api="blas"):
        yield
