"""What an exported file ends in: a hash of what stands above it. A file whose seal does not fit was edited, or is none.

So a file says by itself that an export wrote it, whatever stands in a list beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePath

from autotune.errors import StoreError

CUBIN = ".cubin"
"""Machine code, which has no comments: it is known by its hash in the list of files."""
_ELF = b"\x7fELF"
_SEAL = "sha256 of the above: "
_COMMENTS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys((".cu", ".cuh", ".cpp", ".h", ".ptx"), ("// ", "")),
    **dict.fromkeys((".cmake", ".py", ".txt"), ("# ", "")),
    ".map": ("/* ", " */"),
    ".md": ("<!-- ", " -->"),
}
"""How a line of a comment begins and ends, by suffix."""


def with_checksum(name: str, content: bytes) -> bytes:
    """A file's content with its seal as the last line. Raises StoreError for a kind of file without comments."""
    suffix = PurePath(name).suffix
    if suffix == CUBIN:
        return content
    if suffix not in _COMMENTS:
        raise StoreError(f"{name}: a file of this kind cannot be sealed")
    opened, closed = _COMMENTS[suffix]
    blank = b"\n\n\n" if suffix == ".py" else b"\n"  # as formatters of Python want it before a comment
    above = content.rstrip(b"\n") + blank
    return above + f"{opened}{_SEAL}{hash_of(above)}{closed}\n".encode()


def has_valid_checksum(name: str, content: bytes, known: str) -> bool:
    """Whether this is what an export wrote; `known` is the hash that a list of its files gives."""
    if PurePath(name).suffix == CUBIN:
        return content.startswith(_ELF) and hash_of(content) == known
    above, _, _ = content.rstrip(b"\n").rpartition(b"\n")
    return PurePath(name).suffix in _COMMENTS and content == with_checksum(name, above + b"\n")


def record_with_checksum(record: Mapping[str, object]) -> bytes:
    """A JSON record as a file's content; its last key is its seal."""
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
