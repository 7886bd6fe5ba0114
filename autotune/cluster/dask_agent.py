"""An agent as a Dask worker: what Dask calls, and the process that stays while schedulers come and go."""

from __future__ import annotations

import asyncio
import pickle
import secrets
import time
from collections.abc import Callable

from distributed import Scheduler, Worker, WorkerPlugin, get_worker

from autotune.cluster.agent import Agent, CompilingAgent
from autotune.cluster.dask_cluster import CONNECT_S, address_of
from autotune.cluster.messages import Collecting, CompileFor, Lease, LeaseEnd, MeasureFor
from autotune.errors import StudyError, shortened
from autotune.printable import one_line

PLUGIN = "autotune-agent"
INFO = "autotune-agent-info"
"""what an agent tells of itself as its worker registers, and the scheduler keeps"""
_AGAIN_S = 1.0  # between two attempts to reach a scheduler
_LOOK_S = 0.2
COLLECT = "autotune_collect"
"""what the coordinator asks an agent's worker for, without the scheduler between them"""
LEND = "autotune_lend"
"""what an agent asks another one's worker for"""
LEND_S = 120.0  # until one that was asked to measure or compile is taken for lost: longer than any kernel may take
LISTEN_S = 5.0  # until an agent answers that it has nothing new
_NEWS_S = 0.1  # between two looks for something new
_HEARTBEAT_S = 5.0  # between two words to the scheduler, at most; Dask's own two a second cost it more than the trials


class AgentWorker(Worker):
    """A Dask worker with an agent; it says less often that it lives."""

    heartbeat_s = 0.0
    """at least; the coordinator tells it"""

    def __init__(self, address: str, agent: Agent | CompilingAgent, name: str) -> None:
        device_class = agent.info.device_class
        super().__init__(
            address,
            nthreads=1,
            name=name,
            resources={device_class.label: 1} if device_class else {},
            plugins=[AgentPlugin(agent)],
            heartbeat_interval="1s",
            startup_information={INFO: lambda _: pickle.dumps(agent.info)},
        )

    async def heartbeat(self) -> None:
        """One of them; the scheduler's answer has set the pause to the next."""
        await super().heartbeat()
        beat = self.periodic_callbacks["heartbeat"]
        beat.callback_time = max(beat.callback_time, 1e3 * min(self.heartbeat_s, _HEARTBEAT_S))


class AgentPlugin(WorkerPlugin):
    """Hangs an agent on its Dask worker, where tasks and calls find it."""

    name = PLUGIN

    def __init__(self, agent: Agent | CompilingAgent) -> None:
        self.agent = agent

    def setup(self, worker: Worker) -> None:
        """Answer the coordinator."""
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        worker.handlers[COLLECT] = self._collect
        worker.handlers[LEND] = self._lend
        self.agent.ask = self._ask

    def _ask(self, address: str, request: CompileFor | MeasureFor) -> object:
        """Ask another agent, from a thread of the line's."""
        return asyncio.run_coroutine_threadsafe(self._asked(address, request), self._loop).result()

    async def _asked(self, address: str, request: CompileFor | MeasureFor) -> object:
        async with asyncio.timeout(LEND_S):
            answer = await getattr(self._worker.rpc(address), LEND)(words=pickle.dumps(request))
        return pickle.loads(answer)  # noqa: S301 - as all that comes from another Dask worker

    async def _lend(self, words: bytes) -> bytes:
        """What another agent's line asks for."""
        request = pickle.loads(words)  # noqa: S301 - as all that Dask's own handlers take
        assert isinstance(request, CompileFor | MeasureFor)  # noqa: S101
        return pickle.dumps(await asyncio.to_thread(self.agent.lend, request))

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


def introduced(known: frozenset[str], *, dask_scheduler: Scheduler) -> dict[str, bytes | None]:
    """A call on the scheduler: its workers' addresses, with the AgentInfo, pickled, of each agent that is not known.

    One call for all: a call of each agent through the scheduler takes longer than its patience where they are many.
    """
    workers = dask_scheduler.workers.items()
    return {address: None if address in known else worker.extra.get(INFO) for address, worker in workers}


def _agent(worker: Worker) -> Agent | CompilingAgent:
    plugin = worker.plugins[PLUGIN]
    assert isinstance(plugin, AgentPlugin)  # noqa: S101
    return plugin.agent


async def _connected(worker: AgentWorker, stopping: Callable[[], bool]) -> bool:
    """Wait until its scheduler knows it; False where asked to stop before."""

    async def connect() -> None:
        await worker

    connecting = asyncio.create_task(connect())
    try:
        while not connecting.done():
            if stopping():
                return False
            await asyncio.wait([connecting], timeout=_LOOK_S)
        await connecting
    finally:
        connecting.cancel()
    return True


async def serve(
    agent: Agent | CompilingAgent,
    cluster: str,
    *,
    say: Callable[[str], None],
    stopping: Callable[[], bool],
    once: bool = False,
) -> None:
    """Be a worker of a cluster until asked to stop or retired; again when its scheduler was lost, unless but `once`.

    Raises StudyError where that is to be once and there is no scheduler.
    """
    device_class = agent.info.device_class
    label = device_class.label if device_class else "a compiler"
    waiting = False
    while not stopping() and not agent.retired:
        try:
            name = f"{agent.info.name}-{secrets.token_hex(3)}"  # a lost one may be known yet
            worker = AgentWorker(address_of(cluster), agent, name)
            async with asyncio.timeout(CONNECT_S):
                if not await _connected(worker, stopping):
                    return
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            why = shortened(one_line(str(error))) or "no answer"
            if once:
                if stopping():
                    return
                raise StudyError(f"no scheduler at {cluster} ({why})") from None
            if not waiting:
                say(f"no scheduler at {cluster} ({why}); trying until there is one")
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
        if once:
            return
