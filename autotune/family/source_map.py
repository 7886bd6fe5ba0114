"""Map each line of a rendered text to the line that wrote it, in the family's own file or an included one.

The text itself contains no such information, because people read it and its hash identifies it. On request, it is
rendered again in the same way, from a template whose lines end in marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from jinja2 import BaseLoader, Environment, Template, nodes

from autotune.devices.device import DeviceInfo
from autotune.errors import AutotuneError, TemplateError
from autotune.family.render import visible_names
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.family.text import MARK, MARKS, environment, inline, parse
from autotune.resources import shipped
from autotune.text_file import read_text

_LINE = re.compile(r"\bkernel\.cu(?::(\d+)(?::\d+)?|\((\d+)\))")
_WORDS = re.compile(r"\bline (\d+)")  # in the host device's message about a barrier
_ONLY_MARKS = re.compile(f"^(?:{MARKS.pattern})+$", re.MULTILINE)


def with_source_lines(message: str, template: KernelTemplate, source: KernelSource, device: DeviceInfo) -> str:
    """Add lines of the family's files to a message about `kernel.cu`.

    `kernel.cu:12` becomes `kernel.cu:12 (FAMILY.cu.j2:34)`. Lines of unknown origin are left unchanged.
    """
    if not _LINE.search(message) and not _WORDS.search(message):
        return message
    lines = origins(template, source, device)

    def extended(match: re.Match[str]) -> str:
        line = int(next(filter(None, match.groups())))
        origin = lines[line - 1] if 0 < line <= len(lines) else ""
        return f"{match[0]} ({origin})" if origin else match[0]

    extended_message = _LINE.sub(extended, message)
    return extended_message if extended_message != message else _WORDS.sub(extended, message)


def origins(template: KernelTemplate, source: KernelSource, device: DeviceInfo) -> tuple[str, ...]:
    """Return `FILE:LINE` for each line of a rendered text, or "" if its origin is unknown.

    If the family now renders a different text, the tuple is empty.
    """
    try:
        bound = BoundTemplate(template, source.problem, device)
        marked = _marked_body(template).render(visible_names(bound, bound.check(source.config)))
        includes = [(name, _unmarked_blanks(_marked_lines(text, _place(name)))) for name, text in template.includes]
        text = inline(_unmarked_blanks(marked).lstrip("\n"), includes)
    except AutotuneError:
        return ()
    if MARKS.sub("", text) != source.program.text:
        return ()
    return tuple((MARKS.findall(line) or [""])[-1] for line in text.split("\n"))


class _MarkedMacros(BaseLoader):
    """Loads the files that a family imports, marked like the family itself."""

    def load(self, environment: Environment, name: str, *_: object, **__: object) -> Template:
        path = shipped("templates") / name
        return _marked(environment, path, read_text(path, TemplateError))


def _marked_body(template: KernelTemplate) -> Template:
    """Compile a family's file with Jinja such that each line of the output ends with its origin."""
    jinja = environment()
    jinja.loader = _MarkedMacros()
    return _marked(jinja, template.path, template.text)


def _marked(jinja: Environment, path: Path, text: str) -> Template:
    tree = parse(path, text)
    for data in tree.find_all(nodes.TemplateData):
        data.data = _marked_lines(data.data, _place(path.name, data.lineno))
    return Template.from_code(jinja, jinja.compile(tree, filename=str(path)), jinja.globals)


def _place(name: str, first: int = 1) -> Callable[[int], str]:
    return lambda line: f"{Path(name).name}:{first + line}"


def _unmarked_blanks(text: str) -> str:
    """Remove the marks from otherwise empty lines, so that consecutive ones can be merged."""
    return _ONLY_MARKS.sub("", text)


def _marked_lines(text: str, place: Callable[[int], str]) -> str:
    """Put a mark at the end of each line."""
    lines: Sequence[str] = text.split("\n")
    marked = [f"{line}{MARK % place(at)}" for at, line in enumerate(lines[:-1])]
    return "\n".join([*marked, lines[-1]])
