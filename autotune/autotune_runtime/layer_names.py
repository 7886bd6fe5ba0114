"""Name a study's layers after a network's."""

from __future__ import annotations

import re

LONGEST_NAME = 60
"""Maximum length of a layer's name in characters, without a number that makes it unique."""


def plain_name(label: str) -> str:
    """Convert a label to a valid layer name of letters, digits, - and _."""
    return re.sub(r"\W+", "-", label).strip("-")[:LONGEST_NAME]


def unused_name(name: str, taken: set[str], ending: str = "") -> str:
    """Return a name that isn't in `taken`, numbered if necessary, and add it to `taken`."""
    number = 1
    while (made := f"{name}{f'-{number}' if number > 1 else ''}{ending}") in taken:
        number += 1
    taken.add(made)
    return made
