"""An agent as a Dask worker: what Dask calls, and the process that stays while schedulers come and go."""

from __future__ import annotations

import asyncio
import pickle
import secrets
import time
from collections.abc import Callable

from distributed import Worker, WorkerPlugin, get_worker

from autotune.cluster.agent import Agent
from autotune.cluster.dask_cluster import CONNECT_S, address_of
from autotune.cluster.lease import AgentInfo, Collecting, Lease, LeaseEnd

PLUGIN = "autotune-agent"
_AGAIN_S = 1.0  # between two attempts to reach a scheduler
_LOOK_S = 0.2
COLLECT = "autotune_collect"
"""what the coordinator asks an agent's worker for, without the scheduler between them"""
LISTEN_S = 5.0  # until an agent answers that it has nothing new
_NEWS_S = 0.1  # between two looks for something new
_HEARTBEAT_S = 5.0  # between two words to the scheduler, at most; Dask's own two a second cost it more than the trials


class AgentWorker(Worker):
    """A Dask worker that says less often that it lives."""

    heartbeat_s = 0.0
    """at least; the coordinator tells it"""

    async def heartbeat(self) -> None:
        """One of them; the scheduler's answer has set the pause to the next."""
        await super().heartbeat()
        beat = self.periodic_callbacks["heartbeat"]
        beat.callback_time = max(beat.callback_time, 1e3 * min(self.heartbeat_s, _HEARTBEAT_S))


class AgentPlugin(WorkerPlugin):
    """Hangs an agent on its Dask worker, where tasks and calls find it."""

    name = PLUGIN

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def setup(self, worker: Worker) -> None:
        """Answer the coordinator."""
        self._worker = worker
        worker.handlers[COLLECT] = self._collect

    async def _collect(self, words: bytes) -> bytes:
        """An agent's news, once there are some."""
        asked = pickle.loads(words)  # noqa: S301 - as all that Dask's own handlers take
        assert isinstance(asked, Collecting)  # noqa: S101
        self._worker.heartbeat_s = asked.heartbeat_s
        news, until = self.agent.collect(asked), time.monotonic() + LISTEN_S
        if news.state == asked.seen:
            while self.agent.state == asked.seen and time.monotonic() < until:
                await asyncio.sleep(_NEWS_S)
            news = self.agent.collect(asked)
        return pickle.dumps(news)


def run_lease(lease: Lease) -> LeaseEnd:
    """A Dask task: tune a layer on the agent that Dask has chosen."""
    return _agent(get_worker()).run(lease)


def introduce(dask_worker: Worker) -> AgentInfo | None:
    """A Dask call: who an agent is; None for a worker that is none."""
    return _agent(dask_worker).info if PLUGIN in dask_worker.plugins else None


def _agent(worker: Worker) -> Agent:
    plugin = worker.plugins[PLUGIN]
    assert isinstance(plugin, AgentPlugin)  # noqa: S101
    return plugin.agent


async def serve(agent: Agent, cluster: str, *, say: Callable[[str], None], stopping: Callable[[], bool]) -> None:
    """Be a worker of a cluster, again and again when its scheduler was lost, until asked to stop or retired."""
    label = agent.info.device_class.label
    waiting = False
    while not stopping() and not agent.retired:
        try:
            worker = AgentWorker(
                address_of(cluster),
                nthreads=1,
                name=f"{agent.info.name}-{secrets.token_hex(3)}",  # a lost one may be known yet
                resources={label: 1},
                plugins=[AgentPlugin(agent)],
                heartbeat_interval="1s",
            )
            async with asyncio.timeout(CONNECT_S):
                await worker
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            if not waiting:
                say(f"no scheduler at {cluster} ({' '.join(str(error).split())[:100]}); trying until there is one")
            waiting = True
            await asyncio.sleep(_AGAIN_S)
            continue
        waiting = False
        say(f"{agent.info.name}: serves {worker.scheduler.address} as {label}")
        while worker.status.name == "running" and not stopping() and not agent.retired:
            await asyncio.sleep(_LOOK_S)
        if not agent.retired and not stopping():
            say(f"{agent.info.name}: the scheduler was lost")
        agent.stop()
        await worker.close(executor_wait=agent.retired != "", timeout=2)
