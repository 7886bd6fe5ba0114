"""Find, load and check kernel families: `.cu.j2` files, either bundled or in users' folders."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from jinja2 import meta, nodes

from autotune.errors import TemplateError, quoted
from autotune.expressions.functions import FUNCTIONS
from autotune.family.template import HEADER, SUFFIX, KernelTemplate
from autotune.family.template_header import HeaderReader, header_toml
from autotune.family.text import KEPT, Includes, parse
from autotune.operation.operation import FILE, Operation
from autotune.operation.registry import CONV2D, operation, operations, operations_here, read_operation
from autotune.resources import shipped
from autotune.text_file import read_text
from autotune.toml_table import did_you_mean
from autotune.trial import Value

_OPENED = re.compile(r"\s*/\*#\s*kernel\b")


@dataclass(frozen=True, slots=True)
class FamilyFile:
    """A family's file and operation. Several operations may share a file."""

    name: str
    path: Path
    operation: Operation


def template_files(directories: Sequence[Path] = (), more: Sequence[Operation] = ()) -> Mapping[str, FamilyFile]:
    """Return families' files by name: first bundled families, then families in `directories`, then the families of
    `more`.

    An operation's families are in a folder with the operation's name; files directly in a directory belong to conv2d. A
    family that an operation borrows through its key `families` is called OPERATION_NAME.

    Raises TemplateError if a directory doesn't exist or contains families of an unknown operation, or if two families
    or two operations have the same name.
    """
    declared = operations(directories)
    found: list[FamilyFile] = []
    for directory in (shipped("templates"), *directories):
        if not directory.is_dir():
            raise TemplateError(f"{directory}: no such directory of templates")
        if directory != shipped("templates"):
            _refuse_unknown(directory, declared)
        found += _families_in(directory, declared[CONV2D])
        for each in declared.values():
            found += _families_in(directory / each.name, each)
    for each in more:
        if each.name not in declared:
            found += _families_in(each.folder, each)
    files: dict[str, FamilyFile] = {}
    for file in found:
        if file.name in files:
            other = files[file.name].path
            raise TemplateError(f"{file.path}: a family named {file.name!r} exists already in {other}; rename the file")
        if not file.name.startswith("_") and file.name != "dispatch":
            files[file.name] = file
    return files


def _families_in(folder: Path, serves: Operation) -> list[FamilyFile]:
    """Find an operation's families in a folder, including borrowed ones if it is the operation's own folder.

    Raises TemplateError if a borrowed family isn't bundled.
    """
    files = {path.name.removesuffix(SUFFIX): path for path in folder.glob(f"*{SUFFIX}")}
    for shared in serves.families if folder == serves.folder else ():
        path = shipped("templates") / f"{shared}{SUFFIX}"
        if not re.fullmatch(r"\w+/\w+", shared) or not path.is_file():
            raise TemplateError(f"{folder / FILE}: families: no bundled family {quoted(shared)}; write OPERATION/NAME")
        files[f"{serves.name}_{path.name.removesuffix(SUFFIX)}"] = path
    return [FamilyFile(name, path, serves) for name, path in sorted(files.items())]


def _refuse_unknown(directory: Path, declared: Mapping[str, Operation]) -> None:
    """Raise TemplateError for families of an operation that is neither bundled nor declared in its folder."""
    for path in sorted(directory.glob(f"*/*{SUFFIX}")):
        folder = path.parent
        if folder.name.startswith(".") or (folder / FILE).exists() or folder.name in operations():
            continue
        near = did_you_mean(folder.name, declared)
        raise TemplateError(
            f"{folder}: no operation {folder.name!r}{near}; declare it in {folder / FILE}, or put families of "
            f"{CONV2D} into {directory}, and families of another operation into a folder with its name"
        )


def operation_of(folder: Path) -> Operation:
    """Return the operation that a folder's families belong to: the one that it declares or is named after, or else
    conv2d.
    """
    if (folder / FILE).exists():
        return read_operation(folder)
    name = folder.name
    return operation(name if name in operations() else CONV2D)


def load_templates(
    directories: Sequence[Path] = (), more: Sequence[Operation] = (), *, of: Collection[str] | None = None
) -> Mapping[str, KernelTemplate]:
    """Load and check the families found by `template_files`, and return them by name.

    `of` contains the operations whose families are loaded; None loads all families.
    """
    includes, files = Includes(), template_files(directories, more)
    return {name: _load(file, includes) for name, file in files.items() if of is None or file.operation.name in of}


