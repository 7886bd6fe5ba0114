"""`fit-model`: fit the cost model, which predicts a search's first configs, to results."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from autotune.resources import OWN_COST_MODEL, RECORDED, results_named


@click.command("fit-model")
@click.argument("databases", metavar="[DB]...", nargs=-1)
@click.option(
    "-o", "--out", default=OWN_COST_MODEL, show_default=True, type=click.Path(path_type=Path), help="The file to write."
)
def fit_model(databases: tuple[str, ...], out: Path) -> None:
    """Fit the cost model to results databases.

    By default, it is fitted to the bundled databases. Only results from calibrated GPUs are used.

    The cost model predicts how long a config takes from its family's declarations and the calibrated rates of a GPU.
    `tune` starts with the configs that the model predicts to be fastest; untuned exports and conversions use only such
    configs. They read cost-model.json in the current folder, or else the bundled model. The file contains the date of
    the fit and its error: how much slower the first config is than the fastest recorded one, on layers that were left
    out of the fit.
    """
    from autotune.atomic_write import write_whole
    from autotune.family.template_files import load_templates
    from autotune.replay.cost_records import fit_model as fitted
    from autotune.replay.cost_records import held_out_error, layer_records
    from autotune.search.cost_model import write_cost_model

    records = layer_records([results_named(name) for name in databases or RECORDED], load_templates())
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    model = fitted(records, now, held_out_error(records))
    write_whole(out, write_cost_model(model).encode(), "--out")
    error = "; ".join(f"{name} {value:.3f}" for name, value in model.error.items()) or "unknown, with one layer"
    click.echo(f"{out}: {len(records)} layers on {', '.join(model.rates)}; first config over the best: {error}")
