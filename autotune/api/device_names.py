"""Open a device's evaluator by name, for the command line and for `autotune.tune`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import platformdirs

from autotune.compilation.cache import BinaryCache
from autotune.devices.backends import parse_device
from autotune.devices.device import DeviceInfo, abilities_of
from autotune.devices.driver_api import driver_here, has_libcuda
from autotune.errors import DeviceError
from autotune.evaluation.evaluator import DeviceEvaluator, Evaluator
from autotune.evaluation.null import NullEvaluator
from autotune.workers.device_worker import DEADLINES, Deadlines

Say = Callable[[DeviceInfo, str, str], None]
"""Called with the chosen device, its name, and why it was chosen."""
Warn = Callable[[str], None]
"""Called with a message if other programs are using the device, which makes measured times unreliable."""


def evaluator_of(
    name: str | None,
    jobs: int,
    deadlines: Deadlines = DEADLINES,
    *,
    say: Say = lambda *_: None,
    warn: Warn = lambda *_: None,
) -> Evaluator:
    """Open the evaluator of the named device or, without a name, of the first CUDA device or else the host.

    `deadlines` apply to devices that run kernels. Raises DeviceError if there is no such device, and ToolchainError if
    the host has no compiler.
    """
    if name is not None:
        names = device_names(name)
        for one in names:
            kind, rest = parse_device(one)
        named: Evaluator
        can = abilities_of(kind)
        if can.compile:
            named = DeviceEvaluator(names, jobs, cache=binary_cache(), deadlines=deadlines)
        elif can.gpu_times:
            from autotune.replay.replay_device import ReplayEvaluator

            named = ReplayEvaluator(rest)
        else:
            named = NullEvaluator(rest)
        say(named.info, name, "requested")
        _warn_of_others(named, warn)
        return named
    try:
        evaluator = first_gpu(jobs, deadlines)
    except DeviceError as error:
        evaluator = DeviceEvaluator(["host"], jobs, cache=binary_cache(), deadlines=deadlines)
        say(evaluator.info, "host", f"no CUDA device can be used: {error}")
    else:
        say(evaluator.info, "cuda:0", "the first CUDA device")
        _warn_of_others(evaluator, warn)
    return evaluator


def _warn_of_others(evaluator: Evaluator, warn: Warn) -> None:
    if isinstance(evaluator, DeviceEvaluator):
        for name, percent in evaluator.shared.items():
            warn(
                f"{name}: other programs keep it busy for {percent} % of the time, so times measured now are too "
                "slow; stop them or use another GPU"
            )


def device_names(name: str) -> list[str]:
    """Return the devices that a word refers to: `all` GPUs, or several devices separated by commas.

    Raises DeviceError if the word is `all` and there is no GPU.
    """
    return _gpus() if name == "all" else name.split(",") if name.startswith("cuda") else [name]


def first_gpu(jobs: int, deadlines: Deadlines = DEADLINES) -> DeviceEvaluator:
    """Open the evaluator of the first CUDA device. Raises DeviceError if there is none."""
    if not has_libcuda():
        raise DeviceError("this machine has no NVIDIA driver (libcuda.so.1)")
    return DeviceEvaluator(["cuda:0"], jobs, cache=binary_cache(), deadlines=deadlines)


def binary_cache() -> BinaryCache:
    """Return the cache of compiled programs in the user's cache folder."""
    return BinaryCache(cache_folder() / "binaries")


def cache_folder() -> Path:
    """Return autotune's folder in the user's cache folder."""
    return Path(platformdirs.user_cache_dir("autotune"))


def _gpus() -> list[str]:
    """Return the names of all CUDA devices. Raises DeviceError if there are none."""
    driver = driver_here()
    if driver is None or not driver.devices:
        why = "there is no NVIDIA driver (libcuda.so.1)" if driver is None else "the NVIDIA driver finds none"
        raise DeviceError(f"all: this machine has no CUDA device that can be used: {why}")
    return [f"cuda:{number}" for number in range(len(driver.devices))]
