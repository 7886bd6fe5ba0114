"""Files and folders that are read-only, for root too."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WRITE = 0o222
CAP_DAC_OVERRIDE = 1 << 1
VERSION_3 = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Data(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


@contextmanager
def _bound_by_permissions() -> Iterator[None]:
    """Take from root, in this thread, the right to write read-only files; root still owns its files."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = _Header(VERSION_3, 0), (_Data * 2)()

    def call(name: str) -> None:
        if getattr(libc, name)(ctypes.byref(header), data) != 0:
            raise OSError(ctypes.get_errno(), name)

    call("capget")
    had = data[0].effective & CAP_DAC_OVERRIDE
    data[0].effective &= ~CAP_DAC_OVERRIDE
    call("capset")
    try:
        yield
    finally:
        data[0].effective |= had
        call("capset")


@contextmanager
def read_only(folder: Path, *, files_only: bool = False) -> Iterator[None]:
    """Remove every right to write the folder's files (and the folder itself, unless files_only), and restore them
    afterwards.
    """
    changed = [path for path in folder.rglob("*") if path.is_file()] + ([] if files_only else [folder])
    modes = {path: path.stat().st_mode for path in changed}
    for path, mode in modes.items():
        path.chmod(mode & ~WRITE)
    try:
        if os.geteuid() == 0:
            with _bound_by_permissions():
                yield
        else:
            yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
