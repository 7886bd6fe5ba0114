"""A coordinator and workers on a scheduler of this process: which worker gets a layer, and what a lost worker costs."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from distributed import Scheduler, Worker

from autotune.cluster.cluster_worker import INFO, ClusterWorker, OpenDevice
from autotune.cluster.coordinator import ClusterResult, Coordinator, Overview
from autotune.cluster.layer_run import StudyRun
from autotune.cluster.scheduler import quiet
from autotune.cluster.task import EVALUATIONS, DeviceClass, TaskEnd
from autotune.evaluation.evaluator import Evaluator
from autotune.evaluation.null import NullEvaluator
from autotune.family.template_files import load_templates
from autotune.store import Store, TrialRow
from autotune.study_reader import load_study
from autotune.tuning.layer_finals import PLAIN_FINALS
from tests.cluster.chaos import study_of
from tests.cluster.test_tasks import Dying, PaperGpu
from tests.unit.tiny import write_family

TRIALS = 2 * EVALUATIONS + 5
PATIENCE_S = 120.0


@dataclass
class Cluster:
    """A scheduler, and the output of its coordinator."""

    folder: Path
    scheduler: Scheduler
    exits: AsyncExitStack
    lines: list[str] = field(default_factory=list)
    done: int = 0
    """layers"""
    stop: bool = False

    def observe(self, overview: Overview) -> None:
        self.done = overview.done

    async def start(self, name: str, evaluator: Evaluator) -> ClusterWorker:
        """A worker with a device."""
        device = OpenDevice(evaluator)
        self.exits.callback(device.close)
        worker: ClusterWorker = await ClusterWorker(self.scheduler.address, device=device, name=name)
        self.exits.push_async_callback(worker.close, executor_wait=False, timeout=1)
        return worker

    async def tune(self, layers: int, lock: Callable[[DeviceClass], None] = lambda _: None) -> ClusterResult:
        """The result of a study of this many layers on the first device class."""
        write_family(self.folder / "families")
        (self.folder / "small.toml").write_text(study_of(layers, TRIALS))
        study, families = load_study(self.folder / "small.toml"), load_templates([self.folder / "families"])
        with Store(self.folder / "all.db") as store:
            coordinator = Coordinator(
                StudyRun.begin(store, study, families, PLAIN_FINALS, fresh=False),
                study.layers,
                self.scheduler.address,
                wanted=(),
                lock=lock,
                observe=self.observe,
                say=self.lines.append,
                stopping=lambda: self.stop,
            )
            async with asyncio.timeout(PATIENCE_S):
                result, *_ = await coordinator.run()
        return result

    def rows(self) -> tuple[TrialRow, ...]:
        """The stored trials."""
        with Store(self.folder / "all.db", create=False) as store:
            return store.trials.list()

    async def until(self, what: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not what():
                await asyncio.sleep(0.02)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    quiet()
    options = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": ":0"}
    async with Scheduler(port=0, **options) as scheduler, AsyncExitStack() as exits:
        yield Cluster(folder, scheduler, exits)


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask's workers create a folder in the current directory."""
    monkeypatch.chdir(tmp_path)


def run(folder: Path, act: Callable[[Cluster], Awaitable[ClusterResult]]) -> ClusterResult:
    """The result of a coordinator while an action disturbed its cluster."""

    async def acted() -> ClusterResult:
        async with cluster(folder) as there:
            return await act(there)

    return asyncio.run(acted())


def test_a_gpu_that_is_lost_leaves_and_the_others_go_on(tmp_path: Path) -> None:
    async def act(there: Cluster) -> ClusterResult:
        sick = await there.start("sick", Dying(""))
        await there.start("good", PaperGpu("delay_ms=5"))
        found = await there.tune(2)
        await there.until(lambda: sick.status.name == "closed")
        rows = there.rows()
        assert [row.trial.reason for row in rows].count("worker_lost") == 1
        assert len({(row.layer.name, row.trial.config) for row in rows}) == len(rows)
        assert any(line.endswith("does not come back") for line in there.lines)
        return found

    found = run(tmp_path, act)
    assert ([result.evaluated for result in found.results], found.failed) == ([TRIALS, TRIALS], {})


def test_a_worker_that_leaves_in_order_costs_nothing(tmp_path: Path) -> None:
    async def act(there: Cluster) -> ClusterResult:
        leaving = await there.start("leaving", PaperGpu("delay_ms=20"))
        tuned = asyncio.create_task(there.tune(1))
        await there.until(lambda: bool(there.scheduler.tasks))
        await asyncio.sleep(0.5)
        await leaving.close_gracefully()
        await there.start("other", PaperGpu(""))
        found = await tuned
        rows = there.rows()
        assert len({row.trial.config for row in rows}) == len(rows)
        assert "worker_lost" not in {row.trial.reason for row in rows}
        return found

    assert [result.evaluated for result in run(tmp_path, act).results] == [TRIALS]


