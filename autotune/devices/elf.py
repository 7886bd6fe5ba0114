"""Reads the symbol table of a 64-bit ELF library: which variables a compiled program has, and how large they are."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_SYMTAB = 2  # section type
_OBJECT, _TLS = 1, 6  # symbol types


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable of a library."""

    size_bytes: int
    thread_local: bool


def symbols(image: bytes) -> dict[str, Symbol]:
    """Every defined variable by name; the functions are left out. `image` is a whole library file."""
    (sections_at,) = struct.unpack_from("<Q", image, 0x28)
    section_bytes, section_count = struct.unpack_from("<HH", image, 0x3A)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", image, sections_at + i * section_bytes)[:7] for i in range(section_count)
    ]
    found: dict[str, Symbol] = {}
    for _, kind, _, _, offset, size, link in sections:
        if kind != _SYMTAB:
            continue
        names_at = sections[link][4]
        for name, info, _, section, _, size_bytes in struct.iter_unpack("<IBBHQQ", image[offset : offset + size]):
            if section and info & 15 in (_OBJECT, _TLS):
                start = names_at + name
                text = image[start : image.index(b"\0", start)].decode()
                found[text] = Symbol(size_bytes, info & 15 == _TLS)
    return found
