"""A coordinator and agents on a scheduler of this process: who gets which lease, and when a run ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from distributed import Scheduler

from autotune.cluster.agent import Agent
from autotune.cluster.coordinator import Coordinator
from autotune.cluster.dask_agent import AgentWorker
from autotune.cluster.dask_cluster import quiet
from autotune.cluster.ledger import Ledger
from autotune.cluster.overview import ClusterResult
from autotune.evaluation.evaluator import Evaluator
from autotune.family.template_files import load_templates
from autotune.store import Store
from autotune.study_reader import load_study
from autotune.tuning.layer_finals import PLAIN_FINALS
from tests.cluster.chaos import study_of
from tests.cluster.test_agent import Dying, GpuOfPaper
from tests.unit.tiny import write_family

TRIALS = 4
PATIENCE_S = 60.0


@dataclass
class Cluster:
    """A scheduler, and what a coordinator says and comes to."""

    folder: Path
    scheduler: Scheduler
    exits: AsyncExitStack
    said: list[str] = field(default_factory=list)

    async def start(self, name: str, make: Callable[[], Evaluator]) -> AgentWorker:
        """A new agent of a name."""
        agent = Agent(name, self.folder / name, make, 1)
        self.exits.callback(agent.close)
        return await self.serve(agent)

    async def serve(self, agent: Agent) -> AgentWorker:
        """The worker of an agent, at an address of its own."""
        name = f"{agent.info.name}-{len(self.scheduler.workers)}"
        worker: AgentWorker = await AgentWorker(self.scheduler.address, agent, name)
        self.exits.push_async_callback(worker.close, executor_wait=False, timeout=1)
        return worker

    async def tuned(self, layers: int) -> ClusterResult:
        """What the coordinator of a study of so many layers comes to, on the one class there is."""
        write_family(self.folder / "families")
        (self.folder / "small.toml").write_text(study_of(layers, TRIALS))
        study, families = load_study(self.folder / "small.toml"), load_templates([self.folder / "families"])
        with Store(self.folder / "all.db") as store:
            ledger = Ledger(store, study, families, study.layers, PLAIN_FINALS)
            coordinator = Coordinator(
                ledger,
                self.scheduler.address,
                wanted=(),
                lock=lambda _: None,
                observe=lambda _: None,
                say=self.said.append,
                stopping=lambda: False,
            )
            async with asyncio.timeout(PATIENCE_S):
                (result,) = await coordinator.run()
        return result

    async def heard(self, words: str) -> None:
        """Wait until the coordinator has said something with these words."""
        async with asyncio.timeout(PATIENCE_S):
            while not any(words in each for each in self.said):
                await asyncio.sleep(0.02)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    quiet()
    async with Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler, AsyncExitStack() as exits:
        yield Cluster(folder, scheduler, exits)


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask's workers keep a folder where they are."""
    monkeypatch.chdir(tmp_path)


def run(folder: Path, act: Callable[[Cluster], Awaitable[ClusterResult]]) -> ClusterResult:
    """What the coordinator came to while something was done to its cluster."""

    async def acted() -> ClusterResult:
        async with cluster(folder) as there:
            return await act(there)

    return asyncio.run(acted())


def test_a_gpu_that_is_lost_costs_no_layer_where_another_is_there(tmp_path: Path) -> None:
    async def act(there: Cluster) -> ClusterResult:
        await there.start("sick", lambda: Dying(""))
        await there.start("good", lambda: GpuOfPaper("delay_ms=20"))
        found = await there.tuned(2)
        lost = [words.partition(" ")[0] for words in there.said if "does not come back" in words]
        assert lost
        assert len(set(lost)) == len(lost), "no layer goes twice to who lost it"
        return found

    found = run(tmp_path, act)
    assert (len(found.results), found.failed) == (2, {})
