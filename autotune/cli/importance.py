"""`importance`: show which of a family's parameters affect the time."""

from __future__ import annotations

import click

from autotune.cli.options import (
    ALL_ROWS,
    DATABASE,
    FAMILIES,
    LAYERS,
    OF_DEVICE,
    SHOWN_ROWS,
    say_device,
    studies_and_layers,
)
from autotune.cli.tables import say, show, wide_format_options
from autotune.columns import Cells, field_cells, key_columns


@click.command()
@click.argument("what", metavar="STUDY|LAYER", shell_complete=studies_and_layers)
@DATABASE
@OF_DEVICE
@FAMILIES
@LAYERS
@ALL_ROWS
@wide_format_options
def importance(
    what: str,
    db: str,
    device: str | None,
    only_families: tuple[str, ...],
    only_layers: tuple[str, ...],
    everything: bool,
    style: str | None,
) -> None:
    """Show which parameters affect the time.

    The answer is computed from the trials of each layer and family.

    `importance` measures how differently a parameter is set in the fastest tenth of the correct trials (Optuna's
    PED-ANOVA). A family's values add up to 1. Families with fewer than 20 correct trials are left out.
    """
    from autotune.api.family_importance import importance as importance_of

    analysed = importance_of(what, db=db, device=device, families=only_families, layers=only_layers, say=say_device)
    rows: list[Cells] = [
        {**field_cells(family), "trials": family.found.trials, "parameters": name, "importance": share}
        for family in analysed
        for name, share in family.found.params
    ]
    all_rows = everything or style is not None
    shown = rows if all_rows else sorted(rows, key=lambda row: -row["importance"])[:SHOWN_ROWS]
    if not all_rows:
        say(_answer(shown[0]))
    show(shown, _IMPORTANCE_COLUMNS, style, apart=_FAMILY if all_rows else ())
    if len(shown) < len(rows):
        say(f"{len(rows) - len(shown)} more rows with --all")


def _answer(row: Cells) -> str:
    """Describe the most important parameter in a sentence."""
    return (
        "{parameters} of {template} affects {layer} ({device}) most: "
        "importance {importance:.2f} among {trials} correct trials."
    ).format_map(row)


_FAMILY = ("layer", "device", "template", "trials")
_IMPORTANCE_COLUMNS = key_columns(*_FAMILY, "parameters", "importance", digits=2)
