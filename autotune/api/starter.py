"""Create the folder of a small working operation as a starting point for users."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from autotune.atomic_write import write_whole
from autotune.errors import StoreError, TemplateError, not_written, shortened
from autotune.operation.array_declarations import is_name, what_is_wrong
from autotune.operation.registry import operations
from autotune.resources import shipped
from autotune.study_reader import NAME_CHARACTERS

_FILES = {
    # file in templates/starter to the path of its copy
    "operation.toml.in": "{name}/operation.toml",
    "reference.py.in": "{name}/reference.py",
    "kernel.cu.j2.in": "{name}/{name}.cu.j2",
    "study.toml.in": "{name}.toml",
}


def new_operation(name: str, directory: Path = Path()) -> tuple[Path, ...]:
    """Write a folder with a new operation and, next to it, a study file; return the written files.

    Raises TemplateError if the name is invalid or taken, and StoreError if the files can't be written.
    """
    if not (name.isidentifier() and name.isascii()) or name.startswith("_"):
        raise TemplateError(
            f"{name!r}: expected letters, digits and _, a letter first: it becomes the name of a kernel"
        )
    if not is_name(name) or name == "main":
        raise TemplateError(what_is_wrong(name))
    if len(name) > NAME_CHARACTERS:
        raise TemplateError(f"{shortened(name)}: has {len(name)} characters: expected at most {NAME_CHARACTERS}")
    if name in operations():
        raise TemplateError(f"{name}: autotune has an operation of this name; give another")
    starter = shipped("templates") / "starter"
    written = {directory / where.format(name=name): starter / of for of, where in _FILES.items()}
    folder = directory / name
    for path in (folder, *written):
        if os.path.lexists(path):
            raise TemplateError(f"{path}: exists already; remove it or give another name")
    try:
        folder.mkdir()
    except OSError as error:
        raise StoreError(not_written(folder, error, "go to another folder")) from None
    try:
        for path, template in written.items():
            write_whole(path, template.read_bytes().replace(b"@NAME@", name.encode()), "NAME")
    except StoreError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return tuple(written)
