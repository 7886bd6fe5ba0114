"""Read untrusted files: only regular files, and only up to the limit of their kind."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from autotune.errors import AutotuneError

TEXT_BYTES = 1 << 20
"""Most bytes of a study, a template or a file that it includes: about 8,000 layers, or 20 times the largest family."""


Raises = Callable[[str], AutotuneError]
"""Creates the error for a kind of file from a message."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError for a device, a pipe or a socket, which may not end."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # so that a pipe without a writer opens at once
    return open(of_regular(os.open(path, flags)), "rb")


def of_regular(descriptor: int) -> int:
    """The descriptor if it is a regular file's. Otherwise closes it and raises OSError."""
    try:
        check_regular(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(status: os.stat_result) -> None:
    """Raise OSError unless it is a regular file's."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file")


def read_bytes(path: Path, raises: Raises, most_bytes: int = TEXT_BYTES) -> bytes:
    """The content of a file. Raises the error of its kind if it is too large or cannot be read."""
    try:
        with open_regular(path) as file:
            content = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        raise raises(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from None
    if len(content) > most_bytes:
        raise raises(f"{path}: is larger than {most_bytes >> 20} MiB, the limit for this kind of file")
    return content


def read_text(path: Path, raises: Raises, most_bytes: int = TEXT_BYTES) -> str:
    """The UTF-8 text of a file with `\\n` line ends, without a byte order mark. Raises as `read_bytes` does, and if it
    is not UTF-8.
    """
    try:
        return read_bytes(path, raises, most_bytes).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise raises(f"{path}: is not UTF-8 text: {error.reason}") from None
