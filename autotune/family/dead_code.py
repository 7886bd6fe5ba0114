"""Remove the functions and types of included files that a kernel's text does not use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from autotune.family.comments import MARKS

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
_FUNCTION = re.compile(r"(?:__host__ )?__device__ [^(]*?(\w+)(?:<[^()]*>)?\(")
_TYPE = re.compile(r"struct (?:alignas\(.*\) )?(\w+)\b[^;]*$")
KEPT = 64
"""Number of included files whose definitions a process caches."""


@dataclass(frozen=True, slots=True)
class _Definition:
    """A function or type at the outermost level of a file, with the comment above it."""

    name: str
    text: str
    uses: frozenset[str]


def without_dead_code(text: str, included: Iterable[str]) -> str:
    """The text without those definitions of the included files that nothing in the rest names."""
    unused = [definition for content in included for definition in _definitions(content)]
    rest = text
    for definition in unused:
        rest = rest.replace(definition.text, "", 1)
    used = _names(rest)
    while found := [definition for definition in unused if definition.name in used]:
        unused = [definition for definition in unused if definition.name not in used]
        used = used.union(*(definition.uses for definition in found))
    for definition in unused:
        text = text.replace(definition.text, "", 1)
    return text


def _names(text: str) -> frozenset[str]:
    return frozenset(_NAME.findall(_code(text)))


def _code(text: str) -> str:
    return MARKS.sub("", _COMMENT.sub("", text))


@lru_cache(maxsize=KEPT)
def _definitions(content: str) -> tuple[_Definition, ...]:
    found = ((name, "".join(lines)) for name, lines in _read(content.splitlines(keepends=True)))
    return tuple(_Definition(name, text, _names(text)) for name, text in found)


def _read(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Names and lines of definitions, each up to its closing brace, or to the semicolon of a declaration."""
    begin = at = 0  # begin: the first line of the comment and the template's head above
    while at < len(lines):
        if lines[at].startswith(("//", "template <")):
            at += 1
            continue
        found = _FUNCTION.match(lines[at]) or _TYPE.match(_code(lines[at]).rstrip())
        if found:
            at = _end(lines, at)
            yield found[1], lines[begin : at + 1]
        begin = at = at + 1


def _end(lines: list[str], at: int) -> int:
    depth, opened = 0, False
    for end in range(at, len(lines)):
        code = _code(lines[end]).rstrip()
        depth += code.count("{") - code.count("}")
        opened = opened or "{" in code
        if depth == 0 and (opened or code.endswith(";")):
            return end
    return len(lines) - 1
