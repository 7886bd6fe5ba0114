"""Write files atomically: a file has all of its new content or stays as it was; links are not followed."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autotune.errors import StoreError, not_written

_SQLITE = b"SQLite format 3\0"
"""the first bytes of an SQLite database"""

LOGS = ("-journal", "-wal", "-shm")
"""suffixes of SQLite's files next to a database"""


def check_writable(file: Path, option: str) -> None:
    """Raise StoreError, before anything runs, if a file that an option names cannot be written.

    A device, a pipe or a link would be replaced by a file, and a results database would be lost. A command that can
    write to standard output handles `-` before it calls this; for the others `-` would be a file.
    """
    if str(file) == "-":
        raise StoreError(f"-: this command cannot write to standard output; name a file as {option}")
    if not file.parent.is_dir():
        raise StoreError(f"{file}: there is no folder {file.parent}; create it first or give another {option}")
    try:
        mode = os.lstat(file).st_mode
    except OSError:  # it does not exist, or writing it reports the error
        return
    if not stat.S_ISREG(mode):
        found = "is a folder" if stat.S_ISDIR(mode) else "is not a regular file"
        raise StoreError(f"{file}: {found}; give another {option}")
    if _is_database(file):
        raise StoreError(f"{file}: is an SQLite database, which would be lost; give another {option}")


def _is_database(file: Path) -> bool:
    """Whether a file begins like an SQLite database. False if it cannot be read: writing it reports the error.

    The database must not be open in this process: closing the file would release SQLite's locks on it.
    """
    try:
        with file.open("rb") as content:
            return content.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


def folder_named(name: str | os.PathLike[str], option: str) -> Path:
    """The folder that an option names. Raises StoreError for an empty word: as a path it is the current folder."""
    if not os.fspath(name):
        raise StoreError(f"{option}: is empty; name a folder, or give . for the current one")
    return Path(name)


def write_whole(file: Path, content: bytes, option: str) -> None:
    """Write a file, or replace it. Raises StoreError."""
    with atomic_write(file, option) as begun:
        begun.write_bytes(content)


@contextmanager
def sibling_temp(file: Path) -> Iterator[Path]:
    """Yield the path of a temporary file in a file's folder; it is removed after the block, with SQLite's files next to
    it.
    """
    begun = file.with_name(f".autotune-{secrets.token_hex(8)}")
    try:
        yield begun
    finally:
        with suppress(OSError):  # on a read-only mount even unlinking a missing file fails
            for suffix in ("", *LOGS):
                Path(f"{begun}{suffix}").unlink(missing_ok=True)


def publish(begun: Path, file: Path) -> bool:
    """Give a finished temporary database a second name that no file has yet, synchronised to disk.

    Returns False if a file has the name, or logs of a deleted one, or if links cannot be made.
    """
    if any(Path(f"{file}{suffix}").exists() for suffix in LOGS):
        return False  # SQLite would use them as this database's logs
    with begun.open("rb") as written:
        os.fsync(written.fileno())
    try:
        os.link(begun, file)
    except OSError:
        return False
    return True


@contextmanager
def atomic_write(file: Path, option: str) -> Iterator[Path]:
    """Yield a temporary file that replaces a file after the block has succeeded. Raises StoreError."""
    check_writable(file, option)
    with sibling_temp(file) as begun:
        try:
            begun.touch(exist_ok=False)
            yield begun
            os.replace(begun, file)
        except OSError as error:
            raise StoreError(not_written(file, error, f"give another {option}")) from None
