"""Names of a network's layers in a study."""

from __future__ import annotations

import re

LONGEST_NAME = 60
"""Characters of a layer's name, without the number that makes it distinct."""


def plain_name(label: str) -> str:
    """A label as a valid name of a layer: letters, digits, - and _."""
    return re.sub(r"\W+", "-", label).strip("-")[:LONGEST_NAME]


def unused_name(name: str, taken: set[str], ending: str = "") -> str:
    """A name that is not taken yet; it is then taken."""
    number = 1
    while (made := f"{name}{f'-{number}' if number > 1 else ''}{ending}") in taken:
        number += 1
    taken.add(made)
    return made
