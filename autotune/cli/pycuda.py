"""`pycuda`: PyCUDA built against CUDA's Python wheels."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.cli.options import Folder
from autotune.devices.pycuda_build import TOOLKIT, build_pycuda


@click.command()
@click.option("--wheels", type=Folder(file_okay=False), help="Put its wheel there; install nothing.")
def pycuda(wheels: Path | None) -> None:
    """Build PyCUDA against CUDA's Python wheels, and install it.

    It comes as source. --wheels FOLDER is for machines without a compiler, of the same Python and system.

    It takes about two minutes, a C++ compiler and CUDA's wheels, but no toolkit, driver or GPU.
    """
    build_pycuda(wheels)
    if wheels:
        built = ", ".join(sorted(path.name for path in wheels.glob("pycuda-*.whl")))
        click.echo(f"{wheels}: {built}; install it with CUDA's wheels: pip install '{TOOLKIT}' {wheels}/pycuda-*.whl")
    else:
        click.echo("PyCUDA is installed; see autotune doctor")
