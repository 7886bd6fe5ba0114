"""`diff`: compare the best kernels of two studies or devices."""

from __future__ import annotations

from collections import Counter

import click

from autotune.api.study_names import name_of
from autotune.cli.options import DATABASE, studies_and_layers
from autotune.cli.output import note
from autotune.cli.tables import format_options, show, telling_apart
from autotune.columns import key_columns
from autotune.errors import StoreError


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.argument("what", metavar="[STUDY|LAYER]", required=False, shell_complete=studies_and_layers)
@DATABASE
@format_options
def diff(a: str, b: str, what: str | None, db: str, style: str | None) -> None:
    """Compare the best kernels of two studies or devices.

    For each layer, the table shows which side is faster, whether the difference exceeds the noise, and how the config
    changed.

    A and B are two studies (`lenet-k5` for the newest generation, or `lenet-k5@1`) or two devices (part of a recorded
    name). Layers are paired by their shape. `history` shows how a layer's best time improved.
    """
    from autotune.analysis.diff import diff_rows, resolve
    from autotune.store import Store

    name = name_of(what)
    with Store(db, create=False) as store:
        studies, devices = store.studies.list(), store.devices.list()
        first, second = (resolve(word, studies, devices) for word in (a, b))
        if first.kind != second.kind:
            raise StoreError(f"{a!r} is a {first.kind} and {b!r} a {second.kind}; give two studies or two devices")
        differences = list(diff_rows(store.results.diff(first, second, name)))
    counts = Counter(row["verdict"] for row in differences)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "nothing to compare"
    note(f"A: {first}; B: {second}; {summary}")
    show(differences, telling_apart(_DIFF_COLUMNS, differences), style)


_DIFF_COLUMNS = (
    *key_columns("layer"),
    *key_columns("layer_a", "layer_b", "problem", "device_a", "device_b", hidden=True),
    *key_columns("device", "accuracy"),
    *key_columns("deterministic", "measurement_mode", hidden=True),
    *key_columns("a_us", "b_us", "b_over_a", "noise_fraction", "verdict"),
    *key_columns("config_changed", hidden=True),
    *key_columns("changes", below=True),
    *key_columns("template_a", "config_a", "template_b", "config_b", hidden=True),
)
