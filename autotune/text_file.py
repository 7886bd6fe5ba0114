"""Read text files, such as studies and templates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autotune.errors import AutotuneError

Raises = Callable[[str], AutotuneError]
"""A function that turns a message into the error for a kind of file."""


def read_text(path: Path, raises: Raises) -> str:
    """Read a UTF-8 file and return it with `\n` line ends and no byte order mark.

    If the file can't be read or isn't UTF-8, raises the error that `raises` returns.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise raises(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise raises(f"{path}: is not UTF-8 text: {error.reason}") from None
