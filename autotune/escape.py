"""Escape untrusted text for terminals, pages, single lines and comments."""

from __future__ import annotations

import re

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 except tab and newline, DEL, C1
    "\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # formats, bidi
    "\ud800-\udfff]"  # surrogates: bytes of a name that are not UTF-8
)


def printable(text: str) -> str:
    """Escape all control characters except newline and tab, for text that people read."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Return the text on one line, with control characters escaped."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def in_comment(text: str) -> str:
    """Return text that is safe after `//`: on one line, with control characters escaped.

    If it ends with a backslash or the trigraph for one, which would continue the comment, a full stop is added.
    """
    line = " ".join(text.splitlines()).rstrip()
    line = line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return f"{line}." if line.endswith(("\\", "??/")) else line


def counted(count: int, one: str, many: str = "", *, form: str = "") -> str:
    """Format a count with its noun: 1 study, 2 studies. By default, the plural adds an s. `form` formats the number."""
    return f"{count:{form}} {one if count == 1 else many or f'{one}s'}"
