"""`report`: a study's or layer's results as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.cli.answers import DATABASE, asked
from autotune.cli.files import check_folder, write_whole
from autotune.devices.device import devices_named
from autotune.errors import DeviceError


@click.command()
@click.argument("what", metavar="STUDY|LAYER|NETWORK")
@DATABASE
@click.option("--out", type=click.Path(path_type=Path), default="report.html", show_default=True, help="The file.")
@click.option("--device", help="Only what was measured on devices with this in their names.")
@click.option("--sources/--no-sources", default=None, help="The winners' sources; default: of up to eight layers.")
def report(what: str, db: str, out: Path, device: str | None, sources: bool | None) -> None:
    """Write one HTML page of all that the database knows of STUDY, STUDY.LAYER or a network's study.

    Convergence, every trial, roofline, finals, importance, ladder, outcomes, device and the winners' sources. The file
    loads nothing from elsewhere and is the same for the same database.
    """
    from autotune.report.page import page
    from autotune.report.results import results
    from autotune.store import Store

    name = asked(what) or what
    check_folder(out, "--out")
    with Store(db, create=False) as store:
        recorded = store.devices.list()
        devices = None if device is None else devices_named(device, recorded)
        if devices == []:
            names = ", ".join(info.name for info in recorded) or "none"
            raise DeviceError(f"{device}: no recorded device of this name: {names}")
        found = results(store, name, devices)
    write_whole(out, page(found, sources=sources).encode(), "--out")
    click.echo(out)
