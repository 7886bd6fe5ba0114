"""Find a study by name: one built in Python, a file, or the name of a shipped or a stored study."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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
    """A study as its file would declare it: one built in Python is checked and gets its text.

    Its operations are bundled, or in `directories`, or next to its file. Raises StudyError.
    """
    if not isinstance(study, Study):
        return study_named(str(study), db, directories)
    if study.text and replace(parse_study(study.text, study.name, find=known_to(study)), path=study.path) == study:
        return study
    return written(study)  # after dataclasses.replace the text may be another study's


def study_named(name: str, db: str | Path, directories: Sequence[Path] = ()) -> Study:
    """A study's file, a shipped study, or a stored study of this name. Raises StudyError if there is none.

    Its operations are bundled, or in `directories`, or next to its file (for a stored study, in the current folder).
    """
    try:
        file = find_study(name)
    except StudyError:
        stored = next((row for row in reversed(stored_studies(db)) if row.name == name), None)
        if stored is None:
            raise
        if not stored.text:
            raise StudyError(f"{name}: {db} has its results but not its file; give the file") from None
        study = parse_study(
            stored.text, name, f"study {name} of {db}", partial(find_operation, directories=(*directories, Path()))
        )
        if study.name != name:
            raise StudyError(f"{name}: {db} keeps the file of {study.name} for it; give the file") from None
        return study
    return load_study(file, directories)


def stored_studies(db: str | Path) -> tuple[StudyRow, ...]:
    """Every generation of the database's studies, oldest first; empty if there is no database."""
    from autotune.store import Store, has_results

    if not has_results(db):
        return ()
    with Store(db, create=False) as store:
        return store.studies.list()


def check_layer_names(layers: Collection[str], stored: Sequence[LayerRow], what: str | None, db: str) -> None:
    """Raise StoreError for a layer name that no stored layer of the study has."""
    for name in layers:
        if not any(matches(row.name, (name,)) for row in stored):
            known = ", ".join(row.layer.name for row in stored)
            raise StoreError(f"--layer {name}: {db} has no such layer of {what}; it has {known}")


def matches(name: str, layers: Collection[str]) -> bool:
    """Whether a layer, `study.layer`, is among the named ones, with or without their study; without names all are."""
    return not layers or name in layers or name.rpartition(".")[2] in layers


def name_of(what: Study | str | Path | None) -> str | None:
    """A study's or layer's name; for a study file its own name, and for a shipped study the name that `studies` lists.

    Called before a database is opened.
    """
    if what is None:
        return None
    if isinstance(what, Study):
        return what.name
    name = str(what)
    if name.endswith(".toml"):
        return load_study(find_study(name)).name
    study, _, layer = name.rpartition(".")
    shipped = study_names()
    if name in shipped:
        return shipped_study(name).name
    return f"{shipped_study(study).name}.{layer}" if study in shipped else name


NamedLayers: TypeAlias = "Sequence[tuple[Study, Layer]]"
"""Layers with their studies."""


def layers_of_file(what: str | None) -> NamedLayers:
    """The layers that FILE.toml or FILE.toml.LAYER names; empty for other words. Read before a database is opened."""
    return _layers_of_study(what, lambda name: name.endswith(".toml"))


def named_layers(store: Store, what: str | None) -> NamedLayers:
    """The layers that `what` names: layers of the database, or else of a shipped study."""
    from autotune.analysis.networks import stored_study

    known = {name for row in store.studies.layers() for name in (row.name, row.layer.name, row.study)}
    of_shipped = () if what in known else _layers_of_study(what, lambda name: name in study_names())
    if of_shipped:
        return of_shipped
    rows = store.studies.layers(what)
    studies = {name: stored_study(store, name) for name in {row.study for row in rows}}
    return [(studies[row.study], row.layer) for row in rows]


def _layers_of_study(what: str | None, is_study: Callable[[str], bool]) -> NamedLayers:
    """The layers of a study file that STUDY or STUDY.LAYER names; empty if there is no such file.

    Raises StudyError if the file cannot be read or has no such layer.
    """
    if what is None:
        return ()
    stem, _, layer = what.rpartition(".")
    study = what if is_study(what) else stem
    if not is_study(study):
        return ()
    loaded = load_study(find_study(study))
    chosen = [one for one in loaded.layers if study == what or one.name == layer]
    if not chosen:
        names = ", ".join(one.name for one in loaded.layers)
        raise StudyError(f"{what}: {loaded.name} has no layer {layer!r}; it has {names}")
    return [(loaded, one) for one in chosen]
