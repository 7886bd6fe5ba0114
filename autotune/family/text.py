"""The text of a family's file: the Jinja environment that reads it, and the files that it includes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from glob import escape, glob
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template, TemplateSyntaxError, Undefined, nodes

from autotune.autotune_runtime.activations import ACTIVATIONS, in_cpp
from autotune.errors import TemplateError, quoted
from autotune.expressions.functions import FUNCTIONS
from autotune.resources import shipped
from autotune.text_file import read_text

Body = Template
"""A family's text as compiled by Jinja."""
KEPT = 512
"""Number of parsed families, and of included files' definitions, that a process caches: several times the number of
bundled families, because with a smaller cache, loading all families would parse each of them again.
"""
MARK = "\ue000%s\ue001"
"""The line end added by `source_map`: the line's origin between two characters that don't occur in any program."""
MARKS = re.compile("\ue000([^\ue001]*)\ue001")
_MARKED = f"(?:{MARKS.pattern.replace('(', '').replace(')', '')})?"
EPILOGUE = "_epilogue.cuh"
"""The shared file that contains the hand-written activations."""
_INCLUDE = re.compile(rf'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[ \t]*{_MARKED}$', re.MULTILINE)
_IMPORT = re.compile(r'^/\*% from "([^"]+)" import\b', re.MULTILINE)
_EXPRESSION = re.compile(r"\$\{[^}]*\}")
_PRAGMA_ONCE = re.compile(rf"^#pragma once{_MARKED}\n+", re.MULTILINE)


def _finalize(value: object) -> str:
    """Format the value of `${...}`: bools as in C++; floats and None are errors."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, str, Undefined)):
        return str(value)  # converting an undefined value raises Jinja's own error
    raise TemplateError(f"prints {quoted(value)}; only whole numbers, words and true/false may be printed")


def environment() -> Environment:
    """Create the Jinja environment for kernel bodies, with shared macros and delimiters that don't occur in CUDA."""
    jinja = Environment(
        loader=FileSystemLoader(shipped("templates")),
        block_start_string="/*%",
        block_end_string="%*/",
        variable_start_string="${",
        variable_end_string="}",
        comment_start_string="/*#",
        comment_end_string="#*/",
        line_statement_prefix="//%",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        autoescape=False,  # noqa: S701 - CUDA, not HTML
    )
    jinja.globals = {**FUNCTIONS, "range": range}
    return jinja


@lru_cache(maxsize=KEPT)
def compile_body(text: str) -> Body:
    """Compile a family's file with Jinja. The result is cached, because this takes about 10 ms."""
    return environment().from_string(text)


def parse(path: Path, text: str) -> nodes.Template:
    """Parse a family's file into Jinja's tree. For a syntax error, raises TemplateError with the line."""
    try:
        return environment().parse(text)
    except TemplateSyntaxError as error:
        raise TemplateError(f"{path}: line {error.lineno}: {error.message}") from None


class Includes:
    """Included files, found and read once for all families that are loaded together."""

    def __init__(self) -> None:
        self._named: dict[tuple[str, tuple[Path, ...]], dict[str, str]] = {}
        """name and folders in order -> the files that the name may stand for"""
        self._texts: dict[str, str] = {}
        """file -> text of the file"""

    def of(self, path: Path, text: str, operation: Path) -> tuple[tuple[str, str], ...]:
        """Return the name and text of every file that a body includes or imports, directly or through other files.

        The files may be next to the family, in its operation's folder, or bundled. If an included name contains an
        expression, as in `_element_${dtype}.cuh`, all files with matching names are included.
        """
        files: dict[str, str] = {}
        shared = shipped("templates")
        folders = tuple(dict.fromkeys((path.parent, operation, shared)))  # so that a copied family finds its includes

        def visit(where: Path | str, content: str) -> None:
            for start, name, imported in _included(content):
                try:
                    named = self._files(name, (shared,) if imported else folders)
                except TemplateError as error:
                    line = content.count("\n", 0, start) + 1
                    raise TemplateError(f"{where}: line {line}: {error}") from None
                for each, file in named.items():
                    if each in files:
                        continue
                    files[each] = ""  # so that circular includes end
                    visit(file, self._text(file))
                    del files[each]
                    files[each] = self._text(file)  # inserted after the files that it includes

        visit(path, text)
        return tuple(files.items())

    def _text(self, file: str) -> str:
        """Read a file. For the shared epilogue, this appends the functions that aren't hand-written."""
        if file not in self._texts:
            text = read_text(Path(file), TemplateError)
            self._texts[file] = text + (_missing_activations(text) if Path(file).name == EPILOGUE else "")
        return self._texts[file]

    def _files(self, name: str, folders: tuple[Path, ...]) -> dict[str, str]:
        """Find the files that an include may refer to. Earlier folders hide files of the same name in later ones.

        Raises TemplateError if there is no such file.
        """
        if (name, folders) not in self._named:
            pattern = "*".join(map(escape, _EXPRESSION.split(name)))
            self._named[name, folders] = {
                each: os.path.join(folder, each)
                for folder in reversed(folders)
                for each in sorted(glob(pattern, root_dir=folder))
            }
        if not self._named[name, folders]:
            raise TemplateError(f"included file {quoted(name)} is not next to the template")
        return self._named[name, folders]


def _missing_activations(text: str) -> str:
    """Generate CUDA functions for the activations and derivatives that a text doesn't define."""
    functions = {each.word: each.expression for each in ACTIVATIONS}
    functions |= {f"{each.word}_derivative": each.derivative for each in ACTIVATIONS}
    return "".join(
        f"\n__device__ __forceinline__ float {name}(float v) {{ return {in_cpp(expression, single=True)}; }}\n"
        for name, expression in functions.items()
        if f" float {name}(float " not in text
    )


@lru_cache(maxsize=4 * KEPT)
def _included(text: str) -> tuple[tuple[int, str, bool], ...]:
    """Find a text's includes and macro imports: position, name, and whether it is an import."""
    return tuple(
        (match.start(), match.group(1), pattern is _IMPORT)
        for pattern in (_IMPORT, _INCLUDE)
        for match in pattern.finditer(text)
    )


def inline(text: str, includes: Iterable[tuple[str, str]]) -> str:
    """Replace each file's first include with the definitions that the text uses, and merge blank lines.

    Later includes of the same file are removed. Raises TemplateError for a quoted include that isn't in `includes`.
    """
    contents = dict(includes)
    done: set[str] = set()

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        if name in done:
            return ""
        if name not in contents:
            raise TemplateError(f"includes {quoted(name)}, which is not next to the template")
        done.add(name)
        content = _PRAGMA_ONCE.sub("", contents[name])
        return _INCLUDE.sub(replace, content).rstrip("\n")

    inlined = _INCLUDE.sub(replace, text)
    return re.sub(r"\n{3,}", "\n\n", without_dead_code(inlined, (contents[name] for name in done)))


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
_FUNCTION = re.compile(r"(?:__host__ )?__device__ [^(]*?(\w+)(?:<[^()]*>)?\(")
_TYPE = re.compile(r"struct (?:alignas\(.*\) )?(\w+)\b[^;]*$")


@dataclass(frozen=True, slots=True)
class _Definition:
    """A function or type at a file's outermost level, with the comment above it."""

    name: str
    text: str
    uses: frozenset[str]


def without_dead_code(text: str, included: Iterable[str]) -> str:
    """Remove definitions in included files that nothing else in the text refers to."""
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
    """Yield the names and lines of definitions. Each ends at its closing brace or, for a declaration, at the
    semicolon.
    """
    begin = at = 0  # begin: the first line of the comment and template head above a definition
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
