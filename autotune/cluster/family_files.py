"""Send a user's families to a worker as the texts of their files, and load them there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath

from autotune.cluster.task import LayerTask
from autotune.errors import StudyError
from autotune.family.template import SUFFIX, KernelTemplate
from autotune.family.template_files import load_templates
from autotune.operation.operation import FILE
from autotune.operation.registry import CONV2D, operations
from autotune.resources import shipped
from autotune.tempdirs import temporary_folder


def texts_of(families: Mapping[str, KernelTemplate]) -> Mapping[str, str]:
    """The files of a user's own families and operations, name to text, as in a folder of families.

    Raises StudyError if two different files would have the same name.
    """
    texts: dict[str, str] = {}
    for family in families.values():
        operation = family.operation
        bundled = family.path.is_relative_to(shipped("templates"))
        files = [] if bundled else [(f"{family.name}{SUFFIX}", family.text), *family.includes]
        if operation.name not in operations():
            files += [(FILE, operation.text), *operation.references]
        for name, text in files:
            where = name if operation.name == CONV2D else f"{operation.name}/{name}"
            if texts.setdefault(where, text) != text or "/" in name:
                raise StudyError(f"{family.path}: {name}: workers get one folder of files; give each a name of its own")
    return texts


def families_of(task: LayerTask) -> Mapping[str, KernelTemplate]:
    """Load the families of a task. Raises StudyError if they differ from those of `tune`."""
    with temporary_folder() as folder:
        for name, text in task.files.items():
            path = Path(folder, *(Path(part).name for part in PurePath(name).parts[-2:]))
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        families = load_templates([Path(folder)] if task.files else [])
    for name, expected in task.families.items():
        if name not in families or families[name].hash != expected:
            raise StudyError(
                f"{task.study.name}: the family {name} differs between `tune` and this worker; install the same "
                f"version of autotune on both"
            )
    return families
