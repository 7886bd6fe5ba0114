"""Folders for temporary files: none is left behind, whenever a signal comes."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

_made: set[str] = set()
"""by this process, and not removed yet"""


@contextmanager
def temporary_folder() -> Iterator[str]:
    """A folder that goes with the block; its name is known before it is made, so a signal in between leaves none.

    Raises OSError where none can be made.
    """
    folder = os.path.join(tempfile.gettempdir(), f"autotune-{secrets.token_hex(8)}")
    _made.add(folder)
    try:
        os.mkdir(folder, 0o700)
        yield folder
    finally:
        remove(folder)
        if not os.path.lexists(folder):  # to remove it opens files, of which there may be too many
            _made.discard(folder)


@contextmanager
def removing_leftovers() -> Iterator[None]:
    """Remove, when the block ends, the folders made in it that nobody has removed, as a signal or a limit came."""
    before = frozenset(_made)
    try:
        yield
    finally:
        for folder in _made - before:
            remove(folder)
            _made.discard(folder)


def remove(folder: str) -> None:
    """Remove a folder into which processes that are being killed may write for another moment."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(0.01)
