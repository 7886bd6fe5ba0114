"""`autotune.tune`, and the functions that the commands `tune` and `compare` share with it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from autotune.api.run import Caller, OpenRun, check_baselines, open_run
from autotune.api.run_plan import Overrides, RunPlan, plan_run
from autotune.devices.device import DeviceInfo
from autotune.errors import StoreError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.store import BestRow, Store
from autotune.study import Study
from autotune.study_writer import written
from autotune.trial import Trial
from autotune.tuning.end_to_end import EndToEndResult, time_end_to_end
from autotune.tuning.layer_result import LayerResult
from autotune.tuning.trial_log import Progress
from autotune.tuning.tune import tune as tune_study

OnTrial = Callable[[Trial, Progress], object]
"""Called after every trial with the trial and the layer's progress."""


@dataclass(frozen=True, slots=True)
class TuneResult:
    """The result of tuning, which is also stored in the database."""

    study: Study
    """the study with the overrides of this run applied"""
    device: DeviceInfo
    """the device that the study was tuned on"""
    layers: tuple[LayerResult, ...]
    """results in the study's order; if a layer has no correct kernel, `best` is None and `why_not` gives the reason"""
    best: tuple[BestRow, ...]
    """the best kernel of each layer and accuracy class, including kernels of earlier runs"""
    end_to_end: tuple[EndToEndResult, ...] = ()
    """times that include copies from and to host memory, if the study asks for them"""


def tune(
    study: Study | str | Path,
    *,
    device: str | None = None,
    db: str | Path = "autotune.db",
    trials: int | None = None,
    time_budget_s: float | None = None,
    layers: Sequence[str] = (),
    templates: Sequence[str | Path] = (),
    baselines: Sequence[str] = (),
    finals_s: float | None = None,
    fresh: bool = False,
    jobs: int | None = None,
    on_trial: OnTrial | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> TuneResult:
    """Tune all or some of a study's layers and return the result of each.

    `study` is a `Study`, a study file or the name of a bundled or stored study. `device` is named as on the command
    line; by default, it is the first CUDA device, or the host if there is none. `trials` and `time_budget_s` override
    the study's budget per layer. `templates` are folders with additional families. `jobs` is the number of parallel
    compilers, by default one per core. To resume, call the function again: no config is evaluated twice. When
    `stopping` returns true, tuning ends after the running trials. If another process is tuning the study, the function
    waits, and raises StoreError if `stopping` returns true in the meantime. It warns (UserWarning) if other programs
    are using the GPU.

    Raises StudyError, TemplateError, DeviceError, ToolchainError or StoreError before anything runs. After Ctrl-C,
    raises KeyboardInterrupt once the running trials have ended and are stored. A second Ctrl-C ends the function
    immediately.
    """
    plan = plan_run(
        study,
        db,
        tuple(map(Path, templates)),
        layers=layers,
        overrides=Overrides(trials=trials, time_budget_s=time_budget_s),
        baselines=baselines,
        finals_s=finals_s,
        fresh=fresh,
    )
    written(plan.study)  # raises for an invalid override

    def wait(store: Store, interrupted: bool) -> None:  # noqa: FBT001 - as Caller.wait
        if interrupted:
            raise KeyboardInterrupt
        if stopping():
            raise StoreError(f"{store.path}: another process is tuning {plan.study.name} into it; stopped waiting")

    def observe(progress: Progress) -> None:
        if on_trial is not None and progress.trial is not None:
            on_trial(progress.trial, progress)

    messages: list[str] = []  # warnings to print once the run is open
    caller = Caller(wait, lambda: nullcontext(observe), warn=messages.append)
    with open_run(plan.study, device, jobs, db, caller, check=partial(check_baselines, plan.finals)) as run:
        for message in messages:
            warnings.warn(message, stacklevel=3)
        result = tune_layers(plan, replace(run, stopping=lambda: run.stopping() or stopping()))
        if run.stopping():
            raise KeyboardInterrupt
    return result


def tune_layers(plan: RunPlan, run: OpenRun, *, search: bool = True) -> TuneResult:
    """Tune on an open device and database or, with `search=False`, only run the finals.

    End-to-end times, if the study asks for them, are measured afterwards, on devices that copy between host and device
    memory.
    """
    study, evaluator, store = plan.study, run.evaluator, run.store
    results = tune_study(
        study,
        plan.families,
        evaluator,
        store,
        layers=plan.layers,
        fresh=plan.fresh,
        observe=run.observe,
        stopping=run.stopping,
        search=search,
        finals=plan.finals,
    )
    end_to_end: tuple[EndToEndResult, ...] = ()
    if search and study.end_to_end is not None and isinstance(evaluator, DeviceEvaluator) and not run.stopping():
        end_to_end = time_end_to_end(
            study,
            study.end_to_end,
            plan.families,
            evaluator,
            store,
            layers=plan.layers,
            observe=run.observe,
            stopping=run.stopping,
        )
    best = best_of(store, study, {result.name for result in results}, evaluator.info)
    return TuneResult(study, evaluator.info, results, tuple(best), end_to_end)


def best_of(store: Store, study: Study, names: Set[str], info: DeviceInfo) -> list[BestRow]:
    """Return the best kernels for some of a study's layers on a device.

    Only kernels in the study's measurement mode and in the accuracy classes that it admits are included.
    """
    return [
        row
        for row in store.best.list(study.name, kind=info.kind)
        if row.name in names
        and row.row.device.identity == info.identity
        and row.row.measurement_mode == study.measurement_mode
        and row.row.trial.accuracy in study.admitted(row.layer.problem)
    ]
