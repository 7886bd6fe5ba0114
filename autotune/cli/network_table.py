"""The network that a study's layers make up: a table, and the columns of `best` about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.cli.tables import show
from autotune.columns import Cells, field_columns, key_columns

if TYPE_CHECKING:
    from autotune.analysis.networks import Network


NETWORK_COLUMNS = key_columns(
    *("count", "share", "rival", "rival_us", "verdict", "network_us", "network_rival_us", "network_floor_us"),
    hidden=True,
)
"""The columns of `best` about the network, in JSON and CSV"""


def network_cells(networks: Sequence[Network]) -> dict[tuple[int, str], Cells]:
    """The cells of these columns for the fastest kernel of each layer, by trial and layer."""
    return {
        (one.kernel.best.row.id, one.layer.name): {
            "count": one.layer.count,
            "share": network.share(one),
            "rival": one.rival.against if one.rival else None,
            "rival_us": one.rival_us,
            "verdict": one.rival.verdict if one.rival else None,
            "network_us": network.time_us,
            "network_rival_us": network.rival_us,
            "network_floor_us": network.floor_us,
        }
        for network in networks
        for one in network.layers
        if one.kernel
    }


@dataclass(frozen=True, slots=True)
class _Line:
    """A layer of a network, or their sum."""

    layer: str
    count: int
    time_us: float | None
    share: str | None
    rival_us: float | None
    rival: str
    floor_us: float | None
    verdict: str | None


_COLUMNS = field_columns(_Line)


def show_network(network: Network) -> None:
    """Print a network's layers, the sums of its operations if it has several, and their sum."""
    mode = "" if network.measurement_mode == "cold" else f", {network.measurement_mode} caches"
    lines = [
        _Line(
            one.layer.name,
            one.layer.count,
            one.time_us,
            _percent(network.share(one)),
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
    return _Line(name, count, network.time_us, _percent(share), network.rival_us, "", network.floor_us, network.verdict)


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"
