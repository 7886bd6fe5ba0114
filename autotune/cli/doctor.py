"""`doctor` and `--version`: check which of autotune's requirements this machine meets."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from autotune import __version__
from autotune.api.device_names import cache_folder
from autotune.cli.options import DATABASE, Folder
from autotune.cli.tables import format_options, show
from autotune.columns import Cells, key_columns
from autotune.compilation.toolchain import compiler_version, find_cxx, find_nvcc, find_sanitizer
from autotune.devices.driver_api import DriverHere, driver_here
from autotune.devices.pycuda_build import TOOLKIT, build_pycuda
from autotune.errors import AutotuneError, StoreError, ToolchainError
from autotune.escape import counted

_CUDA = f"pip install '{TOOLKIT}' && autotune doctor --build-pycuda && pip install 'autotune-conv[cuda13]'"


def _checked(what: str, found: str | None, *, needed: bool, fix: str = "") -> Cells:
    """Return a requirement's row: `found` is its version or path, or None if it is missing.

    `needed` says whether autotune cannot tune on this machine without it, and `fix` how to install it.
    """
    state = "ok" if found is not None else "missing" if needed else "optional"
    return {"what": what, "state": state, "found": found, "fix": fix if found is None else None}


_CHECK_COLUMNS = key_columns("what", "state", "found", "fix")


@click.command()
@DATABASE
@click.option("--build-pycuda", "build", is_flag=True, help="Build PyCUDA against CUDA's wheels, and install it.")
@click.option("--wheels", type=Folder(file_okay=False), help="Put PyCUDA's wheel into this folder; install nothing.")
@format_options
def doctor(db: str, build: bool, wheels: Path | None, style: str | None) -> None:
    """Check the requirements for tuning.

    If something is missing, autotune prints how to install it and, if it is needed, exits with 1. nvcc and PyCUDA are
    only needed on a machine with a GPU; without one, kernels run on the CPU. doctor also checks every row of the
    results database.

    PyCUDA is distributed as source. --build-pycuda builds it in about two minutes. This takes a C++ compiler and CUDA's
    wheels, but no toolkit, driver or GPU. With --wheels, it builds a wheel for a machine without a compiler that has
    the same Python and system.
    """
    if build:
        _build(wheels)
        return
    if wheels is not None:
        raise click.UsageError("--wheels: give it with --build-pycuda")
    checks = list(_checks(db))
    show(checks, _CHECK_COLUMNS, style)
    if missing := [row["what"] for row in checks if row["state"] == "missing"]:
        raise AutotuneError(f"needed and missing: {', '.join(missing)}")


def _build(wheels: Path | None) -> None:
    build_pycuda(wheels)
    if wheels is None:
        click.echo("PyCUDA is installed; check it with `autotune doctor`")
        return
    built = ", ".join(sorted(path.name for path in wheels.glob("pycuda-*.whl")))
    click.echo(f"{wheels}: {built}; install it with CUDA's wheels: pip install '{TOOLKIT}' {wheels}/pycuda-*.whl")


def show_version(context: click.Context) -> None:
    """Print the versions of autotune, the toolkit and the driver, and this machine's GPUs."""
    if context.resilient_parsing:
        return
    driver = driver_here()
    nvcc, _ = _tool(lambda: compiler_version(find_nvcc()))
    driver_text = "no NVIDIA driver" if driver is None else f"driver for CUDA {driver.cuda}"
    click.echo(f"autotune, version {__version__} ({nvcc or 'no nvcc'}; {driver_text}; {_gpus(driver) or 'no GPU'})")
    context.exit()


def _checks(db: str) -> Iterator[Cells]:
    driver = driver_here()
    gpu = driver is not None and bool(driver.devices)
    cxx, no_cxx = _tool(lambda: compiler_version(find_cxx()))
    yield _checked("C++ compiler", cxx, needed=True, fix=no_cxx)
    driver_version = None if driver is None else f"CUDA {driver.cuda}"
    yield _checked("NVIDIA driver", driver_version, needed=False, fix="install NVIDIA's driver, for a GPU")
    yield _checked("GPU", _gpus(driver), needed=False, fix="no GPU found: kernels run on the CPU")
    nvcc, no_nvcc = _tool(lambda: compiler_version(find_nvcc()))
    yield _checked("nvcc", nvcc, needed=gpu, fix=no_nvcc)
    yield _checked("PyCUDA", _version("pycuda"), needed=gpu, fix=_CUDA)
    sanitizer, no_sanitizer = _tool(lambda: str(find_sanitizer()))
    yield _checked("compute-sanitizer", sanitizer, needed=False, fix=no_sanitizer)
    yield _writable("cache", cache_folder(), "set XDG_CACHE_HOME to a folder that can be written")
    yield _writable("temporary files", Path(tempfile.gettempdir()), "set TMPDIR to a folder that can be written")
    yield _database(db)


def _gpus(driver: DriverHere | None) -> str | None:
    return ", ".join(driver.devices) or None if driver else None


def _tool(find: Callable[[], str]) -> tuple[str | None, str]:
    """Return a tool's version or path, or None and advice on how to install it."""
    try:
        return find(), ""
    except ToolchainError as error:
        return None, str(error)


def _version(package: str) -> str | None:
    """Return an installed package's version without importing it, because importing PyCUDA starts the driver."""
    if importlib.util.find_spec(package) is None:
        return None
    return importlib.metadata.version(package)


def _writable(what: str, folder: Path, fix: str) -> Cells:
    """Check that files can be written to a folder or, if it doesn't exist, to its nearest parent that does."""
    existing = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
    try:
        with tempfile.TemporaryFile(dir=existing):
            return _checked(what, str(folder), needed=True)
    except OSError as error:
        return _checked(what, None, needed=True, fix=f"{folder}: cannot be written ({error.strerror}); {fix}")


def _database(db: str) -> Cells:
    from autotune.store import Store, path_of

    try:
        if not path_of(db).exists():
            return _checked("database", f"{db}: none yet", needed=True)
        with Store(db, create=False) as store:
            store.check()
            studies = len({row.name for row in store.studies.list()})
    except StoreError as error:
        return _checked("database", None, needed=True, fix=str(error))
    return _checked("database", f"{db}: {counted(studies, 'study', 'studies')}", needed=True)
