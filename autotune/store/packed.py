"""A kernel's text as the database has it: packed by zlib, or as it is where that makes it no smaller."""

from __future__ import annotations

import zlib

from autotune.family.source import TEXT_BYTES


def unpacked(packed: bytes, size_bytes: int) -> bytes:
    """The text. Raises zlib.error for one of another size, and for one larger than a kernel's may be."""
    if len(packed) == size_bytes:
        return packed
    if not 0 <= size_bytes <= TEXT_BYTES:
        raise zlib.error(f"a text of {size_bytes} bytes: expected at most {TEXT_BYTES}")
    inflater = zlib.decompressobj()
    text = inflater.decompress(packed, size_bytes + 1)  # no more than is asked for, however much there is
    if len(text) != size_bytes or not inflater.eof:
        raise zlib.error(f"a text is not the {size_bytes} bytes that its row says")
    return text
