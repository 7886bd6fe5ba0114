"""`report`: a study's or layer's results as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.api.answers import devices_asked
from autotune.api.study_names import name_of
from autotune.cli.completion import studies_and_layers
from autotune.cli.devices import say_device
from autotune.cli.options import DATABASE, GPU, OF_DEVICE
from autotune.writing import check_writable, write_whole


@click.command()
@click.argument("what", metavar="STUDY|LAYER|NETWORK", shell_complete=studies_and_layers)
@DATABASE
@click.option("--out", type=click.Path(path_type=Path), default="report.html", show_default=True, help="The file.")
@OF_DEVICE
@GPU
@click.option("--sources/--no-sources", default=None, help="The winners' sources; default: of up to eight layers.")
def report(what: str, db: str, out: Path, device: str | None, gpu: str | None, sources: bool | None) -> None:
    """Write one HTML page of a study, a layer or a network.

    It has all that the database knows of it.

    Convergence, every trial, roofline, finals, importance, ladder, outcomes, device and the winners' sources. The file
    loads nothing from elsewhere and is the same for the same database.
    """
    from autotune.report.page import page
    from autotune.report.results import results
    from autotune.store import Store

    name = name_of(what) or what
    check_writable(out, "--out")
    with Store(db, create=False) as store:
        found = results(store, name, devices_asked(store, device, gpu, say=say_device))
    write_whole(out, page(found, sources=sources).encode(), "--out")
    click.echo(out)
