"""How busy `tune --cluster` keeps simulated GPUs that take one second per kernel, and what a trial costs in CPU time.

    python -m tests.benchmarks.cluster --folder DIR --gpus 1 8 64 256

The scheduler and `tune` have one process each. The simulated GPUs share `--processes` other processes. Each GPU is a
cluster worker with its own layer. It reports one recorded trial per second instead of searching, because real workers
search on their own hosts. Utilization is the time in kernels divided by the number of GPUs and by the time from the
first kernel's start to the last one's end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import dask

from autotune.cluster.cluster_worker import ClusterWorker, OpenDevice
from autotune.cluster.coordinator import Coordinator
from autotune.cluster.layer_run import LayerRun, StudyRun
from autotune.cluster.scheduler import address_of, quiet
from autotune.cluster.task import LayerTask, Report, TaskEnd, reporting
from autotune.evaluation.null import NullEvaluator
from autotune.family.source import KernelSource
from autotune.family.template_files import load_templates
from autotune.store import Store
from autotune.study_reader import load_study
from autotune.trial import Config, Trial
from autotune.tuning.layer_finals import PLAIN_FINALS
from autotune.tuning.layer_result import PAUSED, LayerResult
from tests.cluster.chaos import study_of
from tests.unit.tiny import write_family

DELAY_S = 1.0
RECORDED = "recorded.pickle"
AT_ONCE = 25  # workers that start at the same time


@dataclass
class Recording:
    """The evaluated trials of a layer, with their kernels, and its result."""

    trials: list[Trial] = field(default_factory=list)
    sources: list[KernelSource] = field(default_factory=list)
    result: LayerResult | None = None

    def begin(self, number: int, config: Config, source: KernelSource, *, proposed_by: str) -> None:
        """A task reports a kernel."""
        self.sources.append(source)

    def end(self, trial: Trial) -> None:
        """A task reports a result."""
        self.trials.append(trial)

    def add_finals(self, *words: object) -> None:
        """Not reported: phases take no time here."""


def record(folder: Path) -> Recording:
    """A layer tuned on a null device that takes no time."""
    study, families = load_study(folder / "small.toml"), load_templates([folder / "families"])
    recording, device = Recording(), OpenDevice(NullEvaluator(""))
    with Store(folder / "recorded.db") as store:
        run = LayerRun(
            StudyRun.begin(store, study, families, PLAIN_FINALS, fresh=False), device.device_class, study.layers[0], {}
        )
        task = run.task("")
        task = replace(task, part=replace(task.part, evaluations=study.trials))
        recording.result = device.run(task, lambda call: call(recording), lambda: False).result  # type: ignore[arg-type]
    device.close()
    return recording


class SimulatedDevice(OpenDevice):
    """A simulated GPU that takes a second per kernel and reports recorded results."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(NullEvaluator(""))
        self._recording = recording

    def run(self, task: LayerTask, report: Callable[[Report], object], stopping: Callable[[], bool]) -> TaskEnd:
        """Report the next trials, one per second."""
        layer, done = reporting(report), len(task.state.trials)
        assert self._recording.result is not None
        for trial, source in list(zip(self._recording.trials, self._recording.sources, strict=True))[done:][
            : task.part.evaluations
        ]:
            text = f"{source.program.text}\n// {task.layer.name}"
            own = replace(source, program=replace(source.program, text=text), problem=task.layer.problem)
            layer.begin(done, trial.config, own, proposed_by="search")
            time.sleep(DELAY_S)
            stopping()
            layer.end(replace(trial, number=done, source_hash=own.hash))
            done += 1
        result = replace(self._recording.result, layer=task.layer, name=task.state.name, finals=None)
        return TaskEnd(replace(result, stopped="budget" if done >= len(self._recording.trials) else PAUSED), 0.0)


async def simulate(address: str, folder: Path, numbers: range) -> None:
    """Run workers in this process until the scheduler ends."""
    dask.config.set({"distributed.worker.use-file-locking": False, "temporary-directory": str(folder)})
    workers: list[ClusterWorker] = []
    recording = pickle.loads((folder / RECORDED).read_bytes())
    for begin in range(0, len(numbers), AT_ONCE):
        workers += await asyncio.gather(
            *(
                ClusterWorker(address, device=SimulatedDevice(recording), name=f"gpu-{number}")
                for number in numbers[begin : begin + AT_ONCE]
            )
        )
    print("ready", flush=True)
    while workers[0].status.name == "running":
        await asyncio.sleep(0.5)
    os._exit(0)


def cpu_s(pid: int) -> float:
    """The CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(folder: Path, gpus: int, trials: int, processes: int) -> str:
    """Tune a study on this many GPUs; returns a row of the table."""
    write_family(folder / "families")
    (folder / "small.toml").write_text(study_of(gpus, trials).replace("trials =", 'sampler = "random"\ntrials =', 1))
    study, families = load_study(folder / "small.toml"), load_templates([folder / "families"])
    (folder / RECORDED).write_bytes(pickle.dumps(record(folder)))
    file = folder / "scheduler.json"
    words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    scheduler = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "distributed.cli.dask_scheduler", *words, stderr=subprocess.DEVNULL
    )
    while not file.exists() or not file.read_text():
        await asyncio.sleep(0.1)
    command = [sys.executable, "-m", "tests.benchmarks.cluster", "--folder", str(folder), "--simulate", str(file)]
    workers = []
    for at in range(processes):
        share = [str(number) for number in (gpus * at // processes, gpus * (at + 1) // processes)]
        workers.append(await asyncio.create_subprocess_exec(*command, "--gpus", *share, stdout=subprocess.PIPE))
    for each in workers:
        assert each.stdout is not None
        await each.stdout.readline()
    with Store(folder / "cluster.db") as store:
        coordinator = Coordinator(
            StudyRun.begin(store, study, families, PLAIN_FINALS, fresh=False),
            study.layers,
            str(file),
            wanted=(),
            lock=lambda _: None,
            observe=lambda _: None,
            say=lambda words: print(words, file=sys.stderr),
            stopping=lambda: False,
        )
        before_s = time.process_time(), cpu_s(scheduler.pid)
        await coordinator.run()
        spent_s = time.process_time() - before_s[0], cpu_s(scheduler.pid) - before_s[1]
        rows = [row for row in store.trials.list("small") if row.trial.compiled and row.ended_at]
    for process in (*workers, scheduler):
        if process.returncode is None:
            process.kill()
        await process.wait()
    span_s = (max(row.ended_at for row in rows if row.ended_at) - min(row.started_at for row in rows)).total_seconds()
    use = DELAY_S * len(rows) / gpus / span_s
    own, other = (1e3 * each / len(rows) for each in spent_s)
    return f"| {gpus} | {len(rows)} | {len(rows) / span_s:.1f} | {use:.0%} | {own:.2f} | {other:.2f} |"


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--simulate", help=argparse.SUPPRESS)
    given = parser.parse_args()
    quiet()
    if given.simulate:
        asyncio.run(simulate(address_of(given.simulate), given.folder, range(*given.gpus)))
        return
    print("| GPUs | kernels | kernels/s | use | CPU ms a trial: tune | scheduler |")
    print("|---|---|---|---|---|---|")
    for gpus in given.gpus:
        folder = given.folder / f"gpus{gpus}-{time.time_ns()}"
        folder.mkdir(parents=True)
        print(asyncio.run(measure(folder, gpus, given.trials, given.processes)), flush=True)


if __name__ == "__main__":
    main()
