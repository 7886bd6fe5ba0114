"""The network that a study's layers make up: a table, and the columns of `best` about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.cli.tables import show
from autotune.columns import Cell, Column

if TYPE_CHECKING:
    from autotune.analysis.networks import Network, NetworkLayer
    from autotune.analysis.rooflines import BestWithRoofline


def network_columns(networks: Sequence[Network]) -> tuple[Column[BestWithRoofline], ...]:
    """The columns of `best` about the network, in JSON and CSV; empty for a kernel that is not the layer's fastest."""
    if not networks:
        return ()
    places = {
        (one.kernel.best.row.id, one.layer.name): (network, one)
        for network in networks
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


@dataclass(frozen=True, slots=True)
class _Line:
    """A layer of a network, or their sum."""

    name: str
    count: int
    time_us: float | None
    share: float | None
    rival_us: float | None
    rival: str
    floor_us: float | None
    verdict: str | None


_COLUMNS = (
    Column[_Line]("layer", lambda line: line.name),
    Column[_Line]("count", lambda line: line.count),
    Column[_Line]("time_us", lambda line: line.time_us),
    Column[_Line]("share", lambda line: None if line.share is None else f"{line.share:.1%}"),
    Column[_Line]("rival_us", lambda line: line.rival_us),
    Column[_Line]("rival", lambda line: line.rival),
    Column[_Line]("floor_us", lambda line: line.floor_us),
    Column[_Line]("verdict", lambda line: line.verdict),
)


def show_network(network: Network) -> None:
    """Print a network's layers and their sum."""
    mode = "" if network.measurement_mode == "cold" else f", {network.measurement_mode} caches"
    lines = [
        _Line(
            one.layer.name,
            one.layer.count,
            one.time_us,
            network.share(one),
            one.rival_us,
            one.rival.rival if one.rival else "",
            one.floor_us,
            one.verdict,
        )
        for one in network.layers
    ]
    timed = sum(one.time_us is not None for one in network.layers)
    name = "sum" if timed == len(lines) else f"sum of {timed} of {len(lines)}"
    count = sum(line.count for line in lines)
    total = _Line(name, count, network.time_us, None, network.rival_us, "", network.floor_us, network.verdict)
    show([*lines, total], _COLUMNS, None, title=f"{network.study} on {network.device}{mode}")
