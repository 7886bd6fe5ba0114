"""`export`: write the best kernels as a library, and have it prove itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli.completion import studies_and_layers
from autotune.cli.filters import say_device
from autotune.cli.interrupts import INTERRUPTED, end_interrupted
from autotune.cli.options import ACCURACY, DATABASE, DIRECTORIES, LAYERS, OF_DEVICE, Folder
from autotune.cli.progress import stages
from autotune.errors import AutotuneError
from autotune.study import ADMITTED
from autotune.toml_table import is_whole

if TYPE_CHECKING:
    from autotune.api.exports import WrittenExport


def _archs(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Compute capabilities times ten, such as `80,90` or `sm_90`."""
    if text is None:
        return None
    words = [word.strip().removeprefix("sm_") for word in text.split(",")]
    if not all(is_whole(word, 50, 200) for word in words):
        raise click.BadParameter(f"{text!r}: expected compute capabilities times ten, such as 90 or 80,90")
    return tuple(dict.fromkeys(int(word) for word in words))


@click.command()
@click.argument("what", metavar="LAYER|STUDY", shell_complete=studies_and_layers)
@click.option("--out", required=True, type=Folder(), help="Folder to write into; created if missing.")
@DATABASE
@DIRECTORIES
@OF_DEVICE
@LAYERS
@ACCURACY
@click.option("--admit", type=click.Choice(tuple(ADMITTED)), help="Only each layer's fastest kernel of this accuracy.")
@click.option("--dispatcher", is_flag=True, help="The kernels that the study's dispatcher selects: fewer configs.")
@click.option(
    "--arch",
    "archs",
    callback=_archs,
    metavar="ARCH",
    help="Compute capabilities, such as 80,90. Default: the GPU's own.",
)
@click.option("--cubin", is_flag=True, help="Also write each kernel's machine code.")
@click.option("--ptx", is_flag=True, help="Also write each kernel's PTX.")
@click.option("--proof/--no-proof", default=True, show_default=True, help="Build, test and time the library.")
def export(
    what: str,
    out: Path,
    db: str,
    directories: tuple[Path, ...],
    device: str | None,
    only_layers: tuple[str, ...],
    accuracy: str | None,
    admit: str | None,
    dispatcher: bool,
    archs: tuple[int, ...] | None,
    cubin: bool,
    ptx: bool,
    proof: bool,
) -> None:
    """Write the best kernels as a library that proves itself.

    Each kernel is a `.cu` file whose header comment names its config, device and time.

    A layer that was tuned on no GPU gets its kernel from the host, or from the null device, which runs nothing; the
    files and proof.txt say so. autotune then builds the folder and runs its self-test. On a CUDA device it also times
    the library against the tuner's own kernels. A library that is wrong or slower exits with status 1 and is marked in
    proof.txt.
    """
    from autotune.api.exports import ExportRequest, write_export

    try:
        wanted = ExportRequest(device, only_layers, accuracy, admit, dispatcher=dispatcher)
    except AutotuneError as error:
        raise click.UsageError(str(error)) from None
    written = write_export(
        what,
        out,
        db,
        asked=wanted,
        archs=archs or (),
        cubin=cubin,
        ptx=ptx,
        templates=directories,
        say=say_device,
    )
    reasons: dict[str, list[str]] = {}
    for layer, why in written.left_out.items():
        reasons.setdefault(why, []).append(layer)
    for why, layers in reasons.items():
        click.echo(f"left out, {why}: {', '.join(layers)}", err=True)
    for name in written.exported.written.edited:
        click.echo(f"{out / name}: left as it is, edited after the export that wrote it", err=True)
    for path in written.exported.sources:
        click.echo(path)
    if written.exported.never_run:
        click.echo(f"not tuned: {written.exported.never_run}", err=True)
    if proof:
        _prove(written)


def _prove(written: WrittenExport) -> None:
    """Have a folder prove itself; where Ctrl-C ends that, say that it did not."""
    from autotune.api.exports import proof_of

    try:
        with stages() as stage:
            for line in proof_of(written, stage=stage):
                click.echo(line, err=True)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            end_interrupted(f"{written.exported.folder} was written and is not proven", resumes=False)
        raise
