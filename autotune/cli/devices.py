"""`devices`: list this machine's devices and their calibrated rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

import click

from autotune.cli.options import DATABASE
from autotune.cli.output import note
from autotune.cli.tables import format_options, show
from autotune.columns import Cells, key_columns
from autotune.devices.device import DeviceInfo, Rate, best_rates
from autotune.resources import RECORDED

_SCALES = dict.fromkeys(("copy", "read", "fill"), (1e9, "GB/s"))
_OPERATIONS = (1e12, "TFLOP/s")
_DEVICE_COLUMNS = key_columns("name", "device", "arch", "sm_count", "memory_bytes", "driver", "toolkit")
_RATE_COLUMNS = (
    *key_columns("name"),
    *key_columns("device", hidden=True),
    *key_columns("rate", "method", "measured", "unit", "bounds"),
)


def _rate_cells(name: str, info: DeviceInfo, rates: Sequence[Rate]) -> Iterator[Cells]:
    """Yield a row for each rate. `bounds` is true for a unit's highest rate, which floors are computed from."""
    highest = best_rates(rates)
    for rate in rates:
        divisor, unit = _SCALES.get(rate.unit, _OPERATIONS)
        yield {
            "name": name,
            "device": info.name,
            "rate": rate.unit,
            "method": rate.method,
            "measured": rate.per_s / divisor,
            "unit": unit,
            "bounds": rate.per_s == highest[rate.unit],
        }


@click.command()
@click.option("--calibrate", is_flag=True, help="Measure the rates of memory and arithmetic, and store them.")
@click.option(
    "--rates",
    "only_rates",
    is_flag=True,
    help="List every stored rate, including the rates of other machines, and how it was measured.",
)
@DATABASE
@format_options
def devices(calibrate: bool, only_rates: bool, db: str, style: str | None) -> None:
    """List the devices of this machine with their measured rates.

    If a rate was measured in several ways, the floor uses the highest.
    """
    from autotune.cli.run import present_devices
    from autotune.store import Store, path_of

    here: list[Cells] = []
    measured: list[Cells] = []
    with ExitStack() as opened:
        store = None
        if calibrate or path_of(db).exists():
            store = opened.enter_context(Store(db, create=calibrate))
        elsewhere = {info.identity: info for info in store.rates.devices()} if store is not None and only_rates else {}
        for name, evaluator in opened.enter_context(closing(present_devices({"cuda", "host"}))):
            info, environment = evaluator.info, evaluator.environment
            if store is not None and calibrate:
                calibration = evaluator.calibrate()
                store.rates.add(info, environment, calibration.rates)
                if calibration.left_out:
                    note(f"{name}: {calibration.left_out}")
            here.append(
                {name: getattr(info, name) for name in ("arch", "sm_count", "memory_bytes")}
                | {"name": name, "device": info.name, "driver": environment.driver, "toolkit": environment.toolkit}
            )
            measured += _rate_cells(name, info, () if store is None else store.rates.list(info))
            elsewhere.pop(info.identity, None)
        is_rated = bool(measured)
        if store is not None:
            for info in elsewhere.values():
                measured += _rate_cells(info.name, info, store.rates.list(info))
    if not only_rates:
        show(here, _DEVICE_COLUMNS, style)
    if only_rates or (measured and style is None):
        show(measured, _RATE_COLUMNS, style)
    if not is_rated:
        hint = "" if db in RECORDED else ": run `autotune devices --calibrate`"  # bundled results are read-only
        note(f"no rates of the devices here are stored, so they have no floors{hint}")
