"""`devices`: the devices of this machine, and how fast they can be."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass

import click

from autotune.cli.options import DATABASE, writable
from autotune.cli.run import present_devices
from autotune.cli.tables import format_options, show
from autotune.columns import Column
from autotune.devices.device import DeviceInfo, Rate
from autotune.resources import RECORDED


@dataclass(frozen=True, slots=True)
class _DeviceRow:
    name: str
    info: DeviceInfo
    driver: str
    toolkit: str
    rates: tuple[Rate, ...]

    def best(self, unit: str) -> Rate | None:
        """The rate of a unit that bounds, None when it was not measured."""
        return max((rate for rate in self.rates if rate.unit == unit), key=lambda rate: rate.per_s, default=None)


@dataclass(frozen=True, slots=True)
class _RateRow:
    device: _DeviceRow
    rate: Rate

    @property
    def scale(self) -> tuple[float, str]:
        """The divisor for showing the rate, and the unit of the result."""
        return _SCALES.get(self.rate.unit, _OPERATIONS)

    @property
    def bounds(self) -> bool:
        """Whether floors are computed from it: the best of its unit."""
        return self.rate == self.device.best(self.rate.unit)


_SCALES = dict.fromkeys(("copy", "read", "fill"), (1e9, "GB/s"))
_OPERATIONS = (1e12, "TFLOP/s")


_DEVICE_COLUMNS = (
    Column[_DeviceRow]("name", lambda row: row.name),
    Column[_DeviceRow]("device", lambda row: row.info.name),
    Column[_DeviceRow]("arch", lambda row: row.info.arch),
    Column[_DeviceRow]("sm_count", lambda row: row.info.sm_count),
    Column[_DeviceRow]("memory_bytes", lambda row: row.info.memory_bytes),
    Column[_DeviceRow]("driver", lambda row: row.driver),
    Column[_DeviceRow]("toolkit", lambda row: row.toolkit),
)
_RATE_COLUMNS = (
    Column[_RateRow]("name", lambda row: row.device.name),
    Column[_RateRow]("device", lambda row: row.device.info.name, terminal=False),
    Column[_RateRow]("rate", lambda row: row.rate.unit),
    Column[_RateRow]("method", lambda row: row.rate.method),
    Column[_RateRow]("measured", lambda row: row.rate.per_s / row.scale[0]),
    Column[_RateRow]("unit", lambda row: row.scale[1]),
    Column[_RateRow]("bounds", lambda row: row.bounds),
)


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
    from autotune.store import Store, path_of

    rows = []
    with ExitStack() as opened:
        has_database = calibrate or path_of(db).exists()
        store = None
        if has_database:
            store = opened.enter_context(Store(writable(db) if calibrate else db, create=calibrate))
        for name, evaluator in opened.enter_context(closing(present_devices({"cuda", "host"}))):
            info, environment = evaluator.info, evaluator.environment
            if store is not None and calibrate:
                calibration = evaluator.calibrate()
                store.rates.add(info, environment, calibration.rates)
                if calibration.left_out:
                    click.echo(f"{name}: {calibration.left_out}", err=True)
            rates = () if store is None else store.rates.list(info)
            rows.append(_DeviceRow(name, info, environment.driver, environment.toolkit, rates))
        here = {row.info.identity for row in rows}
        rated = list(rows)
        if store is not None and only_rates:
            elsewhere = (info for info in store.rates.devices() if info.identity not in here)
            rated += [_DeviceRow(info.name, info, "", "", store.rates.list(info)) for info in elsewhere]
    measured = [_RateRow(row, rate) for row in rated for rate in row.rates]
    if not only_rates:
        show(rows, _DEVICE_COLUMNS, style)
    if only_rates or (measured and style is None):
        show(measured, _RATE_COLUMNS, style)
    if not any(row.rates for row in rows):
        hint = "" if db in RECORDED else ": run `autotune devices --calibrate`"  # bundled results are read-only
        click.echo(f"no rates of the devices here are stored, so they have no floors{hint}", err=True)
