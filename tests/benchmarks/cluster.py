"""What a trial costs coordinator and scheduler, and how busy simulated GPUs are: null devices of one second a trial.

    python -m tests.benchmarks.cluster --folder DIR --gpus 1 8 64 256 1000

Scheduler and coordinator are a process each, whose CPU time is told, from the first stored trials to the last,
divided by the trials between. The simulated GPUs share `--processes` others. Each is a Dask worker of its own, with
an agent's messages and leases, and a layer of its own; what it does not do is search and journal: it delivers what a
line has recorded, a kernel each second. Real agents do that on their own hosts. Use is the time in kernels over
GPUs x time between the first kernel's start and the last one's end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import dask

from autotune.cluster.agent import Agent, CompilingAgent
from autotune.cluster.coordinator import Coordinator
from autotune.cluster.dask_agent import AgentWorker
from autotune.cluster.dask_cluster import address_of, quiet
from autotune.cluster.ledger import Ledger
from autotune.cluster.messages import Collected, Collecting, DeviceClass, Lease, LeaseEnd, News
from autotune.evaluation.null import NullEvaluator
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_templates
from autotune.problem import Layer
from autotune.store import Delivery, Store
from autotune.store.column_types import Values, date_text
from autotune.study import Study
from autotune.study_reader import load_study
from tests.cluster.chaos import study_of
from tests.unit.tiny import write_family

DELAY_S = 1.0
RECORDED = "recorded.pickle"
AT_ONCE = 25  # workers that begin side by side


class TimedLedger(Ledger):
    """Counts the CPU time of what the database costs, and of all else, from its first trials on."""

    storing_s = leasing_s = 0.0
    scheduler = 0
    before: tuple[float, float] | None = None
    """of this process and the scheduler's, once the first trials were stored"""
    first = 0
    """trials that were"""

    def store(self, arrived: Sequence[tuple[Lease, Collected]]) -> tuple[frozenset[int], ...]:
        """As it does, timed."""
        began = time.thread_time()
        stored = super().store(arrived)
        self.storing_s += time.thread_time() - began
        if self.before is None and self.trials:
            self.before, self.first = (time.process_time(), cpu_s(self.scheduler)), self.trials
            self.storing_s = self.leasing_s = 0.0
        return stored

    def lease(self, device_class: DeviceClass, layer: Layer) -> Lease:
        """As it does, timed."""
        began = time.thread_time()
        lease = super().lease(device_class, layer)
        self.leasing_s += time.thread_time() - began
        return lease


