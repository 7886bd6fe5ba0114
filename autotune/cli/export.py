"""`export` and `source`: export the best kernels as a library, and print a kernel's text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.analysis.rooflines import with_roofline
from autotune.api.study_names import name_of
from autotune.atomic_write import check_writable, write_whole
from autotune.cli.options import (
    ACCURACY,
    DATABASE,
    DIRECTORIES,
    LAYERS,
    OF_DEVICE,
    Folder,
    numbers_of,
    one_device,
    say_device,
    studies_and_layers,
)
from autotune.cli.output import for_compilers, note
from autotune.cli.progress import stages
from autotune.cli.run import INTERRUPTED, end_interrupted
from autotune.errors import AutotuneError, StoreError
from autotune.escape import in_comment
from autotune.family.template_files import load_recorded_templates
from autotune.study import ADMITTED

if TYPE_CHECKING:
    from autotune.api.exports import WrittenExport
    from autotune.devices.device import DeviceInfo
    from autotune.family.source import KernelSource
    from autotune.store import BestRow, Store, TrialRow


@click.command()
@click.argument("what", metavar="LAYER|STUDY", shell_complete=studies_and_layers)
@click.option("--out", required=True, type=Folder(), help="Folder to write into; created if missing.")
@DATABASE
@DIRECTORIES
@OF_DEVICE
@LAYERS
@click.option("--op", metavar="NAME", help="Only the layers of this operation: an export has kernels of one operation.")
@ACCURACY
@click.option("--admit", type=click.Choice(tuple(ADMITTED)), help="Only each layer's fastest kernel of this accuracy.")
@click.option("--dispatcher", is_flag=True, help="Only the kernels that the study's dispatcher selects.")
@click.option("--untuned", is_flag=True, help="Predict configs for layers without results; tunes nothing.")
@click.option(
    "--arch",
    "archs",
    type=numbers_of("compute capabilities times ten, such as 90 or 80,90", 50, 200, prefix="sm_"),
    metavar="ARCH",
    help="Compute capabilities, such as 80,90. Default: the GPU's own.",
)
@click.option("--proof/--no-proof", default=True, show_default=True, help="Build, test and time the library.")
def export(
    what: str,
    out: Path,
    db: str,
    directories: tuple[Path, ...],
    device: str | None,
    only_layers: tuple[str, ...],
    op: str | None,
    accuracy: str | None,
    admit: str | None,
    dispatcher: bool,
    untuned: bool,
    archs: tuple[int, ...] | None,
    proof: bool,
) -> None:
    """Write the best kernels as a library that tests itself.

    Each kernel is a `.cu` file with a header comment that gives its config, device and time.

    With --untuned, the study need not be tuned. If a layer has results for this GPU, in `--db` or bundled, it gets its
    recorded kernel. Every other layer gets the config that the cost model predicts to be fastest. autotune prints which
    of the two each layer got. The GPU is --device, or else the first CUDA device.

    If a layer wasn't tuned on any GPU, its kernel comes from the host, or from the null device, which runs nothing; the
    files and proof.txt say so. Finally, autotune builds the folder and runs its self-test. On a CUDA device, it also
    times the library against the tuner's own kernels. If the library is wrong or slower, autotune exits with 1 and says
    so in proof.txt.
    """
    from autotune.api.exports import ExportRequest, write_export

    try:
        request = ExportRequest(device, only_layers, accuracy, admit, dispatcher=dispatcher, op=op, untuned=untuned)
    except AutotuneError as error:
        raise click.UsageError(str(error)) from None
    written = write_export(
        what,
        out,
        db,
        request=request,
        archs=tuple(dict.fromkeys(archs or ())),
        templates=directories,
        say=say_device,
    )
    _show_kernels(written.origins, written.left_out)
    for path in written.exported.sources:
        click.echo(path)
    if written.exported.never_run:
        note(f"not tuned: {written.exported.never_run}")
    if proof:
        _prove(written)


def _show_kernels(origins: Mapping[str, str], left_out: Mapping[str, str]) -> None:
    """Print where each layer's kernel comes from, grouping layers without a kernel by reason."""
    for layer, origin in origins.items():
        note(f"{layer}: {origin}")
    reasons: dict[str, list[str]] = {}
    for layer, reason in left_out.items():
        reasons.setdefault(reason, []).append(layer)
    for reason, layers in reasons.items():
        note(f"left out, {reason}: {', '.join(layers)}")


def _prove(written: WrittenExport) -> None:
    """Build and test the library in a folder. If Ctrl-C ends the test, print that the library isn't proven."""
    from autotune.api.exports import proof_of

    try:
        with stages() as stage:
            for line in proof_of(written, stage=stage):
                note(line)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            end_interrupted(f"{written.exported.folder} was written and is not proven", resumes=False)
        raise


