"""Kernel texts as paragraphs, most of which are shared, and samples rounded to the precision of the timer."""

from __future__ import annotations

import hashlib

_BETWEEN = "\n\n"


def paragraphs_of(text: str) -> list[str]:
    """The parts between blank lines; joined by blank lines they are the text again."""
    return text.split(_BETWEEN)


def joined(paragraphs: list[str]) -> str:
    """The text that `paragraphs_of` has split."""
    return _BETWEEN.join(paragraphs)


def paragraph_id(paragraph: str) -> int:
    """The first 63 bits of its SHA-256."""
    return int.from_bytes(hashlib.sha256(paragraph.encode()).digest()[:8], "big") >> 1


def seven_digits(time_us: float) -> float:
    """A time in the precision of CUDA's event timer, whose milliseconds are a float32."""
    return float(f"{time_us:.7g}")
