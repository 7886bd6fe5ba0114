"""Temporary folders that are removed even if a signal ends the run or a process is still writing into them."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

_created: set[str] = set()
"""The folders that this process has created and not yet removed."""


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Yield a temporary folder that is removed after the block. Raises OSError if it can't be created.

    Its name is recorded before it is created, so that `removing_leftovers` finds it even if a signal ends the block
    immediately.
    """
    folder = os.path.join(tempfile.gettempdir(), f"autotune-{secrets.token_hex(8)}")
    _created.add(folder)
    try:
        os.mkdir(folder, 0o700)
        yield folder
    finally:
        remove(folder)
        _created.discard(folder)


@contextmanager
def removing_leftovers() -> Iterator[None]:
    """At the end of the block, remove any folders created in it that still exist, for example after a signal."""
    before = frozenset(_created)
    try:
        yield
    finally:
        for folder in _created - before:
            remove(folder)
            _created.discard(folder)


def remove(folder: str) -> None:
    """Remove a folder, even if dying processes are still writing into it."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(0.01)
