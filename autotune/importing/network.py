"""Texts of a network that a user is shown: names in files, and sizes."""

from __future__ import annotations

LONGEST_LABEL = 80
"""Characters of a label: those of real networks are shorter."""


def plain(text: str, longest: int = LONGEST_LABEL) -> str:
    """A file's text that may be shown: one line without control characters, of bounded length."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."
