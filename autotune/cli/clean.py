"""`clean`: remove compiled kernels, and give quarantined kernels another chance."""

from __future__ import annotations

import click

from autotune.api.device_names import binary_cache
from autotune.cli.options import DATABASE, writable
from autotune.escape import counted


@click.command()
@click.option("--cache", is_flag=True, help="Remove every compiled kernel.")
@click.option("--quarantine", is_flag=True, help="Let quarantined kernels run again.")
@DATABASE
def clean(cache: bool, quarantine: bool, db: str) -> None:
    """Empty the cache of compiled kernels or the quarantine.

    Without an option it shows the contents of both and removes nothing.

    A kernel is quarantined if it was running when two runs ended abnormally. autotune does not run it again under the
    same driver and toolkit.
    """
    if cache or not quarantine:
        _cache(empty=cache)
    if quarantine or not cache:
        _quarantine(db, empty=quarantine)


def _cache(*, empty: bool) -> None:
    binaries = binary_cache()
    state = binaries.state()
    if empty:
        binaries.trim(0)
    done = "removed from" if empty else "in"
    click.echo(f"{counted(state.entries, 'compiled kernel')} ({state.size_bytes / 1e6:.1f} MB) {done} {state.folder}")


def _quarantine(db: str, *, empty: bool) -> None:
    from autotune.store import Store, has_results

    if not empty and not has_results(db):
        return
    with Store(writable(db) if empty else db, create=False) as store:
        rows = store.quarantine.list()
    if empty and rows:
        with Store(db) as store:
            store.quarantine.clear()
    click.echo(f"{counted(len(rows), 'kernel')} {'released' if empty else 'quarantined'} in {db}")
    if not empty:
        for row in rows:
            click.echo(f"  {row.source_hash[:12]} on {row.device}, driver {row.driver}: {row.reason}: {row.message}")
