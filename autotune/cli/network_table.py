"""The network that a study's layers make up: a table, and the columns of `best` about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    """Print a network's layers, the sums of its operations if it has several, and their sum."""
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
    operations = dict.fromkeys(one.layer.problem.operation.name for one in network.layers)
    if len(operations) > 1:
        for operation in operations:
            of = tuple(one for one in network.layers if one.layer.problem.operation.name == operation)
            lines.append(_total(replace(network, layers=of), f"{operation}: ", network.time_us))
    show([*lines, _total(network)], _COLUMNS, None, title=f"{network.study} on {network.device}{mode}")


def _total(network: Network, of: str = "", whole_us: float | None = None) -> _Line:
    """The sum of a network's layers, or of those of one operation."""
    timed, layers = sum(one.time_us is not None for one in network.layers), len(network.layers)
    name = f"{of}sum" if timed == layers else f"{of}sum of {timed} of {layers}"
    count = sum(one.layer.count for one in network.layers)
    share = network.time_us / whole_us if network.time_us and whole_us else None
    return _Line(name, count, network.time_us, share, network.rival_us, "", network.floor_us, network.verdict)
