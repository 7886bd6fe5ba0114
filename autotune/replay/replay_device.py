"""The `replay` device, which returns one device's recorded trials from a results database.

`replay:FILE` replays the database's only device; if there are several, use `replay:FILE@NAME`. Only recorded configs
can be evaluated, so a study's search spaces shrink to those recorded for its layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from autotune.compilation.compile import Binary, Target
from autotune.devices.device import DeviceInfo, Environment
from autotune.errors import DeviceError, Rejected
from autotune.evaluation.evaluator import Evaluator, compiled_at_once
from autotune.family.source import KernelSource
from autotune.measurement.benchmark import summarise
from autotune.problem import Problem
from autotune.replay.recorded_trials import REPLAYED, measured_rows
from autotune.resources import results_named
from autotune.store import Store, TrialRow
from autotune.trial import Config, ErrorStats, Measured, Outcome, Trial, Value
from autotune.workers.worker import FinalsRequest, FinalsTimings

_SAMPLES = 5  # number of samples in the finals, all equal to the recorded median


_Key = tuple[str, frozenset[tuple[str, Value]]]
"""A config regardless of the order of its parameters, which may change in a new version of the family."""


class ReplayEvaluator(Evaluator):
    """An evaluator that returns one device's recorded trials, in the environment of its latest trial."""

    def __init__(self, rest: str) -> None:
        path, device = _file_and_device(rest)
        self._file = str(path)
        rows = _rows(path, device)
        newest = max(rows, key=lambda row: row.id)
        self._info = replace(newest.device, kind=REPLAYED, name=f"replay of {newest.device.name}")
        self._environment = replace(newest.environment, attributes={"recording": str(path)})
        self._trials: dict[tuple[Problem, str], dict[_Key, Trial]] = {}
        for row in rows:
            if row.environment.identity == newest.environment.identity:
                self._trials.setdefault((row.problem, row.measurement_mode), {})[_key(row.trial.config)] = row.trial

    @property
    def info(self) -> DeviceInfo:
        """The recorded device, but with the kind `replay`, because nothing is measured on this machine."""
        return self._info

    @property
    def environment(self) -> Environment:
        """The environment in which the recorded trials ran."""
        return self._environment

    def listed(self, problem: Problem, *, cache: str) -> frozenset[Config]:
        """Return the configs recorded for a layer. Raises DeviceError if there are none."""
        found = self._trials.get((problem, cache))
        if found is None:
            known = "; ".join(f"{known} ({measurement_mode})" for known, measurement_mode in self._trials)
            raise DeviceError(
                f"replay:{self._file}: records no trial of the layer {problem} in the measurement mode {cache}; "
                f"it has {known}"
            )
        return frozenset(trial.config for trial in found.values())

    def compile(self, source: KernelSource) -> Future[Binary]:
        """Return a finished future with the compilation's recorded result."""
        return compiled_at_once(self._compiled, source)

    def _compiled(self, source: KernelSource) -> Binary:
        """Return an empty binary with the recorded resources. Raises Rejected if the recorded compilation failed."""
        known = (
            _recorded(found, source.config) for (problem, _), found in self._trials.items() if problem == source.problem
        )
        trial = next(filter(None, known))
        if trial.outcome == Outcome.COMPILE:
            raise _failure(trial)
        return Binary(Target(REPLAYED), b"", trial.resources, "", source.program.entries)

    def evaluate(self, source: KernelSource, binary: Binary, *, cache: str, best_us: float | None) -> Measured:
        """Return a config's recorded result."""
        trial = self._trial(source, cache)
        if trial.outcome != Outcome.CORRECT or trial.timing is None:
            raise _failure(trial)
        return Measured(trial.timing, trial.error or ErrorStats(0.0, 0.0), trial.reason == "too_slow")

    def finals(self, request: FinalsRequest) -> FinalsTimings:
        """Return the recorded medians. Raises DeviceError for a baseline, because baselines aren't recorded."""
        if request.baselines:
            raise DeviceError("replay: libraries are measured on CUDA devices only")
        medians = [self._trial(source, request.cache).median_us for source, _ in request.kernels]
        return FinalsTimings(tuple(summarise((median or 0.0,) * _SAMPLES, request.cache) for median in medians))

    def _trial(self, source: KernelSource, cache: str) -> Trial:
        trial = _recorded(self._trials[source.problem, cache], source.config)
        assert trial is not None  # noqa: S101 - only listed configs are proposed
        return trial


def _file_and_device(rest: str) -> tuple[Path, str]:
    """Parse `FILE` or `FILE@NAME`. If there is a file with the whole name, the `@` is part of it.

    Raises DeviceError for a URL.
    """
    if "://" in rest:
        raise DeviceError(f"replay:{rest}: expected replay:FILE with FILE a results database, not a URL")
    file, at, device = rest.rpartition("@")
    if not rest or not at or Path(rest).is_file():
        return results_named(rest), ""
    return results_named(file), device


def _rows(path: Path, device: str) -> list[TrialRow]:
    """Read one device's trials from a database.

    Raises DeviceError if there are none, or if several devices have trials and none of them is named.
    """
    with Store(path, create=False) as store:
        groups = measured_rows(store)
    devices = {rows[0].device.identity: rows[0].device for rows in groups.values()}
    names = ", ".join(dict.fromkeys(info.name for info in devices.values()))
    chosen = [info for info in devices.values() if device in ("", info.name)]
    if not devices:
        raise DeviceError(f"replay:{path}: records no trial of any device")
    if not chosen:
        raise DeviceError(f"replay:{path}: has no device {device!r}; it has {names}")
    if len(chosen) > 1:
        raise DeviceError(f"replay:{path}: has several devices; name one of them as replay:{path}@NAME: {names}")
    return [row for rows in groups.values() for row in rows if row.device.identity == chosen[0].identity]


def _key(config: Config) -> _Key:
    return (config.template, frozenset(config.pairs))


def _recorded(trials: Mapping[_Key, Trial], config: Config) -> Trial | None:
    """Return a config's trial.

    If there is none, returns a trial recorded before parameters were added to the family.
    """
    template, items = key = _key(config)
    if key in trials:
        return trials[key]
    return next((trial for (known, some), trial in trials.items() if known == template and some < items), None)


def _failure(trial: Trial) -> Rejected:
    return Rejected(trial.outcome, trial.reason, trial.message)
