"""`studies`, `import-model` and `new-op`: list studies, and write new ones."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.api.study_names import stored_studies
from autotune.atomic_write import check_writable, write_whole
from autotune.autotune_runtime.network_layers import PLAIN
from autotune.cli.options import DATABASE, numbers_of
from autotune.cli.output import note
from autotune.cli.progress import stages
from autotune.cli.tables import format_options, show
from autotune.columns import Cells, field_cells, key_columns
from autotune.errors import ModelError, StoreError
from autotune.escape import counted
from autotune.study import ADMITTED, unadmitted
from autotune.study_reader import shipped_study, study_names

if TYPE_CHECKING:
    from autotune.store import StudyRow


_STUDY_COLUMNS = (
    *key_columns("study", "layer_count", "origin", "generations", "trials"),
    *key_columns("imported_from", hidden=True),
)


@click.command()
@DATABASE
@format_options
def studies(db: str, style: str | None) -> None:
    """List the studies that you can use by name.

    These are bundled with the package or stored in the database.
    """
    try:
        rows = stored_studies(db)
    except StoreError as error:
        note(f"autotune: the database's studies are not listed: {error}")
        rows = ()
    show([*_shipped(), *_known(rows, db)], _STUDY_COLUMNS, style)


def _shipped() -> Iterator[Cells]:
    nothing: Cells = dict.fromkeys(("generations", "trials", "imported_from"))
    for name in study_names():
        yield {**nothing, "study": name, "layer_count": len(shipped_study(name).layers), "origin": "shipped"}


def _known(rows: tuple[StudyRow, ...], db: str) -> Iterator[Cells]:
    """Yield a row for each stored study's name, with the number of layers in its newest generation."""
    newest = {row.name: row for row in rows}
    for name, row in newest.items():
        trials = [other.trials for other in rows if other.name == name]
        counts = {"layer_count": row.layers, "generations": len(trials), "trials": sum(trials)}
        yield {**field_cells(row), **counts, "study": name, "origin": Path(db).name}


LARGEST = 2**31 - 1
"""The largest size, because kernels use 32-bit indices."""


@click.command("import-model")
@click.argument("source")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NxCxHxW",
    type=numbers_of(f"sizes such as 64x3x224x224, from 1 to {LARGEST}", 1, LARGEST, between="x"),
    help="Size of the network's input, such as 64x3x224x224; repeat for further inputs. Optional if the file has it.",
)
@click.option(
    "--batch",
    "batches",
    metavar="N[,N...]",
    type=numbers_of(f"numbers of images such as 1,8,64, from 1 to {LARGEST}", 1, LARGEST),
    help="Batch sizes, such as 1,8,64; each layer is written once per size.",
)
@click.option(
    "--dtype", type=click.Choice(["f32", "f16", "bf16"]), help="Storage and compute type. Default: the network's."
)
@click.option(
    "--layout",
    type=click.Choice(["nchw", "nhwc"]),
    help="Tensor layout. Default: the layout of the network's filters, or nchw.",
)
@click.option(
    "--op",
    type=click.Choice(["conv2d", "gemm", *PLAIN]),
    default="conv2d",
    help="The operation to import. Default: conv2d.",
)
@click.option("--accuracy", type=click.Choice([*ADMITTED]), help="The accuracy of the study.")
@click.option(
    "--residuals/--no-residuals", default=True, help="Fuse residual additions into layers; few families support them."
)
@click.option(
    "--training",
    is_flag=True,
    help="Write the layers of a training step: unfused convolutions, and the gradients of their inputs and filters.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The study file to write. Default: standard output.")
def import_model(
    source: str,
    inputs: tuple[tuple[int, ...], ...],
    batches: tuple[int, ...] | None,
    dtype: str | None,
    layout: str | None,
    op: str,
    accuracy: str | None,
    residuals: bool,
    training: bool,
    out: Path | None,
) -> None:
    """Write a study for tuning a network.

    The study contains the network's convolutions or, with --op, its matrix products (gemm) or its layer, group and RMS
    norms (norm). The other operations need channels-last images: concatenations along the channels (concat), pools
    (max_pool2d, avg_pool2d), means over all pixels (pixel_mean), and products with a factor per image and channel
    (gate).

    SOURCE is an ONNX file (requires the package onnx), a torch.export archive (.pt2, requires PyTorch), or Python code
    that builds a PyTorch model: torchvision.models:resnet50, timm:convnext_tiny, my_module.py:build. autotune runs that
    code, and PyTorch may run code in an archive.

    Batch norm is folded, and bias, activation and residual become epilogues. Identical convolutions become one layer
    with a count. Comments in the study list the operators fused into each layer, and the layers that no kernel
    supports, with the reason and their share of the FLOPs.
    """
    from autotune.importing.fused_layers import OPERATIONS, findings
    from autotune.importing.model_source import read_source
    from autotune.importing.network import Request
    from autotune.importing.study_text import fused_parts, named_layers, reasons, study_text, summaries
    from autotune.importing.training import training_findings

    if training and (op, layout) != ("conv2d", "nhwc"):
        raise ModelError(
            "--training: filter gradients need channels-last convolutions; add --layout nhwc and leave out --op"
        )
    if out is not None:
        _check_new(out)
    began = time.perf_counter()
    with stages() as stage:
        request = Request(source, inputs, dtype=dtype, layout=layout)
        networks = read_source(request, dict.fromkeys(batches or ()), stage)
    imported = [
        training_findings(network) if training else findings(network, op=op, residuals=residuals)
        for network in networks
    ]
    layers = named_layers(imported)
    if not layers:
        why = "; ".join(reasons(imported[0])) or f"it has no {OPERATIONS[op]}"
        raise ModelError(f"{source}: nothing to tune: {why}")
    if training and all(layer.problem.dtype == "f32" for layer in layers):
        accuracy = accuracy or "tf32"  # the only class of filter gradients, except depthwise ones
    for layer in layers:
        if why := unadmitted(accuracy, layer.problem.dtype):
            raise ModelError(f"{source}: {why}")
    title = list(summaries(source, networks, imported))
    text = study_text(_own_name(source) if out is None else out.stem, title, imported, layers, accuracy)
    report = [
        *title,
        f"{counted(len(layers), 'layer')}, in {time.perf_counter() - began:.1f} s",
        *(f"fused into them: {parts}" for parts in [fused_parts(imported[0])] if parts),
        *map("left out: {}".format, reasons(imported[0])),
    ]
    if out is None:
        click.echo(text, nl=False)
        note("\n".join(report))
        return
    write_whole(out, text.encode(), "--out")
    click.echo("\n".join([*report, shlex.join(["autotune", "tune", str(out)])]))


def _check_new(out: Path) -> None:
    """Raise ModelError if the file already exists, since somebody may have edited it."""
    check_writable(out, "--out")
    if out.exists():
        raise ModelError(f"{out}: exists already; remove it or give another --out")


def _own_name(source: str) -> str:
    """Return the name of a study that isn't written to a file, which is the model's name."""
    return source.rpartition(":")[2] if ":" in source else Path(source).stem


@click.command("new-op")
@click.argument("name")
def new_op(name: str) -> None:
    """Create a small working operation to build your own on.

    This writes a folder NAME and a study that tunes it. The folder contains the operation's declaration
    (operation.toml), its reference implementation (reference.py) and one kernel family. docs/your-kernel.md explains
    the next steps.
    """
    from autotune.api.starter import new_operation

    for path in new_operation(name):
        click.echo(str(path))
    note(f"autotune check {name}/{name}.cu.j2\nautotune tune {name}.toml")
