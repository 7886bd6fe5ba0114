"""render -> compile for the CPU, checked: shared memory is reached through references.

GCC leaves out AddressSanitizer's call for a thread_local variable at a constant place, such as a scalar, and then
nobody sees who accesses it. Of a reference it knows no bounds.
"""

from __future__ import annotations

import re

_DECLARATION = re.compile(r"\b(?<!extern )__shared__\b((?:[^;{}()]|\([^;{}()]*\))*);")
_DECLARATOR = re.compile(r"(.*?)\b(\w+)(\s*(?:\[[^\[\]]*\]\s*)*)", re.DOTALL)
STORAGE = "autotune_storage_of_"
"""begins the names of variables that references stand for"""


def with_references(text: str) -> str:
    """The text with a reference of the same name for each variable of shared memory whose size is known."""
    return _DECLARATION.sub(_renamed, text)


def _renamed(found: re.Match[str]) -> str:
    parts = [_DECLARATOR.fullmatch(part) for part in _split(found[1])]
    if not all(parts):
        return found[0]
    declared = ",".join(f"{part[1]}{STORAGE}{part[2]}{part[3]}" for part in parts if part)
    names = [part[2] for part in parts if part]
    references = "".join(f" auto& {name} = autotune_host::shared_reference({STORAGE}{name});" for name in names)
    return f"__shared__{declared};{references}"


def _split(declarators: str) -> list[str]:
    """At the commas that stand in no brackets."""
    parts, depth = [""], 0
    for character in declarators:
        depth += (character in "<([") - (character in ">)]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts
