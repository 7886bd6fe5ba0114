"""`cache` and `quarantine`: what the tool keeps beside the trials."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from autotune.api.device_names import binary_cache
from autotune.cli.options import DATABASE, writable
from autotune.cli.tables import Column, format_options, show
from autotune.compilation.cache import CacheState
from autotune.printable import counted

if TYPE_CHECKING:
    from autotune.store import QuarantineRow

_CACHE_COLUMNS = (
    Column[CacheState]("folder", lambda state: state.folder),
    Column[CacheState]("entries", lambda state: state.entries),
    Column[CacheState]("size_bytes", lambda state: state.size_bytes),
    Column[CacheState]("limit_bytes", lambda state: state.limit_bytes),
)


@click.command()
@click.option("--clear", is_flag=True, help="Remove every compiled kernel.")
@format_options
def cache(clear: bool, style: str | None) -> None:
    """Where the cache of compiled kernels lies, how large it is."""
    binaries = binary_cache()
    if clear:
        binaries.trim(0)
    show([binaries.state()], _CACHE_COLUMNS, style)


def _message(row: QuarantineRow) -> str:
    return row.message


_QUARANTINE_COLUMNS = (
    Column["QuarantineRow"]("source_hash", lambda row: row.source_hash),
    Column["QuarantineRow"]("device", lambda row: row.device),
    Column["QuarantineRow"]("driver", lambda row: row.driver),
    Column["QuarantineRow"]("toolkit", lambda row: row.toolkit),
    Column["QuarantineRow"]("reason", lambda row: row.reason),
    Column["QuarantineRow"]("message", _message),
    Column["QuarantineRow"]("date", lambda row: row.created_at),
)


@click.command()
@DATABASE
@click.option("--clear", is_flag=True, help="Give every quarantined kernel another chance.")
@format_options
def quarantine(db: str, clear: bool, style: str | None) -> None:
    """Kernels that took down two runs.

    They are not launched again under the same driver and toolkit.
    """
    from autotune.store import Store

    with Store(db, create=False) as store:
        rows = store.quarantine.list()
    if clear:
        with Store(writable(db)) as store:
            if rows:
                store.quarantine.clear()
        click.echo(f"{counted(len(rows), 'kernel')} released", err=True)
    show(rows, _QUARANTINE_COLUMNS, style)
