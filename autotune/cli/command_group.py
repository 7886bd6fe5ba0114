"""The command group: commands under headings, defaults from a file, verbosity."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from pathlib import Path

import click

from autotune.atomic_write import SETTINGS
from autotune.bounded_io import read_text
from autotune.cli.output import set_verbosity
from autotune.errors import AutotuneError
from autotune.resources import RECORDED
from autotune.toml_table import did_you_mean, read_toml


class LoadedCommands(MutableMapping[str, click.Command]):
    """Commands by name. The module of a command is imported on first use, because importing all of them takes twice as
    long as one.
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules
        """modules of autotune.cli, by the names of their commands"""
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            module = importlib.import_module(f"autotune.cli.{self._modules[name]}")
            self[name] = next(
                one for one in vars(module).values() if isinstance(one, click.Command) and one.name == name
            )
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        command.params += [_verbosity("-v", "--verbose", 1), _verbosity("-q", "--quiet", -1)]
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


class GroupedCommands(click.Group):
    """Commands under headings. Each has `-v` and `-q`, and takes defaults from the nearest settings."""

    def __init__(
        self,
        groups: Mapping[str, Mapping[str, str]],
        *,
        old_names: Mapping[str, str],
        old_options: Mapping[str, str],
        **given: object,
    ) -> None:
        modules = {name: module for group in groups.values() for name, module in group.items()}
        super().__init__(commands=LoadedCommands(modules), **given)  # type: ignore[arg-type]  # what click.Group takes
        self._headings, self._old_names, self._old_options = groups, old_names, old_options

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by its name, or by an old name with a note. Raises click.UsageError for a removed command."""
        old = args[0]
        if old in self._old_names and not ctx.resilient_parsing:
            new = self._old_names[old]
            if new.split()[0] not in self.commands:
                ctx.fail(f"There is no `autotune {old}` any more: {new}.")
            click.echo(f"note: `autotune {old}` is now `autotune {new}`; the old name will go", err=True)
            args = [*new.split(), *args[1:]]
        name, command, rest = super().resolve_command(ctx, args)
        if command is None or ctx.resilient_parsing:
            return name, command, rest
        known = {word for param in command.params for word in param.opts}
        return name, command, [self._current_option(word, known) for word in rest]

    def _current_option(self, word: str, known: Collection[str]) -> str:
        """The word, or the option that replaces it, with a note."""
        old, equals, value = word.partition("=")
        new = self._old_options.get(old)
        if new is None or new not in known:
            return word
        click.echo(f"note: `{old}` is now `{new}`; the old name will go", err=True)
        return f"{new}{equals}{value}"

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each heading's commands with their first sentences."""
        width = max(len(name) for name in self.commands)
        for heading, names in self._headings.items():
            with formatter.section(heading):
                room = formatter.width - width - 6
                formatter.write_dl([(name, self.commands[name].get_short_help_str(room)) for name in names])

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        """Make a context with the defaults of the nearest settings; errors are ignored while a shell
        completes a word.
        """
        context = super().make_context(info_name, args, parent, **extra)
        try:
            context.obj, context.default_map = settings(self.commands, self._old_options)
        except AutotuneError:
            if not context.resilient_parsing:
                raise
        return context

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; print the errors even with `-q`."""
        try:
            return super().invoke(ctx)
        except BaseException:
            set_verbosity(0)
            raise


def _verbosity(short: str, long: str, level: int) -> click.Option:
    def chosen(context: click.Context, _option: click.Parameter, is_set: bool) -> None:
        if is_set:
            set_verbosity(level)
            if level > 0:
                context.call_on_close(lambda: _say_where(context))  # after the other options are read

    help_text = "Also print which files were used." if level > 0 else "Print only the answer and errors."
    return click.Option([short, long], is_flag=True, expose_value=False, callback=chosen, help=help_text)


def _say_where(context: click.Context) -> None:
    if context.obj is not None:
        click.echo(f"defaults of {context.obj}", err=True)
    if "db" in context.params:
        click.echo(f"database {context.params['db']}", err=True)


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
    defaults: dict[str, object] = {}
    shared = {key: value for key, value in table.items() if not isinstance(value, dict)}
    own = {key: value for key, value in table.items() if isinstance(value, dict)}
    known = {key for command in commands.values() for key in _options(command)}
    for key in (*shared, *(key for values in own.values() for key in values)):
        if new := old_options.get(f"--{key}"):
            raise SettingsError(f"{file}: {key} is now {new.removeprefix('--')}")
    for key in shared:
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
        values = {key: value for key, value in shared.items() if key in options} | own.get(name, {})
        defaults[name] = {
            str(options[key].name): _value(file, key, value, options[key]) for key, value in values.items()
        }
    return defaults


def _is_tables(value: object) -> bool:
    """Whether the value is an array of tables, `[[key]]`."""
    return isinstance(value, list) and any(isinstance(element, dict) for element in value)


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
