"""Write the files of an export into a temporary folder, then move them into place.

A folder that contains an export keeps the user's own files. `provenance.json` lists the export's files and their
hashes, so that edited files are not lost.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath

from autotune.atomic_write import write_whole
from autotune.errors import StoreError, not_written

PROVENANCE = "provenance.json"
PROOF = "proof.txt"
"""The results of building and testing the folder, which aren't part of the export."""
_HASHES = "sha256"  # key in PROVENANCE of the table from file to hash


def write_folder(folder: Path, texts: Mapping[str, str], provenance: Mapping[str, object]) -> None:
    """Write files and their provenance to a folder, and replace the files of an earlier export.

    Raises StoreError, without changing anything, if a file cannot be written or would replace a file that was edited or
    is not part of an export.
    """
    contents = {name: text.encode() for name, text in texts.items()}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(contents.items())}
    contents[PROVENANCE] = json.dumps({**provenance, _HASHES: hashes}, indent=2).encode() + b"\n"
    earlier = _earlier(folder, hashes)
    for name in (PROVENANCE, PROOF, *contents):
        if name not in earlier and os.path.lexists(folder / name) and not _is_written(folder, name, hashes):
            raise StoreError(f"{folder / name}: is not a file of an export, and would be lost; give another --out")
    with _stage(folder) as new:
        for name, content in contents.items():
            with _writing(folder / name):
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_bytes(content)
        with _writing(folder):
            if not folder.exists():
                new.rename(folder)
                return
            for name in contents:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).replace(folder / name)
            for name in earlier - contents.keys():
                (folder / name).unlink(missing_ok=True)


def write_proof(folder: Path, lines: Iterable[str]) -> None:
    """Write the PROOF of the export in a folder. Raises StoreError if the file cannot be written."""
    write_whole(folder / PROOF, "".join(f"{line}\n" for line in lines).encode(), "--out")


def _is_written(folder: Path, name: str, hashes: Mapping[str, str]) -> bool:
    """Whether an interrupted export has already written a file with this content."""
    return name in hashes and (folder / name).is_file() and _hash(folder / name) == hashes[name]


def _earlier(folder: Path, hashes: Mapping[str, str]) -> set[str]:
    """Return the files that an earlier export wrote to the folder. `hashes` are the new files' hashes.

    Raises StoreError if any of the earlier files has been edited.
    """
    try:
        content = json.loads((folder / PROVENANCE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return set()
    match content:
        case {"autotune": str(), "kernels": list(), "sha256": dict(recorded)}:
            own = {name: known for name, known in recorded.items() if _is_inside(name)}
        case _:
            return set()
    edited = [
        name
        for name, known in own.items()
        if (folder / name).exists() and _hash(folder / name) not in (known, hashes.get(name))
    ]
    if edited:
        them = "them" if len(edited) > 1 else "it"
        raise StoreError(
            f"{', '.join(str(folder / name) for name in edited)}: edited after the export that wrote {them}; move "
            f"{them} away or give another --out"
        )
    return {*own, PROVENANCE, PROOF}


def _is_inside(name: str) -> bool:
    """Whether a name from a provenance is the path of a file below the folder."""
    return not PurePath(name).is_absolute() and ".." not in PurePath(name).parts


def _hash(path: Path) -> str:
    with _writing(path):
        return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def _stage(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder in the folder or, if that is missing, next to it."""
    new = (folder if folder.exists() else folder.parent) / f".autotune-{secrets.token_hex(4)}"
    with _writing(folder):
        new.mkdir(parents=True)
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an operating system error into a StoreError that mentions the file."""
    try:
        yield
    except OSError as error:
        raise StoreError(not_written(path, error, "give another --out")) from None
