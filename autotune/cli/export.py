"""`export`: write the best kernels' sources."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.cli.answers import DATABASE, asked, undominated, with_floor
from autotune.errors import StoreError


@click.command()
@click.argument("what", metavar="LAYER|STUDY")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write into; made when missing.")
@DATABASE
@click.option("--device", "kind", type=click.Choice(["cuda", "host", "null", "replay"]), help="Tuned there only.")
@click.option("--accuracy", help="Only this accuracy class.")
def export(what: str, out: Path, db: str, kind: str | None, accuracy: str | None) -> None:
    """Write the best kernel of each layer as a `.cu` file that says where it comes from.

    Kernels tuned on a GPU come first; where a layer has none, one tuned on the host is written and marked.
    """
    from autotune.export import export_kernel
    from autotune.store import Store

    with Store(db, create=False) as store:
        rows = store.best(asked(what), kind=kind, accuracy=accuracy)
        on_gpu = {row.name for row in rows if row.row.device.kind == "cuda"}
        rows = tuple(row for row in rows if row.row.device.kind == "cuda" or row.name not in on_gpu)
        if not rows:
            raise StoreError(f"{db}: no correct trial of {what} to export; run autotune tune first")
        for row in undominated(rows):
            source = store.source(row.row.trial.source_hash or "")
            if source is None:
                raise StoreError(f"{db}: the source of {row.name} is not in the database; tune it again")
            click.echo(export_kernel(row, source, out, floor_us=with_floor(store, row).floor_us))
