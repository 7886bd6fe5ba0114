"""Files that a command writes beside its answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autotune.errors import StoreError, not_written


def check_folder(file: Path, option: str) -> None:
    """Raise StoreError, before anything is run, where a file that an option names cannot lie."""
    if not file.parent.is_dir():
        raise StoreError(f"{file}: there is no folder {file.parent}; create it first or give another {option}")
    if file.is_dir():
        raise StoreError(f"{file}: is a folder; give another {option}")


def write_whole(file: Path, content: bytes, option: str) -> None:
    """Write a file, in place of one that is there; it has all of the content or is as it was."""
    with whole(file, option) as begun:
        begun.write_bytes(content)


@contextmanager
def whole(file: Path, option: str) -> Iterator[Path]:
    """A path beside a file that takes its place once the block has ended well. Raises StoreError."""
    begun = file.with_name(f"{file.name}.part")
    try:
        yield begun
        os.replace(begun, file)
    except OSError as error:
        raise StoreError(not_written(file, error, f"give another {option}")) from None
    finally:
        with suppress(OSError):  # nothing can be removed on a read-only mount, not even what is not there
            begun.unlink()
