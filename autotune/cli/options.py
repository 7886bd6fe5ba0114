"""Options shared by several commands, with their shell completion. An option has the same meaning in every command."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from autotune.atomic_write import folder_named
from autotune.cli.output import name_database, note
from autotune.errors import AutotuneError
from autotune.resources import RECORDED
from autotune.toml_table import did_you_mean, is_whole
from autotune.trial import ACCURACY_CLASSES

if TYPE_CHECKING:
    from autotune.devices.device import DeviceInfo
    from autotune.store import Store


def family_names(_context: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Complete the names of shipped families."""
    from autotune.family.template_files import template_files

    return sorted(name for name in template_files() if name.startswith(begun))


def studies_and_layers(context: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete bundled studies, the database's studies and layers, and files, which the shell completes itself."""
    from autotune.store import Store
    from autotune.study_reader import study_names

    found = set(study_names())
    db = context.params.get("db") or os.environ.get("AUTOTUNE_DB") or "autotune.db"
    with suppress(AutotuneError), Store(db, create=False) as store:  # completion cannot show an error
        found |= {word for row in store.studies.layers() for word in (row.study, row.name, row.layer.name)}
    plain = [CompletionItem(name) for name in sorted(found) if name.startswith(begun)]
    return [*plain, CompletionItem(begun, type="file")]


def database_path(context: click.Context, option: click.Parameter, name: str) -> str:
    """Check a database's name, as a callback for click."""
    if option.name == "db" and is_typed("db", context):
        name_database(name)
    if name.startswith("recorded") and name not in RECORDED and not Path(name).suffix and not Path(name).exists():
        near = did_you_mean(name, RECORDED)
        if near:
            raise click.BadParameter(f"there are no bundled results named {name}{near}")
    return name


def open_filled(db: str) -> Store:
    """Open an existing results database for writing.

    Raises StoreError if the database is missing, empty or bundled.
    """
    from autotune.store import Store

    with Store(db, create=False):
        pass  # raises unless the database exists and has results
    return Store(db)


def is_typed(name: str, context: click.Context | None = None) -> bool:
    """Return whether a parameter of the running command was given on the command line."""
    return (context or click.get_current_context()).get_parameter_source(name) is ParameterSource.COMMANDLINE


def refuse_with(flag: str, *names: str) -> None:
    """Raise click.UsageError if one of these parameters was given although it has no effect with `flag`."""
    params = [param for param in click.get_current_context().command.params if param.name in names]
    options = [
        param.opts[0] if isinstance(param, click.Option) else param.human_readable_name.strip("[]")
        for param in params
        if is_typed(str(param.name))
    ]
    if options:
        raise click.UsageError(f"{flag}: {' and '.join(options)} has no effect; leave it out")


def numbers_of(
    expected: str, least: int, most: int, *, between: str = ",", prefix: str = ""
) -> Callable[[object], tuple[int, ...]]:
    """Return a click type for integers in a range, separated by commas or another character.

    For anything else, it raises click.BadParameter with the text `expected`. Each number may have a `prefix`.
    """

    def numbers(value: object) -> tuple[int, ...]:
        words = [word.strip().removeprefix(prefix) for word in str(value).split(between)]
        if not all(is_whole(word, least, most) for word in words):
            raise click.BadParameter(f"{str(value)!r}: expected {expected}")
        return tuple(map(int, words))

    return numbers


class Folder(click.Path):
    """A click parameter type for a folder to write to."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Convert the name of a folder to a path. Raises StoreError for an empty name."""
        named = folder_named(value, "a folder" if param is None else param.opts[0])
        return Path(os.fsdecode(super().convert(named, param, ctx)))


*_FIRST, _LAST = RECORDED
DATABASE = click.option(
    "--db",
    default="autotune.db",
    show_default=True,
    envvar="AUTOTUNE_DB",
    show_envvar=True,
    callback=database_path,
    help=f"Results database: a path, or {', '.join(_FIRST)} or {_LAST} for bundled results.",
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
    "--layer", "only_layers", multiple=True, shell_complete=studies_and_layers, help="Only this layer; may be repeated."
)
DIRECTORIES = click.option(
    "--family-dir", "directories", multiple=True, type=click.Path(path_type=Path), help="A folder of kernel families."
)
JOBS = click.option("--jobs", type=click.IntRange(min=1), help="Number of parallel compilers; default: one per core.")


class NumberRange(click.FloatRange):
    """A number in a range. click only compares numbers with the limits, so it would accept NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail with a message about the option."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


SECONDS = NumberRange(min=0, min_open=True)
SHOWN_ROWS = 10
"""maximum number of rows of a long answer without --all"""
ALL_ROWS = click.option("--all", "everything", is_flag=True, help=f"Print every row, not only the first {SHOWN_ROWS}.")
OF_DEVICE = click.option(
    "--device",
    help="Only results of this device: cuda:N, host, null, or a part of a recorded device's name, such as H200.",
)


def run_on(
    names: str = "cuda:N, host or null", default: str = "the first CUDA device, or else the host"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option `--device` for a command that runs kernels. The help text lists the supported devices."""
    return click.option("--device", help=f"Run on this device: {names}; default: {default}.")


STUDY = click.argument("study", metavar="STUDY", shell_complete=studies_and_layers)


OF_STUDY = click.option("--study", shell_complete=studies_and_layers, help="A study file or the name of a study.")


def one_device(store: Store, device: str | None) -> DeviceInfo | None:
    """Return the machine's own or recorded device that `device` refers to, or None if `device` is None.

    Raises DeviceError unless exactly one device has this name.
    """
    from autotune.api.answers import device_named

    return None if device is None else device_named(store, device, say=say_device)


def say_device(info: DeviceInfo, name: str, why: str) -> None:
    """Print on standard error which device was chosen and why."""
    remark = "; a CPU's ranking of kernels says nothing about a GPU's" if info.can.cpu else ""
    note(f"device {name}: {info.name} ({why}){remark}")
