"""`autotune.tune`, and its parts that the command line's `tune` and `compare` also use."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.analysis.rooflines import best_per_class
from autotune.api.device_names import cache_folder, evaluator_of, jobs_default
from autotune.api.interrupts import orderly_interrupts
from autotune.api.run_plan import Overrides, RunPlan, plan_run
from autotune.api.terms import in_arguments
from autotune.devices.device import BASELINES, DeviceInfo
from autotune.devices.torch_baseline import baselines_of, require_torch
from autotune.errors import DeviceError, StoreError, StudyError
from autotune.evaluation.evaluator import DeviceEvaluator, Evaluator
from autotune.resources import check_writable_results
from autotune.store import BestRow, Store, path_of
from autotune.study import Study
from autotune.study_writer import written
from autotune.toml_table import is_time
from autotune.trial import Trial
from autotune.tuning.end_to_end import EndToEndResult, time_end_to_end
from autotune.tuning.layer_finals import FINALS_S, TOGETHER_S, FinalsPlan
from autotune.tuning.layer_result import LayerResult
from autotune.tuning.study_lock import LatestRun, RunBudget, latest_run, study_lock
from autotune.tuning.trial_log import Progress
from autotune.tuning.tune import measurement_mode
from autotune.tuning.tune import tune as run

OnTrial = Callable[[Trial, Progress], object]
"""Called after every trial with the trial and the layer's progress."""


@dataclass(frozen=True, slots=True)
class TuneResult:
    """The result of tuning. All of it is in the database, too."""

    study: Study
    """the study with the overrides of this run"""
    device: DeviceInfo
    """the device"""
    layers: tuple[LayerResult, ...]
    """in the study's order; `best` is None for a layer without a correct kernel, and `why_not` says why"""
    best: tuple[BestRow, ...]
    """the best kernel of each layer and accuracy class, also from earlier runs"""
    end_to_end: tuple[EndToEndResult, ...] = ()
    """times with copies from and to host memory, if the study asks for them"""


@in_arguments
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
    """Tune all or some of the layers of a study and return the result of each.

    `study` is a `Study`, a study file or the name of a shipped or stored study; `device` is named as on the command
    line, by default the first CUDA device, or else the host. `trials` and `time_budget_s` replace the study's, per
    layer. `templates` are folders of more families; `jobs` is the number of parallel compilers, by default one per
    core. Call it again to resume: nothing is evaluated twice. When `stopping` returns true it ends after the running
    trials. If another process is tuning the study it waits, and raises StoreError if `stopping` returns true meanwhile.
    It warns (UserWarning) if other programs use the GPU.

    Raises StudyError, TemplateError, DeviceError, ToolchainError or StoreError before anything runs, and
    KeyboardInterrupt after Ctrl-C, once the running trials have ended and are stored; a second Ctrl-C ends it at once.
    """
    folders = tuple(map(Path, templates))
    check_writable_results(path_of(db))
    overrides = Overrides(trials=trials, time_budget_s=time_budget_s)
    plan = plan_run(study, db, folders, layers=layers, overrides=overrides)
    wanted = plan.study
    written(wanted)  # for what may be wrong with these
    if wanted.target is not None:
        raise StudyError(
            f"{wanted.path or wanted.name}: target: only the command line searches a rule; "
            "replace target by None to tune the layers"
        )
    if jobs is not None and jobs < 1:
        raise DeviceError(f"jobs = {jobs}: expected at least 1 compiler")

    def give_up() -> None:
        """Called while another process has the lock of the study."""
        _raise_if(interrupted())
        if stopping():
            raise StoreError(f"{store.path}: another process tunes {wanted.name} into it; stopped waiting")

    def observe(progress: Progress) -> None:
        if on_trial is not None and progress.trial is not None:
            on_trial(progress.trial, progress)

    others: list[str] = []
    with (
        orderly_interrupts() as interrupted,
        closing(evaluator_of(device, jobs or jobs_default(), warn=others.append)) as evaluator,
        Store(db) as store,
        acquire_study_lock(store, wanted, evaluator.info, give_up),
    ):
        for message in others:
            warnings.warn(message, stacklevel=3)
        result = tune_layers(
            plan,
            evaluator,
            store,
            fresh=fresh,
            finals=finals_plan(wanted, baselines, finals_s, evaluator.info),
            observe=observe,
            stopping=lambda: interrupted() or stopping(),
        )
        _raise_if(interrupted())
    return result


