"""Where each line of a rendered text is written: a line of the family's file, or of a file that it includes.

The text itself says nothing of it, since it is read by people and hashed. It is rendered once more from a template
whose lines end in a mark, by the very steps that made it, when somebody asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from jinja2 import BaseLoader, Environment, Template, nodes

from autotune.bounded_io import read_text
from autotune.devices.device import DeviceInfo
from autotune.errors import AutotuneError, TemplateError
from autotune.family.comments import MARK, MARKS
from autotune.family.render import visible_names
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.family.text import environment, inline, parse
from autotune.resources import shipped

_LINE = re.compile(r"\bkernel\.cu(?::(\d+)(?::\d+)?|\((\d+)\))")
_WORDS = re.compile(r"\bline (\d+)")  # of a barrier, in the words of the host device
_ONLY_MARKS = re.compile(f"^(?:{MARKS.pattern})+$", re.MULTILINE)


def with_source_lines(message: str, template: KernelTemplate, source: KernelSource, device: DeviceInfo) -> str:
    """What a compiler, a sanitizer or a device said of `kernel.cu`, with the lines of the files that people edit.

    `kernel.cu:12` becomes `kernel.cu:12 (FAMILY.cu.j2:34)`. A line that was not found is left as it is.
    """
    if not _LINE.search(message) and not _WORDS.search(message):
        return message
    found = origins(template, source, device)

    def extended(match: re.Match[str]) -> str:
        line = int(next(filter(None, match.groups())))
        origin = found[line - 1] if 0 < line <= len(found) else ""
        return f"{match[0]} ({origin})" if origin else match[0]

    told = _LINE.sub(extended, message)
    return told if told != message else _WORDS.sub(extended, message)


def origins(template: KernelTemplate, source: KernelSource, device: DeviceInfo) -> tuple[str, ...]:
    """`FILE:LINE` for each line of a rendered text, empty where none is known; nothing where it cannot be told.

    That is where the family renders another text by now.
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
    """Loads what a family imports, each line marked as the family's own are."""

    def load(self, environment: Environment, name: str, *_: object, **__: object) -> Template:
        path = shipped("templates") / name
        return _marked(environment, path, read_text(path, TemplateError))


def _marked_body(template: KernelTemplate) -> Template:
    """The family's file as Jinja's code, in whose output each line ends in where it is written."""
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
    """The text with no mark in lines that have nothing else, since runs of such lines become one."""
    return _ONLY_MARKS.sub("", text)


def _marked_lines(text: str, place: Callable[[int], str]) -> str:
    """The text with a mark before each line's end."""
    lines: Sequence[str] = text.split("\n")
    marked = [f"{line}{MARK % place(at)}" for at, line in enumerate(lines[:-1])]
    return "\n".join([*marked, lines[-1]])
