"""`doctor`, `devices` and `--version`: what this machine has, what it lacks, and how fast it can be."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import click

from autotune import __version__
from autotune.api.device_names import cache_folder
from autotune.cli.options import DATABASE, Folder, writable
from autotune.cli.run import present_devices
from autotune.cli.tables import format_options, show
from autotune.columns import Column
from autotune.compilation.toolchain import compiler_version, find_cxx, find_nvcc, find_sanitizer
from autotune.devices.device import DeviceInfo
from autotune.devices.driver_query import DriverHere, driver_here
from autotune.devices.pycuda_build import TOOLKIT, build_pycuda
from autotune.errors import AutotuneError, StoreError, ToolchainError
from autotune.escape import counted
from autotune.measurement.rates import Rate

_CUDA = f"pip install '{TOOLKIT}' && autotune doctor --build-pycuda && pip install 'autotune-conv[cuda13]'"


@dataclass(frozen=True, slots=True)
class Checked:
    """A requirement of autotune and its state on this machine."""

    what: str
    found: str | None
    """its version or place; None where it is missing"""
    needed: bool
    """whether nothing can be tuned here without it"""
    mend: str = ""
    """what brings it"""

    @property
    def state(self) -> str:
        """`ok`, `missing`, or `optional` for something that autotune works without."""
        return "ok" if self.found is not None else "missing" if self.needed else "optional"


_CHECK_COLUMNS = (
    Column[Checked]("what", lambda row: row.what),
    Column[Checked]("state", lambda row: row.state),
    Column[Checked]("found", lambda row: row.found),
    Column[Checked]("mend", lambda row: row.mend if row.found is None else None),
)


@click.command()
@DATABASE
@click.option("--build-pycuda", "build", is_flag=True, help="Build PyCUDA against CUDA's wheels, and install it.")
@click.option("--wheels", type=Folder(file_okay=False), help="Put PyCUDA's wheel there; install nothing.")
@format_options
def doctor(db: str, build: bool, wheels: Path | None, style: str | None) -> None:
    """Check what tuning needs, and how to install it.

    Exits with 1 if something needed is missing. nvcc and PyCUDA are needed on a machine with a GPU; without a GPU,
    kernels run on the CPU. doctor also checks every row of the results database.

    PyCUDA is distributed as source. --build-pycuda builds it in about two minutes; it needs a C++ compiler and CUDA's
    wheels, but no toolkit, driver or GPU. With --wheels it builds a wheel for a machine without a compiler that has
    the same Python and system.
    """
    if build:
        _build(wheels)
        return
    if wheels is not None:
        raise click.UsageError("--wheels: give it with --build-pycuda")
    checks = list(_checks(db))
    show(checks, _CHECK_COLUMNS, style)
    if missing := [row.what for row in checks if row.state == "missing"]:
        raise AutotuneError(f"needed and missing: {', '.join(missing)}")


def _build(wheels: Path | None) -> None:
    build_pycuda(wheels)
    if wheels is None:
        click.echo("PyCUDA is installed; check it with `autotune doctor`")
        return
    built = ", ".join(sorted(path.name for path in wheels.glob("pycuda-*.whl")))
    click.echo(f"{wheels}: {built}; install it with CUDA's wheels: pip install '{TOOLKIT}' {wheels}/pycuda-*.whl")


def show_version(context: click.Context) -> None:
    """Print the version, with the toolkit, the driver and the GPUs that are here."""
    if context.resilient_parsing:
        return
    driver = driver_here()
    nvcc, _ = _tool(lambda: compiler_version(find_nvcc()))
    driver_text = "no NVIDIA driver" if driver is None else f"driver for CUDA {driver.cuda}"
    click.echo(f"autotune, version {__version__} ({nvcc or 'no nvcc'}; {driver_text}; {_gpus(driver) or 'no GPU'})")
    context.exit()


def _checks(db: str) -> Iterator[Checked]:
    driver = driver_here()
    gpu = driver is not None and bool(driver.devices)
    cxx, no_cxx = _tool(lambda: compiler_version(find_cxx()))
    yield Checked("C++ compiler", cxx, needed=True, mend=no_cxx)
    driver_version = None if driver is None else f"CUDA {driver.cuda}"
    yield Checked("NVIDIA driver", driver_version, needed=False, mend="install NVIDIA's driver, for a GPU")
    yield Checked("GPU", _gpus(driver), needed=False, mend="none is here: kernels run on the CPU")
    nvcc, no_nvcc = _tool(lambda: compiler_version(find_nvcc()))
    yield Checked("nvcc", nvcc, needed=gpu, mend=no_nvcc)
    yield Checked("PyCUDA", _version("pycuda"), needed=gpu, mend=_CUDA)
    sanitizer, no_sanitizer = _tool(lambda: str(find_sanitizer()))
    yield Checked("compute-sanitizer", sanitizer, needed=False, mend=no_sanitizer)
    yield _writable("cache", cache_folder(), "set XDG_CACHE_HOME to a folder that can be written")
    yield _writable("temporary files", Path(tempfile.gettempdir()), "set TMPDIR to a folder that can be written")
    yield _database(db)


def _gpus(driver: DriverHere | None) -> str | None:
    return ", ".join(driver.devices) or None if driver else None


def _tool(find: Callable[[], str]) -> tuple[str | None, str]:
    """The finding, or else what to do."""
    try:
        return find(), ""
    except ToolchainError as error:
        return None, str(error)


def _version(package: str) -> str | None:
    """The version of an installed package, without importing it: importing PyCUDA starts the driver."""
    if importlib.util.find_spec(package) is None:
        return None
    return importlib.metadata.version(package)


def _writable(what: str, folder: Path, mend: str) -> Checked:
    """A folder that is there, or can be made."""
    existing = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Checked(what, str(folder), needed=True)
    except OSError as error:
        return Checked(what, None, needed=True, mend=f"{folder}: cannot be written ({error.strerror}); {mend}")


def _database(db: str) -> Checked:
    from autotune.store import Store, path_of

    try:
        if not path_of(db).exists():
            return Checked("database", f"{db}: none yet", needed=True)
        with Store(db, create=False) as store:
            store.check()
            studies = len({row.name for row in store.studies.list()})
    except StoreError as error:
        return Checked("database", None, needed=True, mend=str(error))
    return Checked("database", f"{db}: {counted(studies, 'study', 'studies')}", needed=True)


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

    def per_s(self, unit: str) -> float | None:
        """The best rate of a unit in billions of bytes or trillions of operations, None when it was not measured."""
        rate = self.best(unit)
        return None if rate is None else rate.per_s / _SCALES.get(unit, _OPERATIONS)[0]

    def method(self, unit: str) -> str | None:
        """How that one was measured."""
        rate = self.best(unit)
        return None if rate is None else rate.method


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
    Column[_DeviceRow]("copy_gb_per_s", lambda row: row.per_s("copy"), terminal=False),
    Column[_DeviceRow]("read_gb_per_s", lambda row: row.per_s("read"), terminal=False),
    Column[_DeviceRow]("fill_gb_per_s", lambda row: row.per_s("fill"), terminal=False),
    Column[_DeviceRow]("fp32_tflops", lambda row: row.per_s("fp32"), terminal=False),
    Column[_DeviceRow]("tf32_tflops", lambda row: row.per_s("tf32"), terminal=False),
    Column[_DeviceRow]("tf32_method", lambda row: row.method("tf32"), terminal=False),
    Column[_DeviceRow]("fp16_tflops", lambda row: row.per_s("fp16"), terminal=False),
    Column[_DeviceRow]("fp16_method", lambda row: row.method("fp16"), terminal=False),
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
    help="List every stored rate and how it was measured, also of other machines.",
)
@DATABASE
@format_options
def devices(calibrate: bool, only_rates: bool, db: str, style: str | None) -> None:
    """List the devices of this machine with their measured rates.

    --rates also lists those of other machines that are in the database. If a rate was measured in several ways, the
    floor uses the highest.
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
        click.echo(
            "no rates of the devices here are stored, so they have no floors: run `autotune devices --calibrate`",
            err=True,
        )
