"""`best NETWORK`: a study's layers as the network runs them, with shares, rivals and floors, and the sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from autotune.analysis.networks import Network, NetworkLayer
from autotune.analysis.rooflines import BestWithRoofline
from autotune.cli.tables import console
from autotune.columns import Cell, Column


def network_columns(found: Sequence[Network]) -> tuple[Column[BestWithRoofline], ...]:
    """What a row of `best` says of its network, in JSON and CSV; empty for a kernel that is not the layer's fastest."""
    if not found:
        return ()
    places = {
        (one.kernel.best.row.id, one.layer.name): (network, one)
        for network in found
        for one in network.layers
        if one.kernel
    }

    def column(key: str, value: Callable[[Network, NetworkLayer], Cell]) -> Column[BestWithRoofline]:
        def of(kernel: BestWithRoofline) -> Cell:
            place = places.get((kernel.best.row.id, kernel.best.layer.name))
            return None if place is None else value(*place)

        return Column(key, of, terminal=False)

    return (
        column("count", lambda _, one: one.layer.count),
        column("share", lambda network, one: network.share(one)),
        column("rival", lambda _, one: one.rival.against if one.rival else None),
        column("rival_us", lambda _, one: one.rival_us),
        column("verdict", lambda _, one: one.rival.verdict if one.rival else None),
        column("network_us", lambda network, _: network.time_us),
        column("network_rival_us", lambda network, _: network.rival_us),
        column("network_floor_us", lambda network, _: network.floor_us),
    )


def show_network(network: Network) -> None:
    """Print a network in 80 columns."""
    out = console()
    measurement_mode = "" if network.measurement_mode == "cold" else f", {network.measurement_mode} caches"
    out.print(Text(f"{network.study} on {network.device}{measurement_mode}"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for key in ("layer", "count", "time_us", "share", "rival_us", "floor_us", "verdict"):
        table.add_column(key, justify="right" if key not in ("layer", "verdict") else "left", overflow="fold")
    for one in network.layers:
        rival = "" if one.rival is None else f" {one.rival.rival}"
        values = (one.time_us, network.share(one), one.rival_us, one.floor_us)
        _add(table, one.layer.name, one.layer.count, values, rival, one.verdict)
    count = sum(one.layer.count for one in network.layers)
    timed = sum(one.time_us is not None for one in network.layers)
    name = "sum" if timed == len(network.layers) else f"sum of {timed} of {len(network.layers)}"
    _add(table, name, count, (network.time_us, None, network.rival_us, network.floor_us), "", network.verdict)
    out.print(table)


def _add(table: Table, name: str, count: int, values: Sequence[float | None], rival: str, verdict: Cell) -> None:
    time_us, share, rival_us, floor_us = values
    table.add_row(
        Text(name),
        str(count),
        _digits(time_us),
        "-" if share is None else f"{share:.1%}",
        _digits(rival_us) + rival,
        _digits(floor_us),
        Text(str(verdict or "-"), style="bold red" if str(verdict).startswith("LOSS") else ""),
    )


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value < 10_000 else f"{value:.0f}"
