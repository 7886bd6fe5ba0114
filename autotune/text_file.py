"""Read a text file, such as a study or a template."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autotune.errors import AutotuneError

Raises = Callable[[str], AutotuneError]
"""A function that creates the error for a kind of file from a message."""


def read_text(path: Path, raises: Raises) -> str:
    """Read a UTF-8 file; the text has `\\n` line ends and no byte order mark.

    Raises the error that `raises` creates if the file cannot be read or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise raises(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise raises(f"{path}: is not UTF-8 text: {error.reason}") from None