def load_recorded_templates(
    directories: Sequence[Path], recorded: Iterable[Operation], what: str | Path | None
) -> Mapping[str, KernelTemplate]:
    """Load the families of all operations declared in a results database. For `what`, see `operations_here`."""
    declared = tuple(dict.fromkeys(recorded))
    return load_templates(directories, operations_here(declared, what), of={each.name for each in declared})


def load_template(file: FamilyFile | Path) -> KernelTemplate:
    """Load one family. If it is given by path, it belongs to the operation of its folder.

    Raises TemplateError with the line (syntax, body) or the dotted key (header).
    """
    if isinstance(file, Path):
        file = FamilyFile(file.name.removesuffix(SUFFIX), file, operation_of(file.parent))
    return _load(file, Includes())


def _load(file: FamilyFile, includes: Includes) -> KernelTemplate:
    """Load a family. `includes` caches the files included by other families."""
    text = read_text(file.path, TemplateError)
    template = _family(file.name, file.path, text, file.operation)
    included = includes.of(file.path, text, file.operation.folder)
    return replace(template, operation=file.operation, includes=included)  # with the current reference


def default_values(file: FamilyFile) -> dict[str, Value]:
    """Read each parameter's default from the header, which takes a tenth of the time of `load_template`."""
    match = HEADER.match(read_text(file.path, TemplateError))
    if match is None:
        raise TemplateError(f"{file.path}: the header cannot be read")
    reader = HeaderReader(file.path, header_toml(file.path, match.group(1), 0), file.operation)
    return {param.name: param.values[0] for param in reader.params()}


@lru_cache(maxsize=KEPT)
def _family(name: str, path: Path, text: str, declared: Operation) -> KernelTemplate:
    """Parse a family without its included files. The result is cached by text, because this takes about 15 ms."""
    match = HEADER.match(text)
    if match is None or re.search(r"^(constexpr|extern|#include)\b", match.group(1), re.MULTILINE):
        if not _OPENED.match(text):
            raise TemplateError(f"{path}: line 1: expected the header, a comment that starts with /*# kernel")
        raise TemplateError(f"{path}: line 1: the header is not closed; put #*/ on a line between it and the body")
    reader = HeaderReader(path, header_toml(path, match.group(1), text[: match.start(1)].count("\n")), declared)
    template = replace(reader.build(text), name=name)
    reader.check_conditions(template)
    reader.check_params_used(template, check_body(template))
    return template


def check_body(template: KernelTemplate) -> Set[str]:
    """Check a body for text that Jinja would misread, undeclared names, and run-time sizes used as constants.

    Returns the names that the body uses.
    """
    body_starts = template.text.count("\n", 0, template.text.index("#*/")) + 2
    for number, line in enumerate(template.text.splitlines()[body_starts - 1 :], body_starts):
        if re.search(r"\$\{([-+]|[^}]*[-+]\})", line):
            raise TemplateError(
                f"{template.path}: line {number}: a sign at the edge of ${{...}} is whitespace control to Jinja, "
                f"which drops it; write ${{0 - name}} or put the sign outside"
            )
        if re.match(r"\s*//%.*//", line):
            raise TemplateError(
                f"{template.path}: line {number}: // after a line statement is floor division to Jinja; "
                f"put the note on a line of its own, or the division into [derived]"
            )
    tree = parse(template.path, template.text)
    runtime = template.operation.runtime
    of_runtime = template.changing
    allowed = {
        *template.operation.names,
        *template.optional_words,
        *(param.name for param in template.params),
        *(name for name, _ in template.derived),
        *FUNCTIONS,
        "range",
    } - of_runtime
    names = meta.find_undeclared_variables(tree)
    for name in sorted(names - allowed):
        at = next((node.lineno for node in tree.find_all(nodes.Name) if node.name == name), 0)
        not_constant = "is not a constant: a kernel takes it at run time, as an argument"
        if name in runtime:
            what = f"{name} {not_constant}"
        elif name in of_runtime:
            what = f"{name!r} follows from {' or '.join(runtime)}, which {not_constant}"
        else:
            what = f"undeclared name {quoted(name)}{did_you_mean(name, allowed)}"
        raise TemplateError(f"{template.path}: line {at}: {what}")
    return names
