"""The files of an export in their folder: written in the place of an earlier export's, never over anything else.

`provenance.json` names them with their hashes, so that a later export knows which are an export's own. It is written
before them, and whole or not at all: a folder that is written half is an export's too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath

from autotune.errors import StoreError

PROVENANCE = "provenance.json"
PROOF = "proof.txt"
"""What building and testing the folder came to; no part of what is exported."""
_HASHES = "sha256"  # of PROVENANCE: file to hash


def write_folder(folder: Path, texts: Mapping[str, str], provenance: Mapping[str, object]) -> None:
    """Write files and the provenance that names them; what only an earlier export wrote there is removed.

    Raises StoreError when something cannot be written, would be written over a file that is no export's, or lies
    outside the folder.
    """
    contents = {name: text.encode() for name, text in texts.items()}
    hashes = _hashes(contents)
    with _writing(folder):
        earlier = _recorded(folder)
        own = (PROVENANCE, PROOF) if earlier is None else ()  # an export's, where there is one
        _check_free(folder, (*contents, *own), earlier or {})
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROOF).unlink(missing_ok=True)  # of what lay here before
        for name, known in (earlier or {}).items():
            path = folder / name
            if name not in texts and path.is_file() and _hash(path.read_bytes()) == known:
                path.unlink()
    _write_provenance(folder, {**provenance, _HASHES: hashes})
    _write_files(folder, contents)


def add_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files that were made of an export beside it, and name them in its provenance.

    Raises StoreError as `write_folder` does.
    """
    with _writing(folder / PROVENANCE):
        provenance = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
        recorded = provenance[_HASHES]
        _check_free(folder, contents, recorded)
    _write_provenance(folder, {**provenance, _HASHES: dict(sorted({**recorded, **_hashes(contents)}.items()))})
    _write_files(folder, contents)


def write_proof(folder: Path, lines: Iterable[str]) -> None:
    """Write PROOF. Raises StoreError when it cannot be written."""
    with _writing(folder / PROOF):
        (folder / PROOF).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _check_free(folder: Path, names: Iterable[str], recorded: Container[str]) -> None:
    """Raises StoreError unless these files lie in the folder, and those that are there are an export's."""
    for name in names:
        if not _inside(name):
            raise StoreError(f"{name}: lies outside {folder}; its name is made of those of its study and layer")
        if name not in recorded and os.path.lexists(folder / name):
            raise StoreError(f"{folder / name}: is no file of an export and would be lost; give another --out")


def _write_provenance(folder: Path, content: Mapping[str, object]) -> None:
    """Put it in the place of an earlier one, which stays where this one cannot be written."""
    path, new = folder / PROVENANCE, folder / f".{PROVENANCE}.new"
    with _writing(path):
        try:
            new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)


def _write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    for name, content in contents.items():
        with _writing(folder / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


def _recorded(folder: Path) -> Mapping[str, str] | None:
    """The files of the export that lies in a folder, with their hashes; None where there is none."""
    try:
        content = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    match content:
        case {"autotune": str(), "kernels": list(), "sha256": dict(hashes)}:
            return {name: str(known) for name, known in hashes.items() if _inside(name)}
    return None


def _inside(name: str) -> bool:
    """Whether a name of a file's is one below its folder."""
    return not PurePath(name).is_absolute() and ".." not in PurePath(name).parts


def _hashes(contents: Mapping[str, bytes]) -> dict[str, str]:
    return {name: _hash(content) for name, content in sorted(contents.items())}


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """An error of the system's becomes a StoreError that names the file, or `path` where the system does not say it."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{error.filename or path}: cannot be written: {error.strerror}; give another --out") from None
