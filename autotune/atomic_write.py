"""Write files atomically: a file gets all of its new contents or stays as it was. Links are not followed."""

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
    """Raise StoreError if a file passed as an option can't be written, before anything runs.

    Writing to it would replace a device, a pipe or a link with a file, or destroy a results database. Commands that can
    write to standard output handle `-` before calling this function; for all others, `-` is an error.
    """
    if str(file) == "-":
        raise StoreError(f"-: this command cannot write to standard output; name a file as {option}")
    if not file.parent.is_dir():
        raise StoreError(f"{file}: there is no folder {file.parent}; create it first or give another {option}")
    try:
        mode = os.lstat(file).st_mode
    except OSError:  # the file does not exist, or writing it will report the error
        return
    if not stat.S_ISREG(mode):
        found = "is a folder" if stat.S_ISDIR(mode) else "is not a regular file"
        raise StoreError(f"{file}: {found}; give another {option}")
    if _is_database(file):
        raise StoreError(f"{file}: is an SQLite database, which would be lost; give another {option}")


def _is_database(file: Path) -> bool:
    """Return whether a file begins like an SQLite database, or False if it can't be read (writing it will report the
    error).

    The database must not be open in this process, because closing the file would release SQLite's locks on it.
    """
    try:
        with file.open("rb") as content:
            return content.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


def folder_named(name: str | os.PathLike[str], option: str) -> Path:
    """Return the folder passed as an option. Raises StoreError for "", which would mean the current folder."""
    if not os.fspath(name):
        raise StoreError(f"{option}: is empty; name a folder, or give . for the current one")
    return Path(name)


def write_whole(file: Path, content: bytes, option: str) -> None:
    """Write or replace a file. Raises StoreError if that fails."""
    with atomic_write(file, option) as begun:
        begun.write_bytes(content)


@contextmanager
def sibling_temp(file: Path) -> Iterator[Path]:
    """Yield the path of a temporary file in the same folder as `file`.

    After the block, the temporary file is removed, along with any SQLite files next to it.
    """
    begun = file.with_name(f".autotune-{secrets.token_hex(8)}")
    try:
        yield begun
    finally:
        with suppress(OSError):  # on a read-only mount even unlinking a missing file fails
            for suffix in ("", *LOGS):
                Path(f"{begun}{suffix}").unlink(missing_ok=True)


def publish(begun: Path, file: Path) -> bool:
    """Flush a finished temporary database to disk and link it as `file`, unless that already exists.

    Returns False if it does, if log files of a deleted database with this name exist, or if links can't be created.
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
    """Yield a temporary file that replaces `file` if the block succeeds. Raises StoreError if it can't be written."""
    check_writable(file, option)
    with sibling_temp(file) as begun:
        try:
            begun.touch(exist_ok=False)
            yield begun
            os.replace(begun, file)
        except OSError as error:
            raise StoreError(not_written(file, error, f"give another {option}")) from None
