"""Texts of others, such as a device's name, in the comments of CUDA and C++ files."""

from __future__ import annotations


def in_comment(text: str) -> str:
    """What may stand behind `//`: one line, its control characters escaped, that does not reach into the next.

    A backslash at its end would join the next line to it, and so would the trigraph of one.
    """
    line = " ".join(text.splitlines()).rstrip()
    line = line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return f"{line}." if line.endswith(("\\", "??/")) else line
