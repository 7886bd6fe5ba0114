"""The checksum at the end of an exported file: a hash of the text above it. A file with another checksum was edited.

So each file shows by itself that an export wrote it, whatever a list next to it says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePath

from autotune.errors import StoreError

CUBIN = ".cubin"
"""Machine code, which has no comments: its hash in the list of files identifies it."""
_ELF = b"\x7fELF"
_SEAL = "sha256 of the above: "
_COMMENTS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys((".cu", ".cuh", ".cpp", ".h", ".ptx"), ("// ", "")),
    **dict.fromkeys((".cmake", ".py", ".txt"), ("# ", "")),
    ".map": ("/* ", " */"),
    ".md": ("<!-- ", " -->"),
}
"""The beginning and end of a comment line, by suffix."""


def with_checksum(name: str, content: bytes) -> bytes:
    """A file's content with its checksum as the last line. Raises StoreError for a kind of file without comments."""
    suffix = PurePath(name).suffix
    if suffix == CUBIN:
        return content
    if suffix not in _COMMENTS:
        raise StoreError(f"{name}: a file of this kind cannot have a checksum")
    opened, closed = _COMMENTS[suffix]
    blank = b"\n\n\n" if suffix == ".py" else b"\n"  # formatters of Python want it before a comment
    above = content.rstrip(b"\n") + blank
    return above + f"{opened}{_SEAL}{hash_of(above)}{closed}\n".encode()


def has_valid_checksum(name: str, content: bytes, known: str) -> bool:
    """Whether an export wrote this content; `known` is the hash in the list of its files."""
    if PurePath(name).suffix == CUBIN:
        return content.startswith(_ELF) and hash_of(content) == known
    above, _, _ = content.rstrip(b"\n").rpartition(b"\n")
    return PurePath(name).suffix in _COMMENTS and content == with_checksum(name, above + b"\n")


def record_with_checksum(record: Mapping[str, object]) -> bytes:
    """A JSON record as a file's content; its last key is its checksum."""
    seal = hash_of(json.dumps(record).encode())
    return json.dumps({**record, "seal": seal}, indent=2).encode() + b"\n"


def has_valid_record(content: bytes) -> bool:
    """Whether a file has a JSON record as `record_with_checksum` wrote it."""
    try:
        record = json.loads(content)
        record.pop("seal")
        return content == record_with_checksum(record)
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return False


def hash_of(content: bytes) -> str:
    """SHA-256, hexadecimal."""
    return hashlib.sha256(content).hexdigest()
