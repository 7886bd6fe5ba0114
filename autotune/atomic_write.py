"""Files that are written: each has all of its content or is as it was; no link is followed, nothing else replaced."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from autotune.bounded_io import of_regular, open_regular
from autotune.errors import StoreError, not_written

_SQLITE = b"SQLite format 3\0"
"""what a database of SQLite's begins with"""

SETTINGS = "autotune.toml"
"""the file with defaults of options, and no other"""
LOGS = ("-journal", "-wal", "-shm")
"""what SQLite keeps beside a file"""


def check_writable(file: Path, option: str) -> None:
    """Raise StoreError, before anything is run, where a file that an option names cannot lie.

    A device, a pipe or a link that is there already would be replaced by a file, and a results database be lost.
    A command that can write to standard output takes `-` before it asks here; the others would make a file of it.
    """
    if str(file) == "-":
        raise StoreError(f"-: standard output cannot be written here; name a file as {option}")
    if not file.parent.is_dir():
        raise StoreError(f"{file}: there is no folder {file.parent}; create it first or give another {option}")
    try:
        mode = os.lstat(file).st_mode
    except OSError:  # nothing is there, or writing says what it is
        return
    if not stat.S_ISREG(mode):
        found = "is a folder" if stat.S_ISDIR(mode) else "is no regular file"
        raise StoreError(f"{file}: {found}; give another {option}")
    if _is_database(file):
        raise StoreError(f"{file}: is an SQLite database, which would be lost; give another {option}")


def _is_database(file: Path) -> bool:
    """Whether a file begins as SQLite's do; one that cannot be read may be replaced, or writing says why not.

    It must not be open in this process: to close it here would drop SQLite's locks on it.
    """
    try:
        with open_regular(file) as content:
            return content.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


def folder_named(name: str | os.PathLike[str], option: str) -> Path:
    """The folder that an option names. Raises StoreError for an empty word: as a path it is the current folder."""
    if not os.fspath(name):
        raise StoreError(f"{option}: is empty; name a folder, or give . for the current one")
    return Path(name)


def open_lock(file: Path) -> BinaryIO:
    """A file to be locked, empty where none is there. Raises OSError for a link, a device or a pipe."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return open(of_regular(os.open(file, flags, 0o666)), "r+b")


def write_whole(file: Path, content: bytes, option: str) -> None:
    """Write a file, in place of one that is there. Raises StoreError."""
    with atomic_write(file, option) as begun:
        begun.write_bytes(content)


@contextmanager
def sibling_temp(file: Path) -> Iterator[Path]:
    """A name for a new file in a file's folder; what has it goes with the block, and what SQLite keeps beside that."""
    begun = file.with_name(f".autotune-{secrets.token_hex(8)}")
    try:
        yield begun
    finally:
        with suppress(OSError):  # nothing can be removed on a read-only mount, not even what is not there
            for suffix in ("", *LOGS):
                Path(f"{begun}{suffix}").unlink(missing_ok=True)


def publish(begun: Path, file: Path) -> bool:
    """Let a finished database in a file beside have a name as well, which none has; it outlasts a power cut then.

    False where a file has it, or logs of one that is gone, or where no links can be made.
    """
    if any(Path(f"{file}{suffix}").exists() for suffix in LOGS):
        return False  # SQLite would take them for this one's
    with begun.open("rb") as written:
        os.fsync(written.fileno())
    try:
        os.link(begun, file)
    except OSError:
        return False
    return True


@contextmanager
def atomic_write(file: Path, option: str) -> Iterator[Path]:
    """A new file beside a file that takes its place once the block has ended well. Raises StoreError."""
    check_writable(file, option)
    with sibling_temp(file) as begun:
        try:
            begun.touch(exist_ok=False)
            yield begun
            os.replace(begun, file)
        except OSError as error:
            raise StoreError(not_written(file, error, f"give another {option}")) from None
