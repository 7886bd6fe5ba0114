"""The command group: commands under headings, each with the option `-q`."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping

import click

from autotune.cli.output import be_silent, note


class GroupedCommands(click.Group):
    """Lists commands under headings and adds the option `-q` to each of them.

    A command's module is imported on first use, because importing all of them takes twice as long as importing one.
    """

    def __init__(
        self,
        groups: Mapping[str, Mapping[str, str]],
        *,
        old_names: Mapping[str, str],
        old_options: Mapping[str, str],
        **given: object,
    ) -> None:
        super().__init__(**given)  # type: ignore[arg-type]  # what click.Group takes
        self._headings, self._old_names, self._old_options = groups, old_names, old_options
        self._modules = {name: module for group in groups.values() for name, module in group.items()}

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the commands in the same order as under the headings."""
        return list(self._modules)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """Return a command with the option `-q`."""
        if name in self._modules and name not in self.commands:
            module = importlib.import_module(f"autotune.cli.{self._modules[name]}")
            command = next(one for one in vars(module).values() if isinstance(one, click.Command) and one.name == name)
            command.params.append(_quiet())
            self.commands[name] = command
        return self.commands.get(name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by name. For an old name, print a note. Raises click.UsageError if the command was removed."""
        old = args[0]
        if old in self._old_names and not ctx.resilient_parsing:
            new = self._old_names[old]
            if new.split()[0] not in self._modules:
                ctx.fail(f"`autotune {old}` no longer exists: {new}.")
            note(f"note: `autotune {old}` is now `autotune {new}`; the old name will be removed")
            args = [*new.split(), *args[1:]]
        name, command, rest = super().resolve_command(ctx, args)
        if command is None or ctx.resilient_parsing:
            return name, command, rest
        known = {word for param in command.params for word in param.opts}
        return name, command, [self._current_option(ctx, word, known) for word in rest]

    def _current_option(self, ctx: click.Context, word: str, known: Collection[str]) -> str:
        """Return the word or, after printing a note, the option that replaces it.

        Raises click.UsageError for a removed option.
        """
        old, equals, value = word.partition("=")
        new = self._old_options.get(old)
        if new is not None and " " in new:
            ctx.fail(f"`{old}` no longer exists: {new}.")
        if new is None or new not in known:
            return word
        note(f"note: `{old}` is now `{new}`; the old name will be removed")
        return f"{new}{equals}{value}"

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each heading's commands with the first sentence of their help."""
        width = max(map(len, self._modules))
        for heading, names in self._headings.items():
            with formatter.section(heading):
                commands = [(name, self.get_command(ctx, name)) for name in names]
                help_width = formatter.width - width - 6
                formatter.write_dl(
                    [(name, command.get_short_help_str(help_width)) for name, command in commands if command]
                )

    def invoke(self, ctx: click.Context) -> object:
        """Run a command. Its errors are printed even with `-q`."""
        try:
            return super().invoke(ctx)
        except BaseException:
            be_silent(silent=False)
            raise


def _quiet() -> click.Option:
    def chosen(_context: click.Context, _option: click.Parameter, is_set: bool) -> None:
        if is_set:
            be_silent()

    help_text = "Print only the answer and errors."
    return click.Option(["-q", "--quiet"], is_flag=True, expose_value=False, callback=chosen, help=help_text)
