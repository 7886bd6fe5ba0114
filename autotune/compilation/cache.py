"""A cache of compiled programs. Its key covers source, flags, target and compiler, so an entry is never stale.

Each program is a file, written under a temporary name and then renamed, so that processes can share the folder.
diskcache would do the same, but it stores pickles, which autotune doesn't read from disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from autotune.compilation.compile import Binary, Program, Target
from autotune.trial import Resources

DEFAULT_LIMIT_BYTES = 2 << 30
_CLOCK_STEP_S = 60.0  # largest expected difference between the clocks of one network
_TRIM_EVERY = 200  # number of writes by one process between two checks of the folder's size


@dataclass(frozen=True, slots=True)
class CacheState:
    """A cache folder's number of entries, size and size limit."""

    folder: str
    entries: int
    size_bytes: int
    limit_bytes: int


class BinaryCache:
    """A folder of compiled programs that processes can share. The least recently used ones are dropped."""

    def __init__(self, folder: Path, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._writes = 0

    @staticmethod
    def key(program: Program, target: Target, compiler: str) -> str:
        """Return the SHA-256 of everything that determines the binary."""
        return hashlib.sha256(json.dumps([program.hash, asdict(target), compiler]).encode()).hexdigest()

    def get(self, key: str) -> Binary | None:
        """Return the stored binary, or None if there is none. A damaged file is removed and treated as missing."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        try:
            head, _, image = content.partition(b"\n")
            fields = json.loads(head)
            if hashlib.sha256(image).hexdigest() != fields.pop("sha256"):
                raise ValueError("damaged image")
            binary = Binary(
                target=Target(**fields["target"]),
                image=image,
                resources=Resources(**fields["resources"]),
                log=fields["log"],
                entries=tuple(fields["entries"]),
            )
        except (ValueError, KeyError, TypeError):
            path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return binary

    def put(self, key: str, binary: Binary) -> None:
        """Store a binary. If the folder can't be written, nothing is stored, and there is no error."""
        fields = asdict(replace(binary, image=b"", compile_us=0.0))
        head = {name: fields[name] for name in ("target", "resources", "log", "entries")}
        head["sha256"] = hashlib.sha256(binary.image).hexdigest()
        path = self._path(key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            with os.fdopen(handle, "wb") as file:
                file.write(json.dumps(head).encode() + b"\n" + binary.image)
            os.replace(name, path)
            self._writes += 1
            if self._writes % _TRIM_EVERY == 1:
                self.trim()

    def kept(self, key: str, compiled: Callable[[], Binary]) -> Binary:
        """Return the stored binary, or compile a new one and store it."""
        binary = self.get(key)
        if binary is None:
            binary = compiled()
            self.put(key, binary)
        return binary

    def state(self) -> CacheState:
        """Return the number of entries and bytes in the cache."""
        sizes = [size for _, size, _ in self._files()]
        return CacheState(str(self.folder), len(sizes), sum(sizes), self.limit_bytes)

    def trim(self, limit_bytes: int | None = None) -> None:
        """Drop the least recently used programs until the folder is within the limit."""
        limit = self.limit_bytes if limit_bytes is None else limit_bytes
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= limit:
                return
            path.unlink(missing_ok=True)
            total -= size

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def _files(self) -> list[tuple[float, int, Path]]:
        """Return each entry's time of last use, size and path.

        An entry last used in the future is treated as the oldest.
        """
        files, now = [], time.time()
        for path in self.folder.glob("??/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                used = status.st_mtime if status.st_mtime <= now + _CLOCK_STEP_S else 0.0
                files.append((used, status.st_size, path))
        return files
