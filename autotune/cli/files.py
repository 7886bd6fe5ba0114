"""Files that a command writes beside its answer."""

from __future__ import annotations

import os
from pathlib import Path

from autotune.errors import StoreError


def check_folder(file: Path, option: str) -> None:
    """Raise StoreError, before anything is run, where a file that an option names cannot lie."""
    if not file.parent.is_dir():
        raise StoreError(f"{file}: there is no folder {file.parent}; create it first or give another {option}")
    if file.is_dir():
        raise StoreError(f"{file}: is a folder; give another {option}")


def write_whole(file: Path, content: bytes, option: str) -> None:
    """Write a file, in place of one that is there; it has all of the content or is as it was."""
    begun = file.with_name(f"{file.name}.part")
    try:
        begun.write_bytes(content)
        os.replace(begun, file)
    except OSError as error:
        raise StoreError(f"{file}: cannot be written: {error.strerror}; give another {option}") from None
    finally:
        begun.unlink(missing_ok=True)