@click.command()
@click.argument("what", metavar="LAYER", shell_complete=studies_and_layers)
@DATABASE
@DIRECTORIES
@OF_DEVICE
@ACCURACY
@click.option("--trial", "number", type=click.IntRange(min=0), help="The kernel of this trial, even if it failed.")
@click.option("--out", type=click.Path(path_type=Path), help="Write to this file instead of standard output.")
def source(
    what: str,
    db: str,
    directories: tuple[Path, ...],
    device: str | None,
    accuracy: str | None,
    number: int | None,
    out: Path | None,
) -> None:
    """Print the source of LAYER's best kernel.

    The output is a CUDA file with a header comment that says where the kernel comes from.

    It is the same kernel that `best LAYER` and `why LAYER` show first: if possible one that was tuned on a GPU, and the
    fastest in the accuracy classes that the layer's study admits. The others are listed on standard error. If a
    kernel's text isn't stored, it is rendered again, provided that its family still renders the same text.
    """
    from autotune.store import Store

    if out is not None:
        check_writable(out, "--out")
    name = name_of(what, directories)
    with Store(db, create=False) as store:
        layers = {layer.layer.problem: layer.name for layer in store.studies.layers(name)}
        if len(layers) > 1:
            raise StoreError(f"{what}: expected one layer; give one of {', '.join(layers.values())}")
        info = one_device(store, device)
        found: Sequence[BestRow | TrialRow]
        if number is None:
            found = store.best.list(name, info, accuracy=accuracy)
        else:
            found = _trials(store, name, info, accuracy, number)
        if not found:
            raise StoreError(f"{db}: no such kernel of {what}; `autotune trials {what}` lists all of them")
        row, *others = found
        kernel = _kernel(store, _row(row), what, directories, db)
        text = _text(store, row, kernel)
    if others:
        note(f"this is {_trial_label(row)}; there are also {', '.join(dict.fromkeys(map(_trial_label, others)))}")
    if out is None:
        for_compilers().write(text)
    else:
        write_whole(out, text.encode(), "--out")
        click.echo(out)


def _trials(
    store: Store, name: str | None, info: DeviceInfo | None, accuracy: str | None, number: int
) -> list[TrialRow]:
    """Return the trials with this number, sorted by correctness, then GPUs first, then time."""
    rows = [
        row
        for row in store.trials.list(name)
        if row.trial.number == number
        and (info is None or row.device.identity == info.identity)
        and accuracy in (None, row.trial.accuracy)
    ]
    return sorted(rows, key=lambda row: (row.median_us is None, not row.device.can.gpu, row.median_us or 0.0))


def _row(kernel: BestRow | TrialRow) -> TrialRow:
    from autotune.store import BestRow

    return kernel.row if isinstance(kernel, BestRow) else kernel


def _trial_label(kernel: BestRow | TrialRow) -> str:
    row = _row(kernel)
    steady = "" if row.trial.deterministic else ", not deterministic"
    return f"trial {row.trial.number} on {row.device.name} ({row.trial.accuracy}, {row.measurement_mode} cache{steady})"


def _kernel(store: Store, row: TrialRow, what: str, directories: tuple[Path, ...], db: str) -> KernelSource:
    """Return the kernel that a trial measured. Raises StoreError if it isn't available."""
    from autotune.analysis.rerender import kernel_of

    kernel = kernel_of(row, store, load_recorded_templates(directories, [row.problem.operation], what))
    if isinstance(kernel, str):
        raise StoreError(f"{db}: trial {row.trial.number} of {row.name}: {kernel}")
    return kernel


def _text(store: Store, kernel: BestRow | TrialRow, source: KernelSource) -> str:
    """Return a kernel's text below a comment about its origin."""
    from autotune.exporting.kernel import kernel_text, recorded_origin
    from autotune.store import BestRow

    if isinstance(kernel, BestRow):
        return kernel_text(recorded_origin(kernel, with_roofline(store, kernel).floor_us), source)
    if kernel.trial.timing is None:
        return _annotated(kernel, source.program.text)
    best = BestRow(kernel.study, kernel.layer, kernel.trial.timing, "median", kernel)
    return kernel_text(recorded_origin(best, with_roofline(store, best).floor_us), source)


def _annotated(row: TrialRow, text: str) -> str:
    """Put a failed trial's outcome and message as comments above the text of its kernel."""
    trial = row.trial
    outcome = trial.outcome + (f" / {trial.reason}" if trial.reason else "")
    comments = [f"{row.name} trial {trial.number}: {outcome}", str(trial.config), *trial.message.splitlines()]
    head = "\n".join(f"// {in_comment(line)}" for line in comments)
    return f"{head}\n{text}\n"