def test_a_task_that_dask_repeats_stores_nothing_twice(tmp_path: Path) -> None:
    """The worker is lost after its task, before `tune` has the result: Dask runs the task again elsewhere."""

    async def act(there: Cluster) -> ClusterResult:
        class Repeated(OpenDevice):
            def run(self, task: object, *arguments: object) -> TaskEnd:
                end = super().run(task, *arguments)  # type: ignore[arg-type]
                if not lost:
                    lost.append(True)
                    asyncio.run_coroutine_threadsafe(
                        there.scheduler.remove_worker(worker.address, stimulus_id="test", expected=True),
                        worker.loop.asyncio_loop,
                    ).result()
                return end

        lost: list[bool] = []
        device = Repeated(PaperGpu(""))
        there.exits.callback(device.close)
        worker: ClusterWorker = await ClusterWorker(there.scheduler.address, device=device, name="first")
        there.exits.push_async_callback(worker.close, executor_wait=False, timeout=1)
        tuned = asyncio.create_task(there.tune(1))
        await there.until(lambda: bool(lost))
        await there.start("second", PaperGpu(""))
        found = await tuned
        rows = there.rows()
        assert len({row.trial.config for row in rows}) == len({row.trial.number for row in rows}) == len(rows)
        return found

    found = run(tmp_path, act)
    assert ([result.evaluated for result in found.results], found.failed) == ([TRIALS], {})


def test_ctrl_c_ends_after_the_evaluation_at_hand(tmp_path: Path) -> None:
    async def act(there: Cluster) -> ClusterResult:
        await there.start("gpu", PaperGpu("delay_ms=300"))
        tuned = asyncio.create_task(there.tune(1))
        await there.until(lambda: bool(there.scheduler.tasks))
        await asyncio.sleep(1)
        there.stop = True
        found = await tuned
        assert all(row.ended_at for row in there.rows())
        return found

    (result,) = run(tmp_path, act).results
    assert result.cut_short
    assert 0 < result.evaluated < TRIALS


def test_a_class_that_another_process_tunes_keeps_no_other_waiting(tmp_path: Path) -> None:
    ours: list[str] = ["cuda"]

    def lock(device_class: DeviceClass) -> None:
        if device_class.info.kind not in ours:
            raise BlockingIOError

    async def act(there: Cluster) -> ClusterResult:
        await there.start("null", NullEvaluator(""))
        await there.start("gpu", PaperGpu(""))
        tuned = asyncio.create_task(there.tune(1, lock))
        await there.until(lambda: there.done == 1)
        assert {row.device.kind for row in there.rows()} == {"cuda"}
        ours.append("null")
        found = await tuned
        assert {row.device.kind for row in there.rows()} == {"cuda", "null"}
        return found

    assert len(run(tmp_path, act).results) == 1


def test_other_workers_get_no_task(tmp_path: Path) -> None:
    """Neither a plain Dask worker nor a worker with another version of autotune gets tasks."""

    async def act(there: Cluster) -> ClusterResult:
        info = pickle.dumps(DeviceClass("null:null:0", NullEvaluator("").info, NullEvaluator("").environment))
        for name, options in (
            ("plain", {}),
            ("old", {"resources": {"null:null:0": 1}, "startup_information": {INFO: lambda _: ("0.0.1", info)}}),
        ):
            worker = await Worker(there.scheduler.address, nthreads=1, dashboard=False, name=name, **options)
            there.exits.push_async_callback(worker.close, executor_wait=False, timeout=1)
        await there.start("good", PaperGpu(""))
        found = await there.tune(1)
        assert [line for line in there.lines if line.startswith("old: its autotune is 0.0.1, not ")]
        return found

    assert [result.evaluated for result in run(tmp_path, act).results] == [TRIALS]


SPEC = {"0": {"cls": "autotune.cluster.cluster_worker.ClusterWorker", "opts": {"device": "null"}}}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("dask_spec", "--spec", json.dumps(SPEC)), id="SSHCluster"),
        pytest.param(
            ("dask_worker", "--nthreads", "2", "--no-nanny", "--worker-class", SPEC["0"]["cls"]),
            id="dask-jobqueue",
            marks=[pytest.mark.cxx, pytest.mark.long],
        ),
    ],
)
def test_dask_starts_workers_by_their_class(tmp_path: Path, command: tuple[str, ...]) -> None:
    """SSHCluster and dask-jobqueue run this command on each host."""

    async def act(there: Cluster) -> ClusterResult:
        program, *options = command
        words = (sys.executable, "-m", f"distributed.cli.{program}", there.scheduler.address, *options)
        process = await asyncio.create_subprocess_exec(*words)
        try:
            return await there.tune(1)
        finally:
            process.kill()
            await process.wait()

    assert [result.evaluated for result in run(tmp_path, act).results] == [TRIALS]
