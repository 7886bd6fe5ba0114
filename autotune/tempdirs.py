"""Temporary folders that are removed even if a process still writes into them."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Yield a temporary folder that is removed after the block. Raises OSError if it cannot be created."""
    with tempfile.TemporaryDirectory(prefix="autotune-", ignore_cleanup_errors=True) as folder:
        try:
            yield folder
        finally:
            remove(folder)


def remove(folder: str) -> None:
    """Remove a folder, even if dying processes still write into it."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(0.01)
