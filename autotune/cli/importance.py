"""`importance`: which parameters decided the time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click

from autotune.api.family_importance import FamilyImportance, importances
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
from autotune.columns import field_columns


@dataclass(frozen=True, slots=True)
class _Row:
    """A parameter, or two of them together."""

    layer: str
    device: str
    template: str
    trials: int
    parameters: str
    importance: float | None
    share: float | None
    remark: str


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
    """Show which parameters affect the time, alone and in pairs.

    The answer is computed from the trials of each layer and family.

    `importance` measures how differently a parameter is set in the fastest tenth of the correct trials (Optuna's
    PED-ANOVA); the values of a family add up to 1. `share` is the part of the variance of the log time, in held-out
    trials, that all parameters explain independently of each other, or that a pair explains in addition. Pairs below 2
    % are left out, and so are families with fewer than 20 correct trials.
    """
    analysed = importances(what, db=db, device=device, families=only_families, layers=only_layers, say=say_device)
    rows = [row for family in analysed for row in _rows(family)]
    all_rows = everything or style is not None
    shown = rows if all_rows else sorted(rows, key=lambda row: -(row.importance or 0))[:SHOWN_ROWS]
    if not all_rows:
        say(_answer(shown[0]))
    show(shown, _COLUMNS, style, apart=_family_of if all_rows else lambda _: None)
    if len(shown) < len(rows):
        say(f"{len(rows) - len(shown)} more rows with --all")


def _answer(row: _Row) -> str:
    """The parameter that decided most."""
    return (
        f"{row.parameters} of {row.template} affects {row.layer} ({row.device}) most: "
        f"importance {row.importance:.2f} among {row.trials} correct trials."
    )


def _family_of(row: _Row) -> tuple[str, str, str, int]:
    return row.layer, row.device, row.template, row.trials


def _rows(family: FamilyImportance) -> Iterator[_Row]:
    """The family as a whole, its parameters, and the pairs worth knowing."""
    layer, device, template, analysis = family.layer, family.device, family.template, family.found
    yield _Row(layer, device, template, analysis.trials, "all, each for itself", None, analysis.alone, "")
    for name, share in analysis.params:
        yield _Row(layer, device, template, analysis.trials, name, share, None, "")
    for pair in analysis.interactions:
        (one, two), (first, second) = pair.params, pair.values
        better = f"{abs(pair.ratio - 1):.0%} {'faster' if pair.ratio < 1 else 'slower'}"
        remark = f"{one}={first} with {two}={second} is {better} than each suggests ({pair.trials} trials)"
        yield _Row(layer, device, template, analysis.trials, f"{one} x {two}", None, pair.share, remark)


_COLUMNS = field_columns(_Row, below=("remark",), digits=2)
