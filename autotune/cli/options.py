"""Options that several commands share; each is declared once and means the same everywhere."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from autotune.atomic_write import folder_named
from autotune.cli.completion import device_names, family_names, layer_names
from autotune.cli.output import name_database
from autotune.resources import RECORDED, check_writable_results, results_named
from autotune.toml_table import did_you_mean
from autotune.trial import ACCURACY_CLASSES

if TYPE_CHECKING:
    from autotune.store import Store


def database_path(context: click.Context, option: click.Parameter, name: str) -> str:
    """Resolve the name of a database, for click."""
    if option.name == "db" and is_typed("db", context):
        name_database(name)
    if name in RECORDED:
        return str(results_named(name))
    near = did_you_mean(name, RECORDED)
    if near and name.startswith("recorded") and not Path(name).suffix and not Path(name).exists():
        raise click.BadParameter(f"there are no bundled results named {name}{near}")
    return name


def writable(db: str) -> str:
    """Return the database if it may be written. Raises StoreError for a bundled one."""
    from autotune.store import path_of

    check_writable_results(path_of(db))
    return db


def open_filled(db: str) -> Store:
    """Open a results database that exists, for writing. Raises StoreError where it does not exist or is bundled."""
    from autotune.store import Store

    with Store(db, create=False):
        pass  # it exists and has results
    return Store(writable(db))


def is_typed(name: str, context: click.Context | None = None) -> bool:
    """Whether a parameter of the running command was given on the command line."""
    return (context or click.get_current_context()).get_parameter_source(name) is ParameterSource.COMMANDLINE


def one_of(flags: Mapping[str, bool]) -> str | None:
    """Which of some flags is set; one from the command line takes precedence over the settings file.

    Raises click.UsageError if several are left.
    """
    given = [name for name, is_given in flags.items() if is_given]
    if len(given) > 1:
        given = [name for name in given if is_typed(name)] or given
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(f'--{name}' for name in given)}: give one of them")
    return given[0] if given else None


def refuse_beside(flag: str, *names: str) -> None:
    """Raise click.UsageError if parameters were given that have no effect with this flag, or without one."""
    params = [param for param in click.get_current_context().command.params if param.name in names]
    typed = [
        param.opts[0] if isinstance(param, click.Option) else param.human_readable_name.strip("[]")
        for param in params
        if is_typed(str(param.name))
    ]
    if typed:
        raise click.UsageError(f"{flag}: leave {' and '.join(typed)} out, which has no effect")


class Number(click.FloatRange):
    """A float in a range; NaN is rejected."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Fails for NaN."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("nan is not a number.", param, ctx)
        return number


class Folder(click.Path):
    """A folder to write into, for click."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path. Raises StoreError for an empty name."""
        named = folder_named(value, "a folder" if param is None else param.opts[0])
        return Path(os.fsdecode(super().convert(named, param, ctx)))


DATABASE = click.option(
    "--db",
    default="autotune.db",
    show_default=True,
    envvar="AUTOTUNE_DB",
    show_envvar=True,
    callback=database_path,
    help=f"Results database: a path, a URL, or {' or '.join(RECORDED)} for bundled results.",
)
ACCURACY = click.option("--accuracy", type=click.Choice(ACCURACY_CLASSES), help="Only this accuracy class.")
FAMILIES = click.option(
    "--family",
    "only_families",
    multiple=True,
    shell_complete=family_names,
    help="Only this family; may be repeated.",
)
LAYERS = click.option(
    "--layer", "only_layers", multiple=True, shell_complete=layer_names, help="Only this layer; may be repeated."
)
DIRECTORIES = click.option(
    "--family-dir", "directories", multiple=True, type=click.Path(path_type=Path), help="A folder of kernel families."
)
JOBS = click.option("--jobs", type=click.IntRange(min=1), help="Number of parallel compilers; default: one per core.")
SECONDS = Number(min=0, min_open=True)
SHOWN_ROWS = 10
"""rows of a long answer without --all"""
ALL_ROWS = click.option("--all", "everything", is_flag=True, help=f"Print every row, not only the first {SHOWN_ROWS}.")
OF_DEVICE = click.option(
    "--device",
    shell_complete=device_names,
    help="Of this device: cuda:N, host, null, or a part of a recorded device's name, such as H200.",
)


def run_on(
    names: str = "cuda:N, host or null", default: str = "the first CUDA device, or else the host"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`--device` for a command that runs kernels; its help lists the supported devices."""
    return click.option("--device", help=f"Run on this device: {names}; default: {default}.")
