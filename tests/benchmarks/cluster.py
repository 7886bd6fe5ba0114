"""What a trial costs coordinator and scheduler, and how busy simulated GPUs are: null devices of one second a trial.

    python -m tests.benchmarks.cluster --folder DIR --gpus 1 8 64

The simulated GPUs share one process; coordinator and scheduler share another, whose CPU time is told. Each GPU has a
layer of its own. Use is the time in kernels over GPUs x time between the first kernel's start and the last one's end.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from pathlib import Path

from distributed import Scheduler, Worker

from autotune.cluster.agent import Agent
from autotune.cluster.coordinator import Coordinator
from autotune.cluster.dask_agent import AgentPlugin
from autotune.cluster.dask_cluster import quiet
from autotune.cluster.ledger import Ledger
from autotune.evaluation.null import NullEvaluator
from autotune.family.template import load_templates
from autotune.store import Store
from autotune.study import load_study
from tests.cluster.chaos import study_of
from tests.unit.tiny import write_family

DELAY_S = 1.0
TRIALS = 20


async def simulate(address: str, folder: Path, gpus: int) -> None:
    """Agents in this process, until the scheduler has gone."""
    workers = []
    for number in range(gpus):
        made = Agent(f"gpu-{number}", folder / f"gpu-{number}", lambda: NullEvaluator(f"delay_ms={1e3 * DELAY_S}"), 1)
        resources = {made.info.device_class.label: 1}
        worker = Worker(address, nthreads=1, name=made.info.name, resources=resources, plugins=[AgentPlugin(made)])
        workers.append(await worker)
    print("ready", flush=True)
    while workers[0].status.name == "running":
        await asyncio.sleep(0.5)


async def measure(folder: Path, gpus: int) -> str:
    """A study on so many GPUs: a line of the table."""
    write_family(folder / "families")
    (folder / "small.toml").write_text(study_of(gpus, TRIALS).replace("trials =", 'sampler = "random"\ntrials =', 1))
    study, families = load_study(folder / "small.toml"), load_templates([folder / "families"])
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        command = [sys.executable, "-m", "tests.benchmarks.cluster", "--folder", str(folder), "--gpus", str(gpus)]
        agents = await asyncio.create_subprocess_exec(*command, "--simulate", scheduler.address, stdout=subprocess.PIPE)
        assert agents.stdout is not None
        await agents.stdout.readline()
        with Store(folder / "cluster.db") as store:
            ledger = Ledger(store, study, families, study.layers, None)
            coordinator = Coordinator(
                ledger,
                scheduler.address,
                wanted=(),
                lock=lambda _: None,
                observe=lambda _: None,
                say=lambda words: print(words, file=sys.stderr),
                stopping=lambda: False,
            )
            cpu_s = time.process_time()
            await coordinator.run()
            cpu_s = time.process_time() - cpu_s
            rows = [row for row in store.trials.list("small") if row.trial.compiled and row.ended_at]
        agents.kill()
        await agents.wait()
    span_s = (max(row.ended_at for row in rows if row.ended_at) - min(row.started_at for row in rows)).total_seconds()
    use = DELAY_S * len(rows) / gpus / span_s
    each_ms = 1e3 * cpu_s / ledger.trials
    return (
        f"| {gpus} | {len(rows)} | {len(rows) / span_s:.1f} | {use:.0%} | {each_ms:.2f} | {1e3 * cpu_s / span_s:.0f} |"
    )


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--simulate")
    given = parser.parse_args()
    quiet()
    if given.simulate:
        asyncio.run(simulate(given.simulate, given.folder, given.gpus[0]))
        return
    print("| GPUs | kernels | kernels/s | use | CPU ms a stored trial | CPU ms a second |\n|---|---|---|---|---|---|")
    for gpus in given.gpus:
        folder = given.folder / f"gpus{gpus}-{time.time_ns()}"
        folder.mkdir(parents=True)
        print(asyncio.run(measure(folder, gpus)), flush=True)


if __name__ == "__main__":
    main()
