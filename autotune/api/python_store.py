"""The results database for Python programs."""

from __future__ import annotations

from pathlib import Path

from autotune import store
from autotune.api.terms import in_arguments
from autotune.store.sqlite.database import LOCK_TIMEOUT_S, Clock, utc_now


class Store(store.Store):
    __doc__ = store.Store.__doc__

    @in_arguments
    def __init__(
        self, url: str | Path, *, create: bool = True, timeout_s: float = LOCK_TIMEOUT_S, clock: Clock = utc_now
    ) -> None:
        super().__init__(url, create=create, timeout_s=timeout_s, clock=clock)
