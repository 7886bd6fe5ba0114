"""The agents that a scheduler knows, each asked again and again for its news, by a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from distributed import Client

from autotune import __version__
from autotune.cluster.dask_agent import COLLECT, LISTEN_S, introduced
from autotune.cluster.messages import AgentInfo, Collecting, DeviceClass, Helper, News, check_news
from autotune.errors import AutotuneError, shortened
from autotune.printable import one_line
from autotune.store.sqlite.database import NOT_UNDERSTOOD

SILENT = 5  # errors in a row in place of answers, after which nothing is awaited from an agent; it is asked on
AGAIN_S = 1.0  # after such an error
PATIENCE_S = 5.0  # for an agent's answer, beyond what it may take; a stopped one gives none


@dataclass(slots=True, eq=False)
class KnownAgent:
    """An agent that the scheduler knows."""

    info: AgentInfo
    address: str
    visits: asyncio.Task[None] | None = None
    doing: str = "idle"
    empty: bool = False
    """whether it has nothing more for this study"""
    errors: int = 0
    """in a row, in place of answers"""
    retired: bool = False
    """whether it takes no lease; the next agent of its name may"""

    @property
    def silent(self) -> bool:
        """Whether nothing is awaited from it, and it gets no lease."""
        return self.errors >= SILENT


@dataclass(slots=True, eq=False)
class Visit:
    """What an agent has answered; it is asked again once it is said what was stored of that."""

    agent: KnownAgent
    news: News
    stored: asyncio.Future[Mapping[str, frozenset[int]]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """by lease"""

    @property
    def ended(self) -> bool:
        """Whether it tells of the end of a line."""
        return any(not each.live for each in self.news.collected)


class Agents:
    """Who is there. Agents answer once they have something new, or each LISTEN_S."""

    def __init__(
        self,
        wants: Callable[[DeviceClass], bool],
        admits: Callable[[DeviceClass], bool],
        asking: Callable[[KnownAgent, Mapping[str, frozenset[int]], int], Collecting],
        say: Callable[[str], None],
    ) -> None:
        """`wants` is for good; what it does not admit yet is asked for again at the next look."""
        self._wants, self._admits, self._asking, self._say = wants, admits, asking, say
        self._known: dict[str, KnownAgent | None] = {}
        """by address; None: a worker that is no agent, or whose class is not wanted"""
        self.waiting: frozenset[DeviceClass] = frozenset()
        """classes that were not admitted at the last look"""
        self._met: asyncio.Task[None] | None = None
        self._arrived: list[Visit] = []
        self.ended = asyncio.Event()
        """set when a line was heard to have ended"""

    def __iter__(self) -> Iterator[KnownAgent]:
        return (agent for agent in self._known.values() if agent is not None)

    def meet(self, client: Client) -> None:
        """Begin to get to know new agents, and forget those that have gone; raises what went wrong so far."""
        if self._met is not None and self._met.done():
            self._met.result()
            self._met = None
        self._met = self._met or asyncio.create_task(self._meet(client))

    async def _meet(self, client: Client) -> None:
        workers: dict[str, bytes | None] | None = None
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(PATIENCE_S):
                workers = await client.run_on_scheduler(introduced, frozenset(self._known))
        if workers is None:
            return
        for gone in self._known.keys() - workers:
            _end(self._known.pop(gone))
        waiting: set[DeviceClass] = set()
        for address in workers.keys() - self._known:
            agent = self._wanted(address, workers[address])
            device_class = agent.info.device_class if agent else None
            if device_class in waiting or not (device_class is None or self._admits(device_class)):
                waiting.add(device_class)
                continue
            self._known[address] = agent
            if agent is not None:
                agent.visits = asyncio.create_task(self._visit(client, address, agent))
        self.waiting = frozenset(waiting)

    def _wanted(self, address: str, words: bytes | None) -> KnownAgent | None:
        """A worker as what it told of itself as it registered; None for one that is no agent, or not wanted."""
        if words is None:
            return None
        try:
            info = pickle.loads(words)  # noqa: S301 - as all that comes from another Dask worker
            version = str(info.version)
        except (*NOT_UNDERSTOOD, pickle.UnpicklingError, EOFError, ImportError):
            info, version = None, "an older one"
        if version != __version__:
            self._say(f"{address}: its autotune is {version}, this is {__version__}; install one version on all hosts")
            return None
        if not isinstance(info, AgentInfo) or (info.device_class and not self._wants(info.device_class)):
            return None
        return KnownAgent(info, address)

    async def _visit(self, client: Client, address: str, agent: KnownAgent) -> None:
        """Ask an agent, again and again; what was stored is acknowledged by the next question."""
        stored: Mapping[str, frozenset[int]] = {}
        state = 0
        while True:
            asked = pickle.dumps(self._asking(agent, stored, state))
            try:
                async with asyncio.timeout(LISTEN_S + PATIENCE_S):
                    answer = await getattr(client.rpc(address), COLLECT)(words=asked)
            except (OSError, TimeoutError, ValueError):  # stopped, or gone: the scheduler will know
                await asyncio.sleep(1)
                continue
            except AutotuneError as error:
                await self._failed(agent, str(error))
                continue
            except (AttributeError, TypeError, KeyError, AssertionError) as error:  # of its own, which Dask raises here
                await self._not_understood(agent, error)
                continue
            try:
                news: News = pickle.loads(answer)  # noqa: S301
                check_news(news)
            except (*NOT_UNDERSTOOD, pickle.UnpicklingError, EOFError, ImportError) as error:
                await self._not_understood(agent, error)
                continue
            agent.errors = 0
            visit = Visit(agent, news)
            self._arrived.append(visit)
            if visit.ended:
                self.ended.set()
            stored, state = await visit.stored, news.state

    async def _not_understood(self, agent: KnownAgent, error: Exception) -> None:
        why = shortened(one_line(f"{type(error).__name__}: {error}"), 200)
        await self._failed(agent, f"its answer cannot be understood ({why}); it is asked again")

    async def _failed(self, agent: KnownAgent, words: str) -> None:
        """Say so once, and wait."""
        agent.errors += 1
        if agent.errors == 1:
            self._say(f"{agent.info.name}: {words}")
        await asyncio.sleep(AGAIN_S)

    def arrived(self, *, only_ended: bool) -> list[Visit]:
        """The answers since the last time; with `only_ended` those that tell of the end of a line."""
        found = [visit for visit in self._arrived if visit.ended or not only_ended]
        self._arrived = [visit for visit in self._arrived if only_ended and not visit.ended]
        return found

    def check(self) -> None:
        """Raise what has ended the visits to an agent."""
        for agent in self:
            if agent.visits is not None and agent.visits.done():
                agent.visits.result()

    def forget(self) -> None:
        """End all of them: their scheduler has gone."""
        for agent in self._known.values():
            _end(agent)
        if self._met is not None:
            self._met.cancel()
        self._met = None
        self._known.clear()
        self._arrived.clear()


def _end(agent: KnownAgent | None) -> None:
    if agent is not None and agent.visits is not None:
        agent.visits.cancel()


def lent(
    busy: Sequence[tuple[str, KnownAgent | None]], agents: Sequence[KnownAgent]
) -> Mapping[KnownAgent, tuple[Helper, ...]]:
    """Who helps which agent's line, evenly: those of its class that have none, and those that only compile.

    `busy` are leases: the class of each and its agent, None while that was not heard of.
    """
    lines = [agent for _, agent in busy if agent is not None]
    unheard = {label for label, agent in busy if agent is None}
    helpers: dict[KnownAgent, list[Helper]] = {line: [] for line in lines}
    for agent in agents:
        info = agent.info
        if info.device_class is not None and agent not in helpers and info.device_class.label not in unheard:
            served = [line for line in lines if line.info.device_class == info.device_class]
            if served:
                line = min(served, key=lambda each: len(helpers[each]))
                helpers[line].append(Helper(info.name, agent.address, info.slots, info.compilers))
        elif info.device_class is None:
            served = [line for line in lines if line.info.toolchain == info.toolchain]
            share = max(1, info.compilers // max(1, len(served)))
            for line in served:
                helpers[line].append(Helper(info.name, agent.address, 0, share))
    return {line: tuple(found) for line, found in helpers.items()}
