"""Reading a database that has rows which cannot be understood: without them, and with a note that names them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from autotune.errors import StoreWarning
from autotune.store.sqlite.database import Database
from autotune.store.sqlite.error_words import UnreadableRow
from autotune.store.sqlite.hidden_rows import Fault

NAMED = 5
"""rows that are named one by one"""

P = ParamSpec("P")
Answer = TypeVar("Answer")


class _HasDatabase(Protocol):
    @property
    def database(self) -> Database: ...


Self = TypeVar("Self", bound=_HasDatabase)


def reading(method: Callable[Concatenate[Self, P], Answer]) -> Callable[Concatenate[Self, P], Answer]:
    """A noun's method that only reads: asked again without the rows that cannot be understood, where it met one."""

    @wraps(method)
    def again(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        try:
            return method(self, *args, **kwargs)
        except UnreadableRow:
            if self.database.hidden or not hide_faulty_rows(self.database):
                raise
            return method(self, *args, **kwargs)

    return again


def hide_faulty_rows(database: Database) -> tuple[Fault, ...]:
    """Leave out the rows that cannot be understood from now on, and say so; these rows."""
    with database.read() as connection:
        found = tuple(database.find_faults(connection))
    hidden: dict[str, set[int]] = {}
    for fault in found:
        hidden.setdefault(fault.table, set()).add(fault.row)
    database.hidden = hidden
    for fault in found[:NAMED]:
        warnings.warn(f"{database.shown}: without {fault}", StoreWarning, stacklevel=2)
    if len(found) > NAMED:
        rest = f"{len(found) - NAMED} more rows; `autotune dump --check` lists them"
        warnings.warn(f"{database.shown}: without {rest}", StoreWarning, stacklevel=2)
    return found