def _raise_if(interrupted: bool) -> None:  # noqa: FBT001
    if interrupted:
        raise KeyboardInterrupt


def tune_layers(
    plan: RunPlan,
    evaluator: Evaluator,
    store: Store,
    *,
    fresh: bool = False,
    search: bool = True,
    finals: FinalsPlan,
    observe: Callable[[Progress], None],
    stopping: Callable[[], bool],
) -> TuneResult:
    """Tune on an open device and database; without `search` only the finals.

    End-to-end times follow if the study asks for them, on a device that copies data.
    """
    study, families, layers = plan.study, plan.families, plan.layers
    results = run(
        study,
        families,
        evaluator,
        store,
        layers=layers,
        fresh=fresh,
        observe=observe,
        stopping=stopping,
        search=search,
        finals=finals,
    )
    end_to_end: tuple[EndToEndResult, ...] = ()
    if search and study.end_to_end is not None and isinstance(evaluator, DeviceEvaluator) and not stopping():
        end_to_end = time_end_to_end(
            study, study.end_to_end, families, evaluator, store, layers=layers, observe=observe, stopping=stopping
        )
    best = best_of(store, study, {result.name for result in results}, evaluator.info)
    return TuneResult(study, evaluator.info, results, tuple(best_per_class(best)), end_to_end)


def finals_plan(
    study: Study,
    baselines: Sequence[str],
    finals_s: float | None,
    info: DeviceInfo | None,
    *,
    on_interrupt: bool = False,
) -> FinalsPlan:
    """The settings of the finals.

    Raises DeviceError or StudyError before anything is tuned if a library cannot be timed. `info` is None if the device
    is on another host, which checks itself.
    """
    libraries = tuple(dict.fromkeys(baselines))
    if unknown := [name for name in libraries if name not in BASELINES]:
        raise DeviceError(f"--baseline {unknown[0]}: expected one of {', '.join(BASELINES)}")
    compared = any(baselines_of(library, layer.problem) for library in libraries for layer in study.layers)
    if libraries and not compared:
        of = ", ".join(sorted({layer.problem.operation.name for layer in study.layers}))
        raise StudyError(
            f"--baseline {libraries[0]}: is for {', '.join(BASELINES[libraries[0]])}, not for {of}; leave it out, "
            "or have a kernel of your own as a baseline: its family's header says baseline = true"
        )
    if finals_s is not None and not is_time(finals_s):
        raise StudyError(f"finals_s = {finals_s}: expected seconds above 0")
    if libraries and info is not None:
        if not info.can.gpu:
            raise DeviceError(
                f"{info.kind}: --baseline {libraries[0]} is for CUDA devices; leave it out or give --device cuda:N"
            )
        require_torch()
    together_s = None if finals_s else TOGETHER_S
    return FinalsPlan(libraries, finals_s or FINALS_S, on_interrupt=on_interrupt, together_s=together_s)


def best_of(store: Store, study: Study, names: Set[str], info: DeviceInfo) -> list[BestRow]:
    """The best kernels of these layers of a study on a device, of the admitted classes, in the study's measurement
    mode.
    """
    return [
        row
        for row in store.best.list(study.name, kind=info.kind)
        if row.name in names
        and row.row.device.identity == info.identity
        and row.row.measurement_mode == measurement_mode(study)
        and row.row.trial.accuracy in study.admitted(row.layer.problem)
    ]


@contextmanager
def acquire_study_lock(store: Store, study: Study, info: DeviceInfo, waits: Callable[[], None]) -> Iterator[None]:
    """Wait while another process tunes this study on such a device into this database; `waits` may raise to give up."""
    budget = RunBudget(time.time(), study.trials, study.trials_total, study.time_budget_total_s)
    with study_lock(cache_folder() / "locks", *_owned(store, study.name, info), waits=waits, budget=budget):
        yield


def latest_run_of(store: Store, study: str, info: DeviceInfo) -> LatestRun | None:
    """The latest run of a study on a device into this database; None if none is known on this machine."""
    return latest_run(cache_folder() / "locks", *_owned(store, study, info))


def _owned(store: Store, study: str, info: DeviceInfo) -> tuple[object, ...]:
    return store.path.resolve(), study, info.identity
