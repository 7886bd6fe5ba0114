"""`best`: show each layer's best kernel, how well it matches the device, and a network's totals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from autotune.cli.options import ACCURACY, DATABASE, OF_DEVICE, one_device, studies_and_layers
from autotune.cli.output import note
from autotune.cli.tables import show, telling_apart, wide_format_options
from autotune.columns import Cells, Column, key_columns
from autotune.escape import counted
from autotune.resources import RECORDED

if TYPE_CHECKING:
    from autotune.analysis.networks import Network, NetworkLayer
    from autotune.analysis.rooflines import BestWithRoofline
    from autotune.problem import Problem
    from autotune.store import LayerRow, Store

_NAMED = 3  # number of layers that a message lists


@click.command()
@click.argument("what", metavar="[STUDY|LAYER]", required=False, shell_complete=studies_and_layers)
@DATABASE
@OF_DEVICE
@ACCURACY
@wide_format_options
def best(
    what: str | None,
    db: str,
    device: str | None,
    accuracy: str | None,
    style: str | None,
) -> None:
    """Show the best kernel of each layer, device and class.

    If a study has several layers, the table shows them as a network: each layer's count, time, share of the total,
    fastest rival (`tune --baseline`) and floor, followed by the totals. --json and --csv also print all other columns
    of each kernel. STUDY.LAYER shows the kernel of a single layer.

    Non-deterministic kernels are listed only if they beat every deterministic one.

    With --device, only kernels for that device are shown. `match` is `exact`, or `device class` if the kernel was tuned
    on another device with the same compute capability and SM count. For a layer without a kernel, it is `none`.
    """
    from autotune.analysis.networks import networks
    from autotune.analysis.rooflines import with_roofline
    from autotune.api.study_names import name_of
    from autotune.store import Store

    name = name_of(what)
    with Store(db, create=False) as store:
        info = one_device(store, device)
        kernels = [with_roofline(store, row) for row in store.best.list(name, info, accuracy=accuracy)]
        network_tables = networks(store, name, kernels) if name else []
        if network_tables and style is None:
            for network in network_tables:
                show_network(network)
            warn_faster_than_roofline(map(floor_of, kernels))
            _tell_unfinished(store, name, kernels, accuracy)
            return
        unanswered = [] if name is None and info is None else _unanswered(store, name, kernels)
        show_best(
            kernels,
            (*BEST_COLUMNS, *(NETWORK_COLUMNS if network_tables else ())),
            style,
            network_cells(network_tables),
            lacking=unanswered,
        )
        if unanswered or not kernels:
            names = [row.name for row in unanswered]
            of_other_classes = accuracy is not None and _name_classes(store, name, db, accuracy, names)
            if device is None and not of_other_classes:
                _tell_why(store, name, db, [row.layer.problem for row in unanswered])
        if style is None:
            _tell_unfinished(store, name, kernels, accuracy)


def show_best(
    kernels: Sequence[BestWithRoofline],
    columns: Sequence[Column],
    style: str | None,
    of_network: Mapping[tuple[int, str], Cells] = MappingProxyType({}),
    *,
    lacking: Sequence[LayerRow] = (),
) -> None:
    """Print best kernels and layers without one, and warn about kernels that beat their floors.

    `of_network` contains additional cells for some kernels, by trial and layer.
    """
    from autotune.analysis.trial_rows import best_cells

    empty: Cells = dict.fromkeys(column.key for column in columns)
    rows: list[Cells] = [
        {**empty, **best_cells(one), **of_network.get((one.best.row.id, one.best.layer.name), {})} for one in kernels
    ]
    rows += [{**empty, "layer": row.name, "problem": str(row.layer.problem), "match": "none"} for row in lacking]
    show(rows, telling_apart(columns, rows), style)
    warn_faster_than_roofline(map(floor_of, kernels))


def _unanswered(store: Store, what: str | None, kernels: Sequence[BestWithRoofline]) -> list[LayerRow]:
    """Return the selected layers without a kernel, each once."""
    answered = _problems(kernels)
    lacking = {(row.name, row.layer): row for row in store.studies.layers(what) if row.layer.problem not in answered}
    return list(lacking.values())


def _name_classes(store: Store, what: str | None, db: str, accuracy: str, unanswered: Sequence[str]) -> bool:
    """If layers have no kernel in the given class, print which classes do have one.

    Returns False if there are none.
    """
    classes = sorted({row.row.trial.accuracy for row in store.best.list(what)} - {accuracy})
    if classes:
        more = f" and {len(unanswered) - _NAMED} more" if len(unanswered) > _NAMED else ""
        layers = f" of {', '.join(unanswered[:_NAMED])}{more}" if unanswered else ""
        note(f"{db}: no {accuracy} kernel{layers}; there are kernels of class {', '.join(classes)}")
    return bool(classes)


def _tell_why(store: Store, what: str | None, db: str, unanswered: Sequence[Problem]) -> None:
    """Print a note that imported results aren't ranked, if there are any."""
    places: Sequence[str | Problem | None] = unanswered or [what]
    if any(store.best.is_imported(place) for place in places):
        note(f"{db}: {store.best.advice(what)}")


def _tell_unfinished(
    store: Store, study: str | None, kernels: Sequence[BestWithRoofline], accuracy: str | None
) -> None:
    """Print a note if layers of a user's study have no trial yet, or if no finals decided their best kernel.

    Finals decide only the fastest class, so kernels of a single class say nothing about them.
    """
    if study is None or accuracy is not None or store.shown in RECORDED:
        return
    layers = [row for row in store.studies.layers(study) if row.study == study]
    found, decided = _problems(kernels), _problems(one for one in kernels if one.best.decided_by != "median")
    untuned = sum(not row.trials and row.layer.problem not in found for row in layers)
    undecided = sum(row.layer.problem in found - decided for row in layers)
    lacking = [f"{counted(untuned, 'layer')} without a trial"] if untuned else []
    lacking += [f"{counted(undecided, 'layer')} without finals"] if undecided else []
    if lacking:
        note(f"{study} is unfinished: {', '.join(lacking)}; `autotune tune {study}` resumes it")


