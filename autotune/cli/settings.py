"""Defaults of options in a file: `[tool.autotune]` of pyproject.toml, or autotune.toml, here or in a folder above.

db = "results.db"       # of every command that has the option
[tune]
device = "cuda:0"       # of one command
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from autotune.atomic_write import SETTINGS
from autotune.bounded_io import read_text
from autotune.errors import AutotuneError
from autotune.resources import RECORDED
from autotune.toml_table import did_you_mean, read_toml

_PROJECT = "pyproject.toml"
_PATHS = ("db", "family-dir")
"""options that are paths, relative to the file"""


class SettingsError(AutotuneError):
    """A file with defaults cannot be read or has a key that no option has."""


def settings(
    commands: Mapping[str, click.Command], old_options: Mapping[str, str]
) -> tuple[Path | None, dict[str, object]]:
    """The nearest file with defaults, and click's default map of it. Raises SettingsError, also for an old option."""
    for file, table in _tables():
        return file, _default_map(file, table, commands, old_options)
    return None, {}


def _tables() -> Iterator[tuple[Path, Mapping[str, object]]]:
    """The files that have defaults, nearest first."""
    try:
        here = Path.cwd()
    except OSError:  # the folder was removed
        return
    for folder in (here, *here.parents):
        own, project = folder / SETTINGS, folder / _PROJECT
        if os.path.lexists(own) and not os.path.isdir(own):  # also a dangling link or a pipe, which the reader reports
            yield own, _content(own)
        elif os.path.isfile(project):
            tool = _content(project).get("tool")
            table = tool.get("autotune") if isinstance(tool, dict) else None
            if isinstance(table, dict):
                yield project, table


def _content(file: Path) -> Mapping[str, object]:
    return read_toml(read_text(file, SettingsError), SettingsError, str(file)).content


def _default_map(
    file: Path, table: Mapping[str, object], commands: Mapping[str, click.Command], old_options: Mapping[str, str]
) -> dict[str, object]:
    if file.name == SETTINGS and ("op" in table or _is_tables(table.get("layer"))):
        raise SettingsError(f"{file}: looks like a study, but a file of this name holds defaults of options; rename it")
    found: dict[str, object] = {}
    every = {key: value for key, value in table.items() if not isinstance(value, dict)}
    own = {key: value for key, value in table.items() if isinstance(value, dict)}
    known = {key for command in commands.values() for key in _options(command)}
    for key in (*every, *(key for words in own.values() for key in words)):
        if new := old_options.get(f"--{key}"):
            raise SettingsError(f"{file}: {key} is now {new.removeprefix('--')}")
    for key in every:
        if key not in known:
            raise SettingsError(f"{file}: {key}: no command has this option{did_you_mean(key, known)}")
    for key in own:
        if key not in commands:
            raise SettingsError(f"{file}: [{key}]: no such command{did_you_mean(key, commands)}")
    for name, command in commands.items():
        options = _options(command)
        for key in own.get(name, {}):
            if key not in options:
                raise SettingsError(f"{file}: {name}.{key}: no such option{did_you_mean(key, options)}")
        words = {key: value for key, value in every.items() if key in options} | own.get(name, {})
        found[name] = {str(options[key].name): _value(file, key, value, options[key]) for key, value in words.items()}
    return found


def _is_tables(value: object) -> bool:
    """Whether the value is an array of tables, `[[key]]`."""
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)


def _options(command: click.Command) -> dict[str, click.Option]:
    """The options of a command without their dashes."""
    return {
        word.removeprefix("--"): param
        for param in command.params
        if isinstance(param, click.Option) and param.name is not None
        for word in param.opts
        if word.startswith("--")
    }


def _value(file: Path, key: str, value: object, option: click.Option) -> object:
    """A default in the form that click expects: a list for an option that may be repeated, a path relative to the file.

    Raises SettingsError for an invalid value.
    """
    if option.multiple:
        return [_typed(file, key, word, option) for word in (value if isinstance(value, list) else [value])]
    return _typed(file, key, value, option)


def _typed(file: Path, key: str, value: object, option: click.Option) -> object:
    word = _word(file, key, value)
    if option.is_flag and not isinstance(word, bool):
        raise SettingsError(f"{file}: {key}: expected true or false")
    try:
        option.type.convert(word, option, None)
    except click.BadParameter as error:
        raise SettingsError(f"{file}: {key}: {error.message}") from None
    return word


def _word(file: Path, key: str, value: object) -> object:
    if not isinstance(value, str | int | float) or value in (math.inf, -math.inf) or value != value:
        raise SettingsError(f"{file}: {key}: expected a word, a number or a flag, and a list where it can be repeated")
    if key == "db" and not isinstance(value, str):
        raise SettingsError(f"{file}: {key}: expected a path")
    if key in _PATHS and isinstance(value, str) and value not in RECORDED and "://" not in value:
        return str(file.parent / value)
    return value
