"""Linear algebra on one thread while a search runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController


@contextmanager
def single_threaded() -> Iterator[None]:
    """Keep numpy's linear algebra on one thread; to be entered once for a whole run.

    The compilers have the cores, and a search's matrices are small: on two threads beside other work a proposal took
    six times as long. It is not changed for each proposal, since OpenBLAS's threads spin for milliseconds whenever they
    are woken. And sums in one order make the same proposals on every machine.
    """
    with ThreadpoolController().limit(limits=1, user_api="blas"):
        yield