def _problems(kernels: Iterable[BestWithRoofline]) -> set[Problem]:
    return {one.best.layer.problem for one in kernels}


BEST_COLUMNS = (
    *key_columns("layer"),
    *key_columns("problem", hidden=True),
    Column("match", text=lambda row: None if row["match"] == "exact" else row["match"]),
    *key_columns("device", "accuracy"),
    *key_columns("deterministic", hidden=True),
    *key_columns("median_us"),
    *key_columns("q1_us", "q3_us", "samples", "gflops", "floor_us", "ffma_us", "gb_per_s", hidden=True),
    Column("floor_fraction", heading="of_floor", text=lambda row: _percent(row["floor_fraction"], 0)),
    *key_columns("limiter"),
    *key_columns("template", hidden=True),
    *key_columns("config", below=True),
    *key_columns("registers", "spill_bytes", "smem_bytes", "blocks_per_sm", "warps_per_sm", "occupancy", hidden=True),
    *key_columns("occupancy_limits", "error_over_bound", "decided_by", "measurement_mode", "driver", hidden=True),
    *key_columns("toolkit", "date", "source_hash", "origin", hidden=True),
)
NETWORK_COLUMNS = key_columns(
    *("count", "share", "rival", "rival_us", "verdict", "network_us", "network_rival_us", "network_floor_us"),
    hidden=True,
)
"""The columns of `best` that describe the network, in JSON and CSV."""


def network_cells(networks: Sequence[Network]) -> dict[tuple[int, str], Cells]:
    """Return the NETWORK_COLUMNS cells for each layer's fastest kernel, by trial and layer."""
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


_COLUMNS = key_columns("layer", "count", "time_us", "share", "rival_us", "rival", "floor_us", "verdict")


def show_network(network: Network) -> None:
    """Print a network's layers and their sum. If there are several operations, each one gets its own sum."""
    mode = "" if network.measurement_mode == "cold" else f", {network.measurement_mode} caches"
    lines = [
        _line(one.layer.name, one.layer.count, one, network.share(one), one.rival.rival if one.rival else "")
        for one in network.layers
    ]
    operations = dict.fromkeys(one.layer.problem.operation.name for one in network.layers)
    if len(operations) > 1:
        for operation in operations:
            of = tuple(one for one in network.layers if one.layer.problem.operation.name == operation)
            lines.append(_total(replace(network, layers=of), f"{operation}: ", network.time_us))
    show([*lines, _total(network)], _COLUMNS, None, title=f"{network.study} on {network.device}{mode}")


def _total(network: Network, of: str = "", whole_us: float | None = None) -> Cells:
    """Add up a network's layers or, with `of`, one operation's layers."""
    timed, layers = sum(one.time_us is not None for one in network.layers), len(network.layers)
    name = f"{of}sum" if timed == layers else f"{of}sum of {timed} of {layers}"
    share = network.time_us / whole_us if network.time_us and whole_us else None
    return _line(name, sum(one.layer.count for one in network.layers), network, share)


def _line(name: str, count: int, one: Network | NetworkLayer, share: float | None, rival: str = "") -> Cells:
    """Return a line of a network's table, for a layer or a sum of layers."""
    times = {key: getattr(one, key) for key in ("time_us", "rival_us", "floor_us", "verdict")}
    return {"layer": name, "count": count, "share": _percent(share), "rival": rival, **times}


def _percent(share: float | None, digits: int = 1) -> str | None:
    return None if share is None else f"{share:.{digits}%}"


def warn_faster_than_roofline(kernels: Iterable[tuple[str, str, float | None, str]]) -> None:
    """Warn on standard error about kernels that beat their floors, which means that the floors are wrong.

    Each kernel is given as a device, a layer, the floor divided by the kernel's time and, if arithmetic determines the
    floor, a phrase about the rate.
    """
    above: dict[str, dict[str, tuple[float, str]]] = {}
    for device, layer, fraction, rate in kernels:
        if fraction is not None and fraction > 1.0:
            of_device = above.setdefault(device, {})
            of_device[layer] = max((fraction, rate), of_device.get(layer, (0.0, "")))
    for device, fractions in above.items():
        most = max(fractions, key=fractions.__getitem__)
        fraction, rate = fractions[most]
        others = f" (and {len(fractions) - 1} more)" if len(fractions) > 1 else ""
        note(
            f"{device}: {most}{others} is {fraction - 1:.1%} faster than its floor, so the floor is wrong: "
            f"{rate}the device's stored rates are too low; run `autotune devices --calibrate` there"
        )


def floor_of(kernel: BestWithRoofline) -> tuple[str, str, float | None, str]:
    """Return a best kernel in the form expected by `warn_faster_than_roofline`."""
    row, floor, rate = kernel.best.row, kernel.facts.floor, ""
    if floor is not None and floor.term == "arithmetic":
        flops = row.flops or row.problem.flops
        own, device = (flops / us / 1e6 for us in (kernel.best.median_us, floor.us))
        rate = (
            f"{flops:.4g} FLOP in {kernel.best.median_us:.4g} us are {own:.4g} TFLOP/s, and the device's rate is "
            f"{device:.4g}; `flops` counts too many, or "
        )
    return row.device.name, row.name, kernel.facts.floor_fraction, rate
