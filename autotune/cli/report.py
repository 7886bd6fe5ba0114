"""`report`: write the results for a study, a layer or a network to one HTML page."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from autotune.api.answers import devices_asked
from autotune.api.study_names import name_of
from autotune.atomic_write import check_writable, write_whole
from autotune.cli.options import (
    DATABASE,
    OF_DEVICE,
    say_device,
    studies_and_layers,
)
from autotune.cli.output import exact


@click.command()
@click.argument("what", metavar="STUDY|LAYER|NETWORK", shell_complete=studies_and_layers)
@DATABASE
@click.option(
    "--out",
    type=click.Path(path_type=Path, allow_dash=True),
    default="report.html",
    show_default=True,
    help="The HTML file to write; - for standard output.",
)
@OF_DEVICE
def report(what: str, db: str, out: Path, device: str | None) -> None:
    """Write one HTML page about a study, a layer or a network.

    The page shows convergence, every trial, the roofline, finals, parameter importance, the ladder, outcomes and the
    device. It doesn't load anything from the network. The same database always gives the same bytes.
    """
    from autotune.report.page import page
    from autotune.report.results import results
    from autotune.store import Store

    name = name_of(what) or what
    piped = str(out) == "-"
    if not piped:
        check_writable(out, "--out")
    with Store(db, create=False) as store:
        content = results(store, name, devices_asked(store, device, say=say_device))
    text = page(content)
    if piped:
        exact(sys.stdout).buffer.write(text.encode())
        return
    write_whole(out, text.encode(), "--out")
    click.echo(out)