def cpu_s(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Recording:
    """A layer's trials as a real agent delivers them, taken over by simulated GPUs for their own layers."""

    end: LeaseEnd
    deliveries: tuple[Delivery, ...]

    @staticmethod
    def made(folder: Path, study: Study, families: Mapping[str, KernelTemplate]) -> Recording:
        """By a line without its seconds, before the agents begin: its search would hold up all of a process's."""
        device = NullEvaluator("")
        with Store(folder / "recorded.db") as store:
            ledger = Ledger(store, study, families, study.layers, None)
            lease = ledger.lease(DeviceClass.of(device.info, device.environment), study.layers[0])
        device.close()
        agent = Agent("recorded", folder / "recorded", lambda: NullEvaluator(""), 1)
        end = agent.run(lease)
        (collected,) = agent.collect(Collecting(lease.owner, 0, frozenset(), {}, 0, 1.0)).collected
        agent.close()
        return Recording(end, collected.done)

    def of(self, lease: Lease) -> tuple[LeaseEnd, tuple[Delivery, ...]]:
        """What comes of a lease."""
        own = [
            replace(each, source=each.source and {**each.source, "hash": str(each.source["hash"]) + lease.id})
            for each in self.deliveries
        ]
        return replace(self.end, result=replace(self.end.result, layer=lease.layer)), tuple(own)


class SimulatedAgent(CompilingAgent):
    """One GPU of a second a kernel: told as an agent tells it, of recorded trials instead of a line and a journal."""

    def __init__(self, name: str, recording: Recording) -> None:
        device = NullEvaluator("")
        toolchain = (device.info.kind, device.environment.toolkit, device.environment.flags)
        super().__init__(name, 1, toolchain, lambda source, _: device.compile(source), device.close)
        self.device_class = DeviceClass.of(device.info, device.environment)
        self.info = replace(self.info, device_class=self.device_class, slots=1)
        self._recording = recording
        self._told: dict[str, tuple[Lease, list[Delivery]]] = {}
        self._live = ""

    def run(self, lease: Lease) -> LeaseEnd:
        """Deliver a trial each second, and what took no second with the next one."""
        end, deliveries = self._recording.of(lease)
        told: list[Delivery] = []
        self._told[lease.id], self._live = (lease.bare, told), lease.id
        for each in deliveries:
            started = datetime.now(UTC)
            if each.measurement is not None:
                time.sleep(DELAY_S)
            times: Values = {"started_at": date_text(started), "ended_at": date_text(datetime.now(UTC))}
            told.append(replace(each, trial={**each.trial, **times}))
            self.state += each.measurement is not None
        self._live = ""
        self.state += 1
        return replace(end, agent=self.info.name)

    def collect(self, asked: Collecting) -> News:
        """What is not acknowledged."""
        found = []
        for lease_id, (lease, told) in list(self._told.items()):
            stored = asked.stored.get(lease_id, frozenset())
            told[:] = [each for each in told if each.id not in stored]
            live = self._live == lease_id
            if not live and not told and lease_id not in asked.current:
                del self._told[lease_id]
                self.state += 1
                continue
            known = None if lease_id in asked.current else lease
            found.append(Collected(lease_id, known, live, tuple(told), len(told), None))
        return News(self.state, "", tuple(found))


async def simulate(address: str, folder: Path, numbers: range) -> None:
    """Agents in this process, until the scheduler has gone."""
    dask.config.set({"distributed.worker.use-file-locking": False, "temporary-directory": str(folder)})
    workers, recording = [], pickle.loads((folder / RECORDED).read_bytes())
    for begin in range(0, len(numbers), AT_ONCE):
        agents = [SimulatedAgent(f"gpu-{number}", recording) for number in numbers[begin : begin + AT_ONCE]]
        workers += await asyncio.gather(*(AgentWorker(address, each, each.info.name) for each in agents))
    print("ready", flush=True)
    while workers[0].status.name == "running":
        await asyncio.sleep(0.5)
    os._exit(0)  # lines that sleep have nothing left to do


async def measure(folder: Path, gpus: int, trials: int, processes: int) -> str:
    """A study on so many GPUs: a line of the table."""
    write_family(folder / "families")
    (folder / "small.toml").write_text(study_of(gpus, trials).replace("trials =", 'sampler = "random"\ntrials =', 1))
    study, families = load_study(folder / "small.toml"), load_templates([folder / "families"])
    (folder / RECORDED).write_bytes(pickle.dumps(Recording.made(folder, study, families)))
    file = folder / "scheduler.json"
    words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    scheduler = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "distributed.cli.dask_scheduler", *words, stderr=subprocess.DEVNULL
    )
    while not file.exists() or not file.read_text():
        await asyncio.sleep(0.1)
    command = [sys.executable, "-m", "tests.benchmarks.cluster", "--folder", str(folder), "--simulate", str(file)]
    agents = []
    for at in range(processes):
        share = [str(number) for number in (gpus * at // processes, gpus * (at + 1) // processes)]
        agents.append(await asyncio.create_subprocess_exec(*command, "--gpus", *share, stdout=subprocess.PIPE))
    for each in agents:
        assert each.stdout is not None
        await each.stdout.readline()
    with Store(folder / "cluster.db") as store:
        ledger = TimedLedger(store, study, families, study.layers, None)
        ledger.scheduler = scheduler.pid
        coordinator = Coordinator(
            ledger,
            str(file),
            wanted=(),
            lock=lambda _: None,
            observe=lambda _: None,
            say=lambda words: print(words, file=sys.stderr),
            stopping=lambda: False,
        )
        await coordinator.run()
        assert ledger.before is not None
        spent_s = [time.process_time() - ledger.before[0], cpu_s(scheduler.pid) - ledger.before[1]]
        spent_s += [ledger.storing_s, ledger.leasing_s]
        trials = ledger.trials - ledger.first
        rows = [row for row in store.trials.list("small") if row.trial.compiled and row.ended_at]
    for process in (*agents, scheduler):  # agents end by themselves once their scheduler has gone
        process.kill()
        await process.wait()
    span_s = (max(row.ended_at for row in rows if row.ended_at) - min(row.started_at for row in rows)).total_seconds()
    use = DELAY_S * len(rows) / gpus / span_s
    own, other, storing, leasing = (1e3 * each / trials for each in spent_s)
    return (
        f"| {gpus} | {len(rows)} | {len(rows) / span_s:.1f} | {use:.0%} | {own + other:.2f} | {other:.2f} "
        f"| {own - storing - leasing:.2f} | {storing:.2f} | {leasing:.2f} |"
    )


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--simulate", help=argparse.SUPPRESS)
    given = parser.parse_args()
    quiet()
    if given.simulate:
        asyncio.run(simulate(address_of(given.simulate), given.folder, range(*given.gpus)))
        return
    print("| GPUs | kernels | kernels/s | use | CPU ms a trial | scheduler | messages | storing | leases |")
    print("|---|---|---|---|---|---|---|---|---|")
    for gpus in given.gpus:
        folder = given.folder / f"gpus{gpus}-{time.time_ns()}"
        folder.mkdir(parents=True)
        print(asyncio.run(measure(folder, gpus, given.trials, given.processes)), flush=True)


if __name__ == "__main__":
    main()
