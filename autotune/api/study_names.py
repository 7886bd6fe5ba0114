"""Find a study: a `Study` built in Python, a file, or the name of a bundled or stored study."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from autotune.errors import StoreError, StudyError
from autotune.operation.registry import find_operation
from autotune.study import Study
from autotune.study_reader import find_study, load_study, parse_study, shipped_study, study_names
from autotune.study_writer import known_to, written

if TYPE_CHECKING:
    from autotune.problem import Layer
    from autotune.store import LayerRow, Store, StudyRow


def as_study(study: Study | str | Path, db: str | Path, directories: Sequence[Path] = ()) -> Study:
    """Return a study as if it had been read from its file.

    For a study built in Python, this checks it and generates its text. Its operations may be bundled, in `directories`,
    or next to the study file. Raises StudyError.
    """
    if not isinstance(study, Study):
        return study_named(str(study), db, directories)
    if study.text and replace(parse_study(study.text, study.name, find=known_to(study)), path=study.path) == study:
        return study
    return written(study)  # after dataclasses.replace the text may describe another study


def study_named(name: str, db: str | Path, directories: Sequence[Path] = ()) -> Study:
    """Return a study given as a file or as the name of a bundled or stored study.

    Its operations may be bundled, in `directories`, or next to the study file (for a stored study, in the current
    folder). Raises StudyError if there is no such study.
    """
    try:
        file = find_study(name)
    except StudyError:
        stored = next((row for row in reversed(stored_studies(db)) if row.name == name), None)
        if stored is None:
            raise
        find = partial(find_operation, directories=(*directories, Path()))
        study = parse_study(stored.text, name, f"study {name} of {db}", find)
        if study.name != name:
            raise StudyError(f"{name}: {db} keeps the file of {study.name} for it; give the file") from None
        return study
    return load_study(file, directories)


def stored_studies(db: str | Path) -> tuple[StudyRow, ...]:
    """Return every generation of the database's studies, oldest first, or nothing if there is no database."""
    from autotune.store import Store, has_results

    if not has_results(db):
        return ()
    with Store(db, create=False) as store:
        return store.studies.list()


def check_layer_names(layers: Collection[str], stored: Sequence[LayerRow], what: str | None, db: str) -> None:
    """Raise StoreError if a name doesn't belong to any of the study's stored layers."""
    for name in layers:
        if not any(matches(row.name, (name,)) for row in stored):
            known = ", ".join(row.layer.name for row in stored)
            raise StoreError(f"--layer {name}: {db} has no such layer of {what}; it has {known}")


def matches(name: str, layers: Collection[str]) -> bool:
    """Return whether a layer (`study.layer`) is among the named ones. Without names, every layer is. Names may omit the
    study.
    """
    return not layers or name in layers or name.rpartition(".")[2] in layers


def name_of(what: Study | str | Path | None, directories: Sequence[Path] = ()) -> str | None:
    """Return the name of a study or layer. For a study file or a bundled study, it is the name declared in the file.

    This is called before a database is opened. Operations may be bundled, in `directories`, or next to the study file.
    """
    if what is None:
        return None
    if isinstance(what, Study):
        return what.name
    name = str(what)
    if name.endswith(".toml"):
        return load_study(find_study(name), directories).name
    study, _, layer = name.rpartition(".")
    shipped = study_names()
    if name in shipped:
        return shipped_study(name).name
    return f"{shipped_study(study).name}.{layer}" if study in shipped else name


NamedLayers: TypeAlias = "Sequence[tuple[Study, Layer]]"
"""Layers, each with its study."""


def named_layers(store: Store, what: str) -> NamedLayers:
    """Return the layers that `what` refers to: FILE.toml, FILE.toml.LAYER, a name in the database, or a bundled study.

    Raises StudyError if a study file can't be read or doesn't contain the layer.
    """
    from autotune.analysis.networks import stored_study

    stem, _, layer = what.rpartition(".")
    known = {name for row in store.studies.layers() for name in (row.name, row.layer.name, row.study)}
    named = next((name for name in (what, stem) if name.endswith(".toml") or name in study_names()), None)
    if named is None or (what in known and not named.endswith(".toml")):
        rows = store.studies.layers(what)
        studies = {name: stored_study(store, name) for name in {row.study for row in rows}}
        return [(studies[row.study], row.layer) for row in rows]
    study = load_study(find_study(named))
    chosen = [one for one in study.layers if named == what or one.name == layer]
    if not chosen:
        names = ", ".join(one.name for one in study.layers)
        raise StudyError(f"{what}: {study.name} has no layer {layer!r}; it has {names}")
    return [(study, one) for one in chosen]
