"""Kernels' texts as paragraphs, of which most are shared, and samples without digits that the timer does not have."""

from __future__ import annotations

import hashlib

_BETWEEN = "\n\n"


def paragraphs_of(text: str) -> list[str]:
    """What stands between blank lines; joined by them it is the text again."""
    return text.split(_BETWEEN)


def joined(paragraphs: list[str]) -> str:
    """The text that `paragraphs_of` split."""
    return _BETWEEN.join(paragraphs)


def paragraph_id(paragraph: str) -> int:
    """The first 63 bits of its SHA-256."""
    return int.from_bytes(hashlib.sha256(paragraph.encode()).digest()[:8], "big") >> 1


def seven_digits(time_us: float) -> float:
    """A time as precise as CUDA's event timer, whose milliseconds are a float32."""
    return float(f"{time_us:.7g}")
