"""`import-model`: the study that tunes a network, out of the network's own file or code."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

import click

from autotune.atomic_write import SETTINGS, check_writable, write_whole
from autotune.cli.progress import stages
from autotune.errors import ModelError
from autotune.escape import counted
from autotune.study import ADMITTED, unadmitted

LARGEST = 2**31 - 1  # of a size: what kernels count with


def _sizes(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Parse `--input`. Raises click.BadParameter unless it is a size such as 64x3x224x224."""
    return tuple(_numbers(value, "x", "sizes such as 64x3x224x224") for value in values)


def _batches(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Parse `--batch` and drop duplicates. Raises click.BadParameter unless they are numbers such as 1,8,64."""
    return () if value is None else tuple(dict.fromkeys(_numbers(value, ",", "numbers of images such as 1,8,64")))


def _numbers(text: str, between: str, expected: str) -> tuple[int, ...]:
    words = text.split(between)
    if not all(re.fullmatch("[0-9]{1,10}", word) and 1 <= int(word) <= LARGEST for word in words):
        raise click.BadParameter(f"{text!r}: expected {expected}, from 1 to {LARGEST}")
    return tuple(map(int, words))


@click.command("import-model")
@click.argument("source")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NxCxHxW",
    callback=_sizes,
    help="Size of the network's input, such as 64x3x224x224; repeat for further inputs. Optional if the file fixes it.",
)
@click.option(
    "--batch",
    "batches",
    metavar="N[,N...]",
    callback=_batches,
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
    "--op", type=click.Choice(["conv2d", "gemm"]), default="conv2d", help="The operation to import. Default: conv2d."
)
@click.option("--accuracy", type=click.Choice([*ADMITTED]), help="The accuracy of the study.")
@click.option(
    "--residuals/--no-residuals", default=True, help="Fuse residual additions into layers; few families support them."
)
@click.option("--out", type=click.Path(path_type=Path), help="The study file to write. Default: standard output.")
def import_model(
    source: str,
    inputs: tuple[tuple[int, ...], ...],
    batches: tuple[int, ...],
    dtype: str | None,
    layout: str | None,
    op: str,
    accuracy: str | None,
    residuals: bool,
    out: Path | None,
) -> None:
    """Write the study that tunes a network.

    The study has the network's convolutions, or with --op gemm its matrix products.

    SOURCE is an ONNX file (requires the package onnx), a torch.export archive (.pt2), or Python code that builds a
    PyTorch model: torchvision.models:resnet50, timm:convnext_tiny, my_module.py:build. autotune runs that code.

    Batch norm is folded. Bias, activation and residual become epilogues. Convolutions of the same problem become one
    layer with a count. Comments list what no kernel supports, with the reason and its share of the FLOPs.
    """
    from autotune.importing import (
        OPERATIONS,
        Request,
        findings,
        named_layers,
        read_source,
        reasons,
        study_text,
        summaries,
    )

    if out is not None:
        _check_new(out)
    began = time.perf_counter()
    request = Request(source, inputs, batches, dtype, layout)
    with stages() as stage:
        networks = read_source(request, stage)
    found = [findings(network, op=op, residuals=residuals) for network in networks]
    layers = named_layers(found)
    if not layers:
        why = "; ".join(reasons(found[0])) or f"it has no {OPERATIONS[op]}"
        raise ModelError(f"{source}: nothing to tune: {why}")
    for layer in layers:
        if why := unadmitted(accuracy, layer.problem.dtype):
            raise ModelError(f"{source}: {why}")
    title = list(summaries(source, networks, found))
    text = study_text(_own_name(source) if out is None else out.stem, title, found, layers, accuracy)
    said = [
        *title,
        f"{counted(len(layers), 'layer')}, in {time.perf_counter() - began:.1f} s",
        *map("left out: {}".format, reasons(found[0])),
    ]
    if out is None:
        click.echo(text, nl=False)
        click.echo("\n".join(said), err=True)
        return
    write_whole(out, text.encode(), "--out")
    click.echo("\n".join([*said, shlex.join(["autotune", "tune", str(out)])]))


def _check_new(out: Path) -> None:
    """Raise ModelError where a file is there already, which may have been edited, or where settings are read."""
    if out.name == SETTINGS:
        raise ModelError(f"{out}: is the name of the settings file; give another --out")
    check_writable(out, "--out")
    if out.exists():
        raise ModelError(f"{out}: exists already; remove it or give another --out")


def _own_name(source: str) -> str:
    """The name of a study that has no file: the model's."""
    return source.rpartition(":")[2] if ":" in source else Path(source).stem
