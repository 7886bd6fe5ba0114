"""Which options of a command were typed, not taken from a file of defaults or the environment."""

from __future__ import annotations

from collections.abc import Mapping

import click
from click.core import ParameterSource


def is_typed(name: str, context: click.Context | None = None) -> bool:
    """Whether a parameter of the running command stands on its command line."""
    return (context or click.get_current_context()).get_parameter_source(name) is ParameterSource.COMMANDLINE


def one_of(flags: Mapping[str, bool]) -> str | None:
    """Which of some flags is given; one that is typed goes before those of a file of defaults.

    Raises click.UsageError where several are left.
    """
    given = [name for name, is_given in flags.items() if is_given]
    if len(given) > 1:
        given = [name for name in given if is_typed(name)] or given
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(f'--{name}' for name in given)}: give one of them")
    return given[0] if given else None


def refuse_beside(flag: str, *names: str) -> None:
    """Raise click.UsageError where parameters that mean nothing beside a flag, or without one, are typed."""
    params = [param for param in click.get_current_context().command.params if param.name in names]
    typed = [
        param.opts[0] if isinstance(param, click.Option) else param.human_readable_name.strip("[]")
        for param in params
        if is_typed(str(param.name))
    ]
    if typed:
        raise click.UsageError(f"{flag}: leave {' and '.join(typed)} out, which would do nothing")
