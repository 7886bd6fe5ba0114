"""Which options of a command were typed, not taken from a file of defaults or the environment."""

from __future__ import annotations

import click
from click.core import ParameterSource


def is_typed(name: str) -> bool:
    """Whether a parameter of the running command stands on its command line."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


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
