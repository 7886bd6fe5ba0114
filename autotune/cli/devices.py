"""`devices`: what kernels can run on here, and what each device can do at most; also how a device is chosen."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator, Set
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import click
import platformdirs

from autotune.cli.answers import DATABASE
from autotune.cli.tables import Column, format_options, show
from autotune.compilation.cache import BinaryCache
from autotune.devices.device import DeviceInfo
from autotune.devices.opening import parse_device
from autotune.errors import AutotuneError, DeviceError
from autotune.evaluation.evaluate import DeviceEvaluator, Evaluator
from autotune.evaluation.null import NullEvaluator
from autotune.evaluation.seat import DEADLINES, Deadlines


def jobs_default() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def open_evaluator(name: str | None, jobs: int, deadlines: Deadlines = DEADLINES) -> Evaluator:
    """The evaluator of a named device; of the first CUDA device, else the host, when no name is given.

    Says on standard error which device was taken and why. `deadlines` are of devices that run kernels.
    """
    if name is not None:
        names = _gpus() if name == "all" else name.split(",") if name.startswith("cuda") else [name]
        for one in names:
            kind, rest = parse_device(one)
        asked: Evaluator
        if kind == "null":
            asked = NullEvaluator(rest)
        elif kind == "replay":
            from autotune.replay.device import ReplayEvaluator

            asked = ReplayEvaluator(rest)
        else:
            asked = DeviceEvaluator(names, jobs, cache=binary_cache(), deadlines=deadlines)
        _say(asked.info, name, "asked for")
        return asked
    try:
        evaluator = first_gpu(jobs, deadlines)
    except DeviceError as error:
        evaluator = DeviceEvaluator(["host"], jobs, cache=binary_cache(), deadlines=deadlines)
        _say(evaluator.info, "host", f"no CUDA device can be used: {error}")
    else:
        _say(evaluator.info, "cuda:0", "the first CUDA device")
    return evaluator


def first_gpu(jobs: int, deadlines: Deadlines = DEADLINES) -> DeviceEvaluator:
    """The evaluator of the first CUDA device. Raises DeviceError when there is none."""
    if not _has_libcuda():
        raise DeviceError("this machine has no NVIDIA driver (libcuda.so.1)")
    return DeviceEvaluator(["cuda:0"], jobs, cache=binary_cache(), deadlines=deadlines)


def binary_cache() -> BinaryCache:
    """The user's folder of compiled programs."""
    return BinaryCache(cache_folder() / "binaries")


def cache_folder() -> Path:
    """The user's folder for what can be made again."""
    return Path(platformdirs.user_cache_dir("autotune"))


def _gpus() -> list[str]:
    """Every CUDA device by name. Raises DeviceError when there is none."""
    found: list[str] = []
    while _has_libcuda() and (evaluator := _try_open(f"cuda:{len(found)}", say=not found)):
        evaluator.close()
        found.append(f"cuda:{len(found)}")
    if not found:
        raise DeviceError("all: this machine has no CUDA device that can be used")
    return found


def _say(info: DeviceInfo, name: str, why: str) -> None:
    remark = "; a CPU's ranking of kernels says nothing about a GPU's" if info.kind == "host" else ""
    click.echo(f"device {name}: {info.name} ({why}){remark}", err=True)


def _has_libcuda() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _DeviceRow:
    name: str
    info: DeviceInfo
    driver: str
    toolkit: str
    rates: dict[str, float]

    def rate(self, unit: str, scale: float) -> float | None:
        """A calibrated rate in other units, None when it was not measured."""
        return self.rates[unit] / scale if unit in self.rates else None


_COLUMNS = (
    Column[_DeviceRow]("name", lambda row: row.name),
    Column[_DeviceRow]("device", lambda row: row.info.name),
    Column[_DeviceRow]("arch", lambda row: row.info.arch),
    Column[_DeviceRow]("sm_count", lambda row: row.info.sm_count),
    Column[_DeviceRow]("memory_bytes", lambda row: row.info.memory_bytes),
    Column[_DeviceRow]("driver", lambda row: row.driver),
    Column[_DeviceRow]("toolkit", lambda row: row.toolkit),
    Column[_DeviceRow]("copy_gb_per_s", lambda row: row.rate("copy", 1e9)),
    Column[_DeviceRow]("fill_gb_per_s", lambda row: row.rate("fill", 1e9)),
    Column[_DeviceRow]("fp32_tflops", lambda row: row.rate("fp32", 1e12)),
    Column[_DeviceRow]("tf32_tflops", lambda row: row.rate("tf32", 1e12)),
    Column[_DeviceRow]("fp16_tflops", lambda row: row.rate("fp16", 1e12)),
)


@click.command()
@click.option("--calibrate", is_flag=True, help="Measure copy, fill and arithmetic rates and store them.")
@DATABASE
@format_options
def devices(calibrate: bool, db: str, style: str | None) -> None:
    """The devices that kernels can run on here, with their calibrated rates."""
    from autotune.store import Store, path_of

    rows = []
    with ExitStack() as opened:
        there = calibrate or path_of(db).exists()
        store = opened.enter_context(Store(db, create=calibrate)) if there else None
        for name, evaluator in opened.enter_context(closing(present_devices({"cuda", "host"}))):
            info, environment = evaluator.info, evaluator.environment
            if store is not None and calibrate:
                store.set_rates(info, environment, evaluator.calibrate())
            rates = {} if store is None else dict(store.rates(info))
            rows.append(_DeviceRow(name, info, environment.driver, environment.toolkit, rates))
    show(rows, _COLUMNS, style)


def present_devices(kinds: Set[str]) -> Generator[tuple[str, DeviceEvaluator]]:
    """Every device of these kinds (cuda, host) that opens, by name, each closed when the next one is asked for.

    Why the first CUDA device or the host does not open is said on standard error.
    """
    number = 0
    while "cuda" in kinds and _has_libcuda() and (evaluator := _try_open(f"cuda:{number}", say=number == 0)):
        with closing(evaluator):
            yield f"cuda:{number}", evaluator
        number += 1
    if "host" in kinds and (evaluator := _try_open("host", say=True)):
        with closing(evaluator):
            yield "host", evaluator


def _try_open(name: str, *, say: bool) -> DeviceEvaluator | None:
    try:
        return DeviceEvaluator([name], 1)
    except AutotuneError as error:
        if say:
            click.echo(str(error), err=True)
        return None
