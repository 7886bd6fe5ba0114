"""An agent as a Dask worker: what Dask calls, and the process that stays while schedulers come and go."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from distributed import Worker, WorkerPlugin, get_worker

from autotune.cluster.agent import Agent
from autotune.cluster.dask_cluster import CONNECT_S, address_of
from autotune.cluster.lease import AgentInfo, Collected, Collecting, Lease, LeaseEnd

PLUGIN = "autotune-agent"
_AGAIN_S = 1.0  # between two attempts to reach a scheduler
_LOOK_S = 0.2


class AgentPlugin(WorkerPlugin):
    """Hangs an agent on its Dask worker, where tasks and calls find it."""

    name = PLUGIN

    def __init__(self, agent: Agent) -> None:
        self.agent = agent


def run_lease(lease: Lease) -> LeaseEnd:
    """A Dask task: tune a layer on the agent that Dask has chosen."""
    return _agent(get_worker()).run(lease)


def introduce(dask_worker: Worker) -> AgentInfo | None:
    """A Dask call: who an agent is; None for a worker that is none."""
    return _agent(dask_worker).info if PLUGIN in dask_worker.plugins else None


def collect(asked: Collecting, dask_worker: Worker) -> tuple[str, tuple[Collected, ...]]:
    """A Dask call: why the agent has retired, if it has, and what it has for the coordinator."""
    agent = _agent(dask_worker)
    return agent.retired, agent.collect(asked)


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
            worker = Worker(
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
