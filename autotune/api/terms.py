"""Errors in the caller's terms: shared code names the command line's options, and Python callers have arguments."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection
from typing import ParamSpec, TypeVar

from autotune.errors import AutotuneError

P = ParamSpec("P")
R = TypeVar("R")

_OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
_COMMAND = re.compile(r"`autotune (tune|export)\b[^`]*`")
_SHELL = re.compile(r"(`[^`]*`)")
"""a shell command, in which options stay as they are"""
_PLURALS = {"family": "families", "family_dir": "templates"}


def in_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that its AutotuneErrors name its arguments instead of the command line's options."""
    names = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def called(*given: P.args, **named: P.kwargs) -> R:
        try:
            return function(*given, **named)
        except AutotuneError as error:
            error.args = (arguments_for_options(str(error), names),)
            raise

    return called


def arguments_for_options(message: str, names: Collection[str]) -> str:
    """The message with `device` for `--device`, `layers` for `--layer`, and `autotune.tune` for `autotune tune`."""
    parts = _SHELL.split(_COMMAND.sub(r"autotune.\1", message))
    parts[::2] = [_OPTION.sub(lambda found: _argument(found, names), part) for part in parts[::2]]
    return "".join(parts)


def _argument(option: re.Match[str], names: Collection[str]) -> str:
    name = option[1].replace("-", "_")
    if name in _PLURALS and _PLURALS[name] in names:
        return _PLURALS[name]
    if name.startswith("no_") and name[3:] in names:
        return f"{name[3:]}=False"
    return next((one for one in (name, f"{name}s") if one in names), name)
