"""Write the files of an export into a temporary folder, then move them into place.

Only unedited files of an earlier export are replaced or removed; `provenance.json` lists the files and their hashes.
All other files stay as they are. Links below the folder are not followed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from autotune.errors import StoreError, not_written

PROVENANCE = "provenance.json"
PROOF = "proof.txt"
"""The results of building and testing the folder; not part of the export."""
_HASHES = "sha256"  # key in PROVENANCE of the table from file to hash

More = Callable[[Path], Mapping[str, bytes]]
"""A function that makes further files from the files in a folder."""


@dataclass(frozen=True, slots=True)
class Written:
    """A folder that was written."""

    provenance: bytes
    """content of the folder's PROVENANCE"""
    edited: tuple[str, ...]
    """files of an earlier export, but not of this one, that were kept because somebody had edited them"""


def write_folder(
    folder: Path, texts: Mapping[str, str], provenance: Mapping[str, object], more: More = lambda _: {}
) -> Written:
    """Write `texts`, the files that `more` makes from them, and the provenance; replace the files of an earlier export.

    Raises StoreError, without changing anything, if a file cannot be written, is outside the folder, or would replace a
    file that was edited or is not part of an export.
    """
    for name in texts:
        if not _inside(name):
            raise StoreError(f"{name}: is outside {folder}; its name comes from its study and layer")
    target = Path(os.path.realpath(folder))
    _Earlier(folder, target).check_free(texts)  # before `more` makes files, which takes time
    with _writing(folder):
        target.parent.mkdir(parents=True, exist_ok=True)
    with _stage(folder, target) as new:
        contents = {name: text.encode() for name, text in texts.items()}
        _write(folder, new, contents)
        additional = more(new)
        _write(folder, new, additional)
        hashes = {name: _hash_of(content) for name, content in sorted({**contents, **additional}.items())}
        record = json.dumps({**provenance, _HASHES: hashes}, indent=2).encode() + b"\n"
        _write(folder, new, {PROVENANCE: record})
        with _writing(folder), _locked(target.parent):
            earlier = _Earlier(folder, target)
            earlier.check_free(hashes)
            if target.is_dir():
                for name in (*hashes, PROVENANCE):
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    (new / name).replace(target / name)
                for name in earlier.own.difference(hashes, (PROVENANCE,)):
                    (target / name).unlink(missing_ok=True)
            else:
                new.rename(target)
        return Written(record, tuple(sorted(earlier.edited - hashes.keys())))


def write_proof(folder: Path, provenance: bytes, lines: Iterable[str]) -> None:
    """Write the PROOF of the export with this provenance.

    Raises StoreError if the file cannot be written, or if another export has replaced this one.
    """
    target = Path(os.path.realpath(folder))
    with _writing(folder / PROOF), _locked(target.parent), _stage(folder, target) as new:
        earlier = _Earlier(folder, target)
        if earlier.provenance != provenance:
            raise StoreError(f"{folder}: another export was written there meanwhile, so this one is not proven")
        earlier.check_free((PROOF,))
        (new / PROOF).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        (new / PROOF).replace(target / PROOF)


class _Earlier:
    """The export in a folder: the files in its provenance, and which of them are unedited."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.folder = folder
        """the folder's name in messages"""
        self.target = target
        self.provenance = self._content(PROVENANCE)
        hashes = _recorded(self.provenance)
        unedited = {name for name, known in hashes.items() if self._hash(name) == known}
        written_with = {name for name in (PROVENANCE, PROOF) if hashes and self._content(name) is not None}
        self.own = frozenset(unedited | written_with)
        self.edited = frozenset(name for name in hashes.keys() - unedited if os.path.lexists(target / name))

    def check_free(self, names: Iterable[str]) -> None:
        """Raise StoreError if an edited or unrelated file is in the way of files with these names."""
        edited = []
        for name in (PROVENANCE, PROOF, *names):
            at = self._in_the_way(name)
            if at is None or at in self.own:
                continue
            if at not in self.edited:
                raise StoreError(
                    f"{self.folder / at}: is not a file of an export, and would be lost; give another --out"
                )
            edited.append(str(self.folder / at))
        if edited:
            them = "them" if len(edited) > 1 else "it"
            why = f"edited after the export that wrote {them}; move {them} away or give another --out"
            raise StoreError(f"{', '.join(edited)}: {why}")

    def _in_the_way(self, name: str) -> str | None:
        """Return the path that blocks a file: its own, or one above it that is not a folder; None if nothing does."""
        for parent in reversed(PurePath(name).parents[:-1]):
            if os.path.lexists(self.target / parent) and not _is_folder(self.target / parent):
                return str(parent)
        return name if os.path.lexists(self.target / name) else None

    def _hash(self, name: str) -> str:
        content = self._content(name)
        return "" if content is None else _hash_of(content)

    def _content(self, name: str) -> bytes | None:
        """Read a file below the folder; None if the file does not exist, or if its path contains a link."""
        path = PurePath(name)
        if any(os.path.islink(self.target / part) for part in (*path.parents[:-1], path)):
            return None
        with suppress(OSError):
            return (self.target / name).read_bytes()
        return None


def _recorded(provenance: bytes | None) -> Mapping[str, str]:
    """Return the files listed in a provenance with their hashes; empty if it is not the provenance of an export."""
    try:
        content = json.loads(provenance or b"null")
    except (ValueError, RecursionError):
        return {}
    match content:
        case {"autotune": str(), "kernels": list(), "sha256": dict(hashes)}:
            return {name: str(known) for name, known in hashes.items() if _inside(name)}
    return {}


def _hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _inside(name: str) -> bool:
    """Whether a name is a plain path of a file below its folder."""
    return not PurePath(name).is_absolute() and ".." not in PurePath(name).parts and str(PurePath(name)) == name


def _is_folder(path: Path) -> bool:
    """Whether a path is a folder, and not a link to a folder."""
    return stat.S_ISDIR(path.lstat().st_mode)


def _write(folder: Path, new: Path, contents: Mapping[str, bytes]) -> None:
    """Write files into a new folder; messages name their final paths in `folder`."""
    for name, content in contents.items():
        with _writing(folder / name):
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).write_bytes(content)


@contextmanager
def _stage(folder: Path, target: Path) -> Iterator[Path]:
    """Yield a temporary folder on the file system of `target`: inside `target`, or next to it if it does not exist."""
    new = (target if target.is_dir() else target.parent) / f".autotune-{secrets.token_hex(4)}"
    with _writing(folder):
        new.mkdir()
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


@contextmanager
def _locked(parent: Path) -> Iterator[None]:
    """Hold a lock, so that no other export moves files into place meanwhile."""
    descriptor = os.open(parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # the file system may not support locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into a StoreError that names the file."""
    try:
        yield
    except OSError as error:
        raise StoreError(not_written(path, error, "give another --out")) from None
