"""The files of an export in their folder: written in the place of an earlier export's, never over anything else.

`provenance.json` names them with their hashes, so that a later export knows which are an export's own.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath

from autotune.errors import StoreError

PROVENANCE = "provenance.json"
PROOF = "proof.txt"
"""What building and testing the folder came to; no part of what is exported."""
_HASHES = "sha256"  # of PROVENANCE: file to hash


def write_folder(folder: Path, texts: Mapping[str, str], provenance: Mapping[str, object]) -> None:
    """Write files and the provenance that names them; what only an earlier export wrote there is removed.

    Raises StoreError when something cannot be written, or would be written over a file that is no export's.
    """
    hashes = {name: _hash(text.encode()) for name, text in sorted(texts.items())}
    with _writing(folder):
        earlier = _recorded(folder)
        taken = [name for name in (*texts, PROVENANCE) if os.path.lexists(folder / name)] if earlier is None else []
        if taken:
            raise StoreError(f"{folder / taken[0]}: is no file of an export and would be lost; give another --out")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROOF).unlink(missing_ok=True)  # of what lay here before
        for name, known in (earlier or {}).items():
            path = folder / name
            if name not in texts and path.is_file() and _hash(path.read_bytes()) == known:
                path.unlink()
    # The provenance comes first: a folder that is written half is an export's too.
    for name, text in {PROVENANCE: _json({**provenance, _HASHES: hashes}), **texts}.items():
        with _writing(folder / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")


def record_files(folder: Path, names: Iterable[str]) -> None:
    """Add files that were made of an export to its provenance. Raises StoreError when it cannot be written."""
    with _writing(folder / PROVENANCE):
        content = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
        hashes = content[_HASHES] | {name: _hash((folder / name).read_bytes()) for name in names}
        content[_HASHES] = dict(sorted(hashes.items()))
        (folder / PROVENANCE).write_text(_json(content), encoding="utf-8")


def write_proof(folder: Path, lines: Iterable[str]) -> None:
    """Write PROOF. Raises StoreError when it cannot be written."""
    with _writing(folder / PROOF):
        (folder / PROOF).write_text("\n".join(lines) + "\n", encoding="utf-8")


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


def _json(content: Mapping[str, object]) -> str:
    return json.dumps(content, indent=2) + "\n"


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """An error of the system's becomes a StoreError that names the file, or `path` where the system does not say it."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{error.filename or path}: cannot be written: {error.strerror}; give another --out") from None
