"""Comments in CUDA and C++ files, and the marks that tie a rendered line to the line of the template that wrote it."""

from __future__ import annotations

import re

MARK = "\ue000%s\ue001"
"""The origin of a line, at its end; the two characters are for private use, so no program contains them."""
MARKS = re.compile("\ue000([^\ue001]*)\ue001")


def in_comment(text: str) -> str:
    """The text for a comment after `//`: one line, its control characters escaped.

    A backslash at its end, or its trigraph, would continue the comment on the next line, so a full stop is added.
    """
    line = " ".join(text.splitlines()).rstrip()
    line = line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return f"{line}." if line.endswith(("\\", "??/")) else line
