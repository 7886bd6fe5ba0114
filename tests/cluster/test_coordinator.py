"""A coordinator and agents on a scheduler of this process: who gets which lease, and when a run ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from distributed import Scheduler

from autotune import __version__
from autotune.cluster.agent import Agent
from autotune.cluster.coordinator import Coordinator
from autotune.cluster.dask_agent import AgentWorker
from autotune.cluster.dask_cluster import quiet
from autotune.cluster.ledger import Ledger
from autotune.cluster.messages import Collecting, DeviceClass, News
from autotune.cluster.overview import ClusterResult, Overview
from autotune.errors import StoreError
from autotune.evaluation.evaluator import Evaluator
from autotune.evaluation.null import NullEvaluator
from autotune.family.template_files import load_templates
from autotune.measurement.benchmark import summarise
from autotune.store import Store
from autotune.study_reader import load_study
from autotune.tuning.layer_finals import PLAIN_FINALS
from autotune.workers.worker import FinalsTimings
from tests.cluster.chaos import study_of
from tests.cluster.test_agent import Dying, GpuOfPaper
from tests.cluster.test_agents import agent_of
from tests.unit.tiny import write_family

TRIALS = 4
PATIENCE_S = 30.0


@dataclass
class Cluster:
    """A scheduler, and what a coordinator says and comes to."""

    folder: Path
    scheduler: Scheduler
    exits: AsyncExitStack
    said: list[str] = field(default_factory=list)
    agents: dict[str, str] = field(default_factory=dict)
    """that the coordinator knew, and what each did last"""
    done: int = 0
    """layers"""

    def observe(self, overview: Overview) -> None:
        self.agents.update(overview.agents)
        self.done = overview.done

    def open(self, name: str, make: Callable[[], Evaluator]) -> Agent:
        """A new agent of a name."""
        agent = Agent(name, self.folder / name, make, 1)
        self.exits.callback(agent.close)
        return agent

    async def start(self, name: str, make: Callable[[], Evaluator]) -> AgentWorker:
        """The worker of a new agent."""
        return await self.serve(self.open(name, make))

    async def serve(self, agent: Agent) -> AgentWorker:
        """The worker of an agent, at an address of its own."""
        name = f"{agent.info.name}-{len(self.scheduler.workers)}"
        worker: AgentWorker = await AgentWorker(self.scheduler.address, agent, name)
        self.exits.push_async_callback(worker.close, executor_wait=False, timeout=1)
        return worker

    async def tuned(self, layers: int, lock: Callable[[DeviceClass], None] = lambda _: None) -> ClusterResult:
        """What the coordinator of a study of so many layers comes to, on the class that it came to first."""
        write_family(self.folder / "families")
        (self.folder / "small.toml").write_text(study_of(layers, TRIALS))
        study, families = load_study(self.folder / "small.toml"), load_templates([self.folder / "families"])
        with Store(self.folder / "all.db") as store:
            ledger = Ledger(store, study, families, study.layers, PLAIN_FINALS)
            coordinator = Coordinator(
                ledger,
                self.scheduler.address,
                wanted=(),
                lock=lock,
                observe=self.observe,
                say=self.said.append,
                stopping=lambda: False,
            )
            async with asyncio.timeout(PATIENCE_S):
                result, *_ = await coordinator.run()
        return result

    async def heard(self, words: str) -> None:
        """Wait until the coordinator has said something with these words."""
        await self.until(lambda: any(words in each for each in self.said))

    async def until(self, what: Callable[[], bool]) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not what():
                await asyncio.sleep(0.02)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    quiet()
    words = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": ":0"}
    async with Scheduler(port=0, **words) as scheduler, AsyncExitStack() as exits:
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


class Hot(GpuOfPaper):
    """A kernel differs from itself by a tenth in its finals."""

    def finals(self, *words: object, **named: object) -> FinalsTimings:
        timings = super().finals(*words, **named)  # type: ignore[arg-type]
        *own, again = timings.kernels
        slower = summarise([1.1 * each for each in again.samples_us], again.cache)
        return replace(timings, kernels=(*own, slower))


@pytest.mark.long
def test_a_lease_for_an_agent_that_has_gone_is_given_to_another(tmp_path: Path) -> None:
    """It was given to the address of before, since the coordinator looks for agents every two seconds."""
    going_on = threading.Event()
    going_on.set()

    class Good(GpuOfPaper):
        def finals(self, *words: object, **named: object) -> FinalsTimings:
            going_on.wait(PATIENCE_S)
            return super().finals(*words, **named)  # type: ignore[arg-type]

    async def act(there: Cluster) -> ClusterResult:
        good = await there.start("good", lambda: Good("delay_ms=20"))
        await there.start("hot", lambda: Hot("delay_ms=500"))
        tuned = asyncio.create_task(there.tuned(2))
        await there.heard("hot: a kernel differs from itself")
        going_on.clear()
        probe = await AgentWorker(there.scheduler.address, agent_of("probe", __version__), "probe")
        await there.until(lambda: "probe" in there.agents)  # the coordinator has just looked
        await good.close(executor_wait=False, timeout=1)
        going_on.set()
        await probe.close(timeout=1)
        return await tuned

    found = run(tmp_path, act)
    assert sorted(result.finals is not None and result.finals.noise > 0.05 for result in found.results) == [False, True]


def test_who_was_retired_gets_leases_when_it_is_started_again(tmp_path: Path) -> None:
    async def act(there: Cluster) -> ClusterResult:
        agent = there.open("gpu", lambda: Dying(""))
        worker = await there.serve(agent)
        tuned = asyncio.create_task(there.tuned(1))
        await there.until(lambda: any(words.startswith("gpu: cuda:0: does not come back") for words in there.said))
        await there.heard("no agent has paper any more; waiting for one")
        await worker.close(timeout=1)
        agent.close()
        await there.start("gpu", lambda: GpuOfPaper(""))
        return await tuned

    found = run(tmp_path, act)
    assert (len(found.results), found.failed) == (1, {})


def test_a_class_that_another_process_tunes_keeps_no_other_waiting(tmp_path: Path) -> None:
    ours: list[str] = ["cuda"]

    def lock(device_class: DeviceClass) -> None:
        if device_class.info.kind not in ours:
            raise BlockingIOError

    async def act(there: Cluster) -> ClusterResult:
        await there.start("null", lambda: NullEvaluator(""))
        await there.start("gpu", lambda: GpuOfPaper("delay_ms=20"))
        tuned = asyncio.create_task(there.tuned(1, lock))
        await there.until(lambda: there.done == 1)
        assert "null" not in there.agents
        ours.append("null")
        found = await tuned
        assert (there.done, "null" in there.agents) == (2, True)
        return found

    assert len(run(tmp_path, act).results) == 1


class Full(Agent):
    """Its journals' disk is full."""

    def collect(self, asked: Collecting) -> News:
        raise StoreError("database or disk is full")


def test_an_agent_that_answers_with_errors_does_not_keep_a_run_from_its_end(tmp_path: Path) -> None:
    async def act(there: Cluster) -> ClusterResult:
        full = Full("full", tmp_path / "full", lambda: GpuOfPaper(""), 1)
        there.exits.callback(full.close)
        await there.serve(full)
        await there.start("good", lambda: GpuOfPaper(""))
        found = await there.tuned(2)
        assert there.said.count("full: database or disk is full") == 1
        assert "full: gave no answer; what it has measured stays in its journals" in there.said
        return found

    assert len(run(tmp_path, act).results) == 2
