"""Tasks of a layer on an open device, without Dask: what they evaluate, report and leave to the next task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from autotune.cluster.cluster_worker import OpenDevice
from autotune.cluster.layer_run import LayerRun, StudyRun
from autotune.cluster.task import EVALUATIONS, WORKER_LOST, LayerTask, Report, TaskEnd
from autotune.devices.device import DeviceInfo
from autotune.errors import DeviceLost
from autotune.evaluation.evaluator import Evaluator
from autotune.evaluation.null import NullEvaluator
from autotune.family.template_files import load_templates
from autotune.store import Store
from autotune.study import Study
from autotune.study_reader import load_study
from autotune.trial import Measured, Outcome
from autotune.tuning.layer_finals import PLAIN_FINALS
from autotune.tuning.layer_result import LayerResult
from autotune.tuning.tune import tune
from tests.cluster.chaos import study_of
from tests.unit.tiny import write_family

TRIALS = 2 * EVALUATIONS + 5


class PaperGpu(NullEvaluator):
    """A null device that claims to be a GPU."""

    @property
    def info(self) -> DeviceInfo:
        return replace(super().info, kind="cuda", name="paper")


class Dying(PaperGpu):
    """A device that is lost during its third kernel."""

    measured = 0

    def evaluate(self, *words: object, **named: object) -> Measured:
        self.measured += 1
        if self.measured >= 3:
            raise DeviceLost("cuda:0: does not come back")
        return super().evaluate(*words, **named)  # type: ignore[arg-type]


@dataclass
class Setting:
    """A folder with a study, its database, and devices."""

    folder: Path
    store: Store
    devices: list[OpenDevice] = field(default_factory=list)

    def study(self, layers: int = 1, **changed: object) -> Study:
        (self.folder / "small.toml").write_text(study_of(layers, TRIALS))
        return replace(load_study(self.folder / "small.toml"), **changed)  # type: ignore[arg-type]

    def open(self, evaluator: Evaluator) -> OpenDevice:
        self.devices.append(OpenDevice(evaluator))
        return self.devices[-1]

    def begin(self, study: Study, device: OpenDevice, layer: int = 0, *, fresh: bool = False) -> LayerRun:
        families = load_templates([self.folder / "families"])
        run = StudyRun.begin(self.store, study, families, PLAIN_FINALS, fresh=fresh)
        return LayerRun(run, device.device_class, study.layers[layer], {})


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    write_family(tmp_path / "families")
    with Store(tmp_path / "all.db") as store:
        made = Setting(tmp_path, store)
        yield made
        for device in made.devices:
            device.close()


def run_task(run: LayerRun, device: OpenDevice, stopping: Callable[[], bool] = lambda: False) -> TaskEnd:
    """Run the next task, and store its reports."""
    return device.run(run.task(""), run.hear, stopping)


def run_all(run: LayerRun, device: OpenDevice) -> tuple[LayerResult, int]:
    """Run tasks until the layer is tuned; returns the result and the number of tasks."""
    result, tasks = None, 0
    while result is None:
        result, tasks = run.end(run_task(run, device)), tasks + 1
    return result, tasks


def test_tasks_evaluate_what_one_run_evaluates(setting: Setting, tmp_path: Path) -> None:
    device, study = setting.open(NullEvaluator("compile=0.1")), setting.study()
    result, tasks = run_all(setting.begin(study, device), device)
    assert (tasks, result.new, result.stopped) == (3, TRIALS, "budget")
    with Store(tmp_path / "alone.db") as alone:
        (expected,) = tune(study, load_templates([tmp_path / "families"]), NullEvaluator("compile=0.1"), alone)
        both = [
            [(row.trial.number, row.trial.config, row.trial.outcome, row.median_us) for row in store.trials.list()]
            for store in (alone, setting.store)
        ]
    assert both[0] == both[1]
    assert expected.finals is not None
    assert result.finals is not None
    assert (result.finals.winner.config, result.finals.compared) == (
        expected.finals.winner.config,
        expected.finals.compared,
    )


def test_finals_are_held_once_and_against_the_best_before_the_run(setting: Setting) -> None:
    device = setting.open(NullEvaluator(""))
    few = setting.study(trials=5, sampler="random")
    first, _ = run_all(setting.begin(few, device), device)
    again, _ = run_all(setting.begin(few, device), device)
    assert (again.new, again.finals) == (0, None)
    more, tasks = run_all(setting.begin(replace(few, trials=TRIALS), device), device)
    assert tasks > 1
    assert more.finals is not None
    assert first.best is not None
    assert more.finals.winner.config != first.best.config
    assert "previous best" in {each.against for each in more.finals.compared}
    assert len({row.ended_at for row in setting.store.finals.list()}) == 2


def test_a_lost_worker_costs_the_evaluation_that_was_running(setting: Setting) -> None:
    dying, good = setting.open(Dying("")), setting.open(PaperGpu(""))
    run = setting.begin(setting.study(), dying)
    with pytest.raises(DeviceLost):
        run_task(run, dying)
    assert "does not come back" in dying.lost
    run.lose("gpu-1 was lost")
    result, _ = run_all(run, good)
    rows = setting.store.trials.list()
    (lost,) = [row for row in rows if row.trial.reason == WORKER_LOST]
    assert (lost.trial.outcome, lost.trial.message, lost.attempts) == (Outcome.RUNTIME, "gpu-1 was lost", 1)
    assert len({row.trial.config for row in rows}) == len(rows)
    assert result.evaluated == TRIALS


def test_trials_behind_the_lost_one_are_tried_again_alone(setting: Setting) -> None:
    device = setting.open(PaperGpu("compilers=2"))
    run = setting.begin(setting.study(), device)
    begun = []

    def lost(call: Report) -> None:
        run.hear(call)
        begun.append(call)
        if len(setting.store.trials.suspects(run._stored.scope)) == 2:
            raise DeviceLost("the host went down")

    with pytest.raises(DeviceLost):
        device.run(run.task(""), lost, lambda: False)
    run.lose("gpu-1 was lost")
    run_all(run, device)
    rows = setting.store.trials.list()
    assert [row.attempts for row in rows if row.trial.reason == WORKER_LOST] == [1]
    assert [row.trial.outcome for row in rows if row.attempts == 2] == [Outcome.CORRECT]
    assert all(row.ended_at for row in rows)


def test_a_later_layer_starts_from_the_best_of_an_earlier_one(setting: Setting) -> None:
    device, study = setting.open(NullEvaluator("")), setting.study(layers=2)
    run_all(setting.begin(study, device, 0), device)
    result, _ = run_all(setting.begin(study, device, 1), device)
    design = result.design
    assert design is not None
    assert design.by == "warm_start"
    assert design.layers[0][0] == "small.layer0 on null"


def test_kernels_of_another_study_are_not_measured_again(setting: Setting) -> None:
    device, study = setting.open(NullEvaluator("")), setting.study(warm_start=False)
    run_all(setting.begin(study, device), device)
    result, _ = run_all(setting.begin(replace(study, name="other"), device), device)
    assert (result.evaluated, result.new) == (TRIALS, 0)


def test_the_time_budget_of_a_layer_counts_all_its_tasks(setting: Setting) -> None:
    device = setting.open(NullEvaluator(""))
    run = setting.begin(setting.study(time_budget_s=3600), device)
    assert run.end(replace(run_task(run, device), spent_s=3600)) is None
    result, tasks = run_all(run, device)
    assert (tasks, result.stopped) == (1, "time")
    assert EVALUATIONS <= result.new < 2 * EVALUATIONS


def test_the_first_tasks_of_a_studys_layers_do_not_all_end_together(setting: Setting) -> None:
    device, study = setting.open(NullEvaluator("")), setting.study(layers=40)
    first = [setting.begin(study, device, at).task("").part.evaluations for at in range(40)]
    assert min(first) >= EVALUATIONS
    assert max(first.count(length) for length in first) <= 6


def test_a_task_that_is_to_stop_ends_after_the_evaluation_at_hand(setting: Setting) -> None:
    device = setting.open(NullEvaluator(""))
    run = setting.begin(setting.study(), device)
    task: LayerTask = run.task("")
    reports = []

    def report(call: Report) -> None:
        reports.append(call)
        run.hear(call)

    end = device.run(task, report, lambda: len(setting.store.trials.list()) >= 3)
    assert end.result.cut_short
    assert len(setting.store.trials.list()) == 3
    assert not setting.store.trials.list(outcome="running")
