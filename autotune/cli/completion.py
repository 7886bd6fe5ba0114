"""Shell completion of studies, layers, families and devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import click

from autotune.errors import AutotuneError

if TYPE_CHECKING:
    from autotune.store import Store


def family_names(_context: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """The shipped families."""
    from autotune.family.template_files import template_files

    return _beginning(begun, template_files())


def study_names_and_files(context: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Shipped studies, those of the database, and study files and folders here."""
    from autotune.study_reader import study_names

    return _beginning(begun, (*study_names(), *_of_database(context, _studies), *_files(begun)))


def layer_names(context: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Layers of the database, with their study's name and without."""
    names = _of_database(context, _layers)
    return _beginning(begun, (*names, *(name.rpartition(".")[2] for name in names)))


def studies_and_layers(context: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Studies and layers of the database."""
    return _beginning(begun, _of_database(context, lambda store: (*_studies(store), *_layers(store))))


def device_names(context: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Devices of the database, and those of every machine."""
    return _beginning(begun, ("cuda:0", "host", "null", *_of_database(context, _devices)))


def _beginning(begun: str, names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(begun)})


def _studies(store: Store) -> Iterator[str]:
    return (row.name for row in store.studies.list())


def _layers(store: Store) -> Iterator[str]:
    return (row.name for row in store.studies.layers())


def _devices(store: Store) -> Iterator[str]:
    return (info.name for info in store.devices.list())


def _of_database(context: click.Context, names: Callable[[Store], Iterable[str]]) -> tuple[str, ...]:
    """Names in the database that is given; none where it cannot be read: a shell has nowhere to say so."""
    from autotune.store import Store

    try:
        with Store(context.params.get("db") or os.environ.get("AUTOTUNE_DB") or "autotune.db", create=False) as store:
            return tuple(names(store))
    except AutotuneError:
        return ()


def _files(begun: str) -> Iterator[str]:
    """Study files and folders that begin with the given path."""
    folder = os.path.dirname(begun)
    try:
        entries = list(os.scandir(folder or "."))
    except OSError:
        return
    for entry in entries:
        name = os.path.join(folder, entry.name)
        if entry.is_dir() and not entry.name.startswith("."):
            yield f"{name}/"
        elif entry.name.endswith(".toml"):
            yield name
