"""Find operations: bundled ones, and those declared in a user's directories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from autotune.errors import TemplateError, quoted
from autotune.expressions.typed_names import no_condition
from autotune.operation.array_declarations import is_name
from autotune.operation.operation import DATA, FILE, NUMPY_REFERENCE, REFERENCE, Operation, parse_operation
from autotune.resources import shipped
from autotune.text_file import read_text
from autotune.toml_table import did_you_mean

CONV2D = "conv2d"
"""The operation that has a typed record, `Conv2dProblem`."""
CONV = "conv"
"""The operation for convolutions of one to three dimensions, padded on either side. conv2d defines the same names for
sizes.
"""


@lru_cache
def operation(name: str) -> Operation:
    """Return a bundled operation, reading its file once.

    Raises TemplateError for a name that isn't bundled and, with the dotted key, for an invalid file.
    """
    names = _declared_in(shipped("templates"))
    if name not in names:
        raise TemplateError(f"no operation {quoted(name)}{did_you_mean(name, names)}; there are {', '.join(names)}")
    return read_operation(shipped("templates") / name)


def operations(directories: Sequence[Path] = ()) -> Mapping[str, Operation]:
    """Return every operation by name: first the bundled ones, then the operations in folders of `directories`.

    Raises TemplateError for an invalid file, and for a second operation with the same name.
    """
    found = {name: operation(name) for name in _declared_in(shipped("templates"))}
    for directory in directories:
        if (directory / FILE).exists():
            raise TemplateError(
                f"{directory / FILE}: an operation is a folder of its name below the directory of templates; "
                f"move it to {directory / 'NAME' / FILE}"
            )
        for name in _declared_in(directory):
            if name in found:
                where = found[name].folder / FILE
                raise TemplateError(f"{directory / name / FILE}: {name} is declared in {where}; remove or rename one")
            found[name] = read_operation(directory / name)
    return found


def find_operation(name: str, directories: Sequence[Path] = ()) -> Operation:
    """Return the operation with this name: a bundled one, or else the first one declared in the directories.

    Raises TemplateError if there is none.
    """
    names = _declared_in(shipped("templates"))
    if name not in names:
        for directory in directories:
            if name in _declared_in(directory):
                return read_operation(directory / name)
        names = tuple(dict.fromkeys((*names, *(each for directory in directories for each in _declared_in(directory)))))
        raise TemplateError(
            f"no operation {quoted(name)}{did_you_mean(name, names)}; there are {', '.join(names)}; "
            f"to add one, put its folder with {FILE} next to the study or into a folder given with --family-dir"
        )
    return operation(name)


def operations_here(recorded: Iterable[Operation], what: str | Path | None) -> tuple[Operation, ...]:
    """Return a results database's operations whose folders exist here, read from these folders.

    "Here" is the current directory and, if `what` is a study file's path, that file's directory. Otherwise, `what` is
    the name of a study or layer. Raises TemplateError for an invalid file.
    """
    names = dict.fromkeys(each.name for each in recorded if is_name(each.name))
    own = (name for name in names if name not in _declared_in(shipped("templates")))
    next_to_it = (Path(str(what)).parent,) if str(what).endswith(".toml") else ()
    found = {
        name: folder / name for name in own for folder in (Path(), *next_to_it) if (folder / name / FILE).is_file()
    }
    return tuple(map(read_operation, found.values()))


def _declared_in(directory: Path) -> tuple[str, ...]:
    """Return the names of folders that declare an operation."""
    return tuple(path.parent.name for path in sorted(directory.glob(f"*/{FILE}")))


def read_operation(folder: Path) -> Operation:
    """Read the operation declared in a folder. Raises TemplateError with the dotted key."""
    paths = (path for path in (folder / NUMPY_REFERENCE, folder / REFERENCE, folder / DATA) if path.exists())
    references = tuple((path.name, read_text(path, TemplateError)) for path in paths)
    found = parse_operation(folder, read_text(folder / FILE, TemplateError), references)
    numbers = found.numeric_names
    for rule in found.rules:
        if wrong := no_condition(rule.holds.expression, numbers):
            raise TemplateError(f"{rule.holds.expression.where}: {wrong}")
    return found
