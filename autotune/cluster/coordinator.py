"""The coordinator: gives out leases by Dask, gathers trials, stores them; goes on when anything else was lost."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass

from distributed import Client, Future, KilledWorker

from autotune.cluster.agents import PATIENCE_S, Agents, KnownAgent, Visit, lent
from autotune.cluster.dask_agent import run_lease
from autotune.cluster.dask_cluster import CONNECT_S, TTL_S, address_of, knock, prepare
from autotune.cluster.ledger import Ledger
from autotune.cluster.messages import Collected, Collecting, DeviceClass, Helper, Lease, LeaseEnd, LeaseLost
from autotune.cluster.overview import ClusterResult, Overview
from autotune.cluster.stragglers import Stragglers
from autotune.devices.device import devices_named
from autotune.errors import AutotuneError, StudyError, shortened
from autotune.printable import one_line
from autotune.problem import Layer, Problem
from autotune.store import Delivery
from autotune.tuning.layer_result import LayerResult

BATCH_S = 2.0  # between two commits, each of what all agents have answered by then; a line's end does not wait for it
SHARE_S = 0.02  # of that for each agent, where they are many: an answer costs a millisecond, whatever it brings
MOST_S = 5.0  # of it for all
BEATS = 4  # an agent's words to the scheduler, by when it would be lost
LOOK_S = 0.5  # between two looks for what is to be done
ENDS_S = 0.1  # from an agent's word that a line has ended to Dask's
STOP_S = 20.0  # for lines to end when the run was asked to stop
CONNECTIONS = 1 << 14  # to agents, each of which is asked all the time
MEET_S = 2.0  # between two looks for new agents
KINDS = ("cuda", "host", "null", "replay")
ATTEMPTS = 3  # of a layer on a class of devices, which end by an error
FIRST_S = 8.0  # for a scheduler that is started together with the run
WAIT_S = 60.0  # for the first agent of a class that was asked for


@dataclass(slots=True, eq=False)
class _Given:
    """A lease that was given out."""

    lease: Lease
    future: Future | None
    """None: it has ended, and its trials are awaited"""
    only: Collection[str] | None
    """addresses of those who may have it; None: all of the class"""
    end: LeaseEnd | None = None
    running: Sequence[Delivery] = ()
    """by its agent's last word"""
    agent: KnownAgent | None = None
    """None: it was not heard of yet"""
    drained: bool = False
    """whether its agent has nothing of it that is not stored"""


class Coordinator:
    """Tunes a study on every class of devices that agents bring, or on those that are wanted."""

    def __init__(
        self,
        ledger: Ledger,
        cluster: str,
        *,
        wanted: Sequence[str],
        lock: Callable[[DeviceClass], None],
        observe: Callable[[Overview], None],
        say: Callable[[str], None],
        stopping: Callable[[], bool],
    ) -> None:
        """`lock` makes the study on a class this run's; raises BlockingIOError while it is another's."""
        self._ledger, self._cluster, self._wanted = ledger, cluster, wanted
        self._lock, self._observe, self._say, self._stopping = lock, observe, say, stopping
        self._agents = Agents(self._wants, self._admits, self._asking, say)
        self._classes: dict[str, DeviceClass] = {}
        self._given: dict[tuple[str, str], _Given] = {}
        """by class and layer"""
        self._found: dict[str, dict[Problem, LayerResult]] = {}
        self._failed: dict[str, dict[str, str]] = {}
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._lost_on: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        """by class and layer, agents whose device was lost on it: others get it first"""
        self._stragglers = Stragglers()
        self._lent: Mapping[KnownAgent, tuple[Helper, ...]] = {}
        """who helps whom"""
        self._serial = 0
        self._ttl_s = TTL_S
        self._stopped = 0.0
        self._ended = False
        self._started = time.monotonic()
        self._said = ""
        self._dashboard = ""

    async def run(self) -> tuple[ClusterResult, ...]:
        """Until every layer is tuned on every class, or until asked to stop; the results by class."""
        await self._find_scheduler()
        while not self._over and not self._ended:
            client = Client(address_of(self._cluster), asynchronous=True, name="autotune", connection_limit=CONNECTIONS)
            try:
                async with asyncio.timeout(CONNECT_S):
                    await client
            except (OSError, TimeoutError) as error:
                why = shortened(one_line(str(error))) or "no answer"
                self._say_once(f"no scheduler at {self._cluster} ({why}); waiting for it")
                self._ended = self._stopping()
                await _closed(client)
                await asyncio.sleep(1)
                continue
            try:
                self._dashboard = client.dashboard_link
                self._ttl_s = await client.run_on_scheduler(prepare)
                await self._session(client)
                for agent in self._agents:
                    if agent.silent:
                        self._say(f"{agent.info.name}: gave no answer; what it has measured stays in its journals")
            except (OSError, TimeoutError, CancelledError, asyncio.CancelledError) as error:
                self._say_once(f"the scheduler was lost ({type(error).__name__}); agents keep what they measured")
            finally:
                self._agents.forget()
                self._given.clear()
                await _closed(client)
        return tuple(
            ClusterResult(each, self._ledger.results(self._found[label]), self._failed[label])
            for label, each in self._classes.items()
        )

    async def _find_scheduler(self) -> None:
        """Wait a little for the first; one that is lost later is waited for. Raises StudyError where there is none."""
        until = time.monotonic() + FIRST_S
        while not self._stopping():
            try:
                await knock(self._cluster)
            except (OSError, TimeoutError) as error:
                what = f"no scheduler at {self._cluster} ({shortened(one_line(str(error)), 160) or 'no answer'})"
                if isinstance(error, socket.gaierror) or time.monotonic() > until:
                    raise StudyError(f"{what}; start one by `dask scheduler`, or use --cluster local:N") from None
                self._say_once(f"{what}; waiting up to {FIRST_S:.0f} s for it")
                await asyncio.sleep(0.2)
            else:
                return

    async def _session(self, client: Client) -> None:
        """While one scheduler lasts."""
        met = stored = -math.inf
        while not self._over:
            if client.status != "running":
                raise OSError("the scheduler has gone")
            if time.monotonic() - met >= MEET_S:
                await self._take_back()
                self._agents.meet(client)
                met = time.monotonic()
            self._agents.check()
            batch_s = min(max(BATCH_S, SHARE_S * len(list(self._agents))), MOST_S)
            full = time.monotonic() - stored >= batch_s
            stored = time.monotonic() if full else stored
            self._take(self._agents.arrived(only_ended=not full))
            await self._settle()
            if self._stopping():
                self._stopped = self._stopped or time.monotonic()
                self._ended = not self._given or time.monotonic() - self._stopped > STOP_S
                if self._ended:
                    return
            else:
                self._tell_lacking()
                await self._give(client)
                self._lent = lent(
                    [(each.lease.device_class.label, each.agent) for each in self._given.values() if each.future],
                    [agent for agent in self._agents if not (agent.retired or agent.silent)],
                )
            self._observe(self._overview)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._agents.ended.wait()
                    await asyncio.sleep(ENDS_S)
            self._agents.ended.clear()

    # Who is there.

    def _wants(self, device_class: DeviceClass) -> bool:
        return not self._wanted or any(_is(device_class, word) for word in self._wanted)

    def _admits(self, device_class: DeviceClass) -> bool:
        """Whether the study on a class is this run's by now."""
        label = device_class.label
        if label not in self._classes:
            try:
                self._lock(device_class)
            except BlockingIOError:
                return False
            self._classes[label] = device_class
            self._found[label], self._failed[label] = {}, {}
        return True

    @property
    def lacking(self) -> tuple[str, ...]:
        """Devices that are wanted and that nobody has."""
        there = [*self._classes.values(), *self._agents.waiting]
        if not self._wanted:
            return () if there else ("a device",)
        return tuple(word for word in self._wanted if not any(_is(each, word) for each in there))

    def _tell_lacking(self) -> None:
        if self.lacking:
            there = ", ".join(each.name for each in self._classes.values())
            others = f"; tuning on {there} meanwhile" if there else ""
            self._say_once(f"no agent has {', '.join(self.lacking)}; waiting up to {WAIT_S:.0f} s for one{others}")
        elif gone := [each.name for label, each in self._classes.items() if self._is_deserted(label)]:
            self._say_once(f"no agent has {', '.join(gone)} any more; waiting for one")

    # Trials come in.

    def _asking(self, agent: KnownAgent, stored: Mapping[str, frozenset[int]], seen: int) -> Collecting:
        given = () if self._stopping() else self._given.values()
        current = frozenset(each.lease.id for each in given)
        return Collecting(
            self._ledger.owner,
            self._serial,
            current,
            stored,
            seen,
            self._ttl_s / BEATS,
            self._lent.get(agent, ()),
        )

    def _take(self, visits: Sequence[Visit]) -> None:
        """Store what agents have answered."""
        leases = {given.lease.id: given.lease for given in self._given.values()}
        arrived = []
        for visit in visits:
            for each in visit.news.collected:
                lease = each.lease or leases.get(each.lease_id)
                if lease is not None:  # else it was concluded meanwhile; its agent sends the lease next time
                    arrived.append((lease, each))
                    self._heard(visit.agent, lease, each)
        stored = dict(zip((each.lease_id for _, each in arrived), self._ledger.store(arrived), strict=True))
        for visit in visits:
            agent, news = visit.agent, visit.news
            live = [each for each in news.collected if each.live]
            agent.doing = "; ".join(_doing(leases.get(each.lease_id) or each.lease, each) for each in live) or "idle"
            agent.empty = not news.collected
            if not visit.stored.done():  # else its agent has gone meanwhile
                visit.stored.set_result(
                    {each.lease_id: stored.get(each.lease_id, frozenset()) for each in news.collected}
                )
            if news.retired and not agent.retired:
                agent.retired = True
                self._say(news.retired)

    def _heard(self, agent: KnownAgent, lease: Lease, collected: Collected) -> None:
        given = self._given.get((lease.device_class.label, lease.layer.name))
        if given is not None and given.lease.id == lease.id:
            given.running = collected.running
            given.agent, given.drained = agent, not collected.live and not collected.deliveries

    # Leases go out.

    async def _give(self, client: Client) -> None:
        """A lease of the next layer for each agent that has none; others are heard between two, they may be many."""
        for label, device_class in list(self._classes.items()):
            able = _others(self._there(label), self._stragglers.of(label))
            every = sum(agent.info.device_class == device_class for agent in self._agents)
            for layer in self._ledger.layers:
                if not self._free(label, able) or self._stopping():
                    break
                if self._is_open(label, layer):
                    first = _others(able, self._lost_on[label, layer.name])
                    if self._free(label, first):
                        only = None if len(first) == every else [agent.address for agent in first]
                        self._give_one(client, device_class, layer, only)
                        await asyncio.sleep(0)

    def _there(self, label: str) -> list[KnownAgent]:
        """Agents of a class that take leases."""
        return [
            agent
            for agent in self._agents
            if agent.info.device_class is not None
            and agent.info.device_class.label == label
            and not (agent.retired or agent.silent)
        ]

    def _free(self, label: str, agents: Collection[KnownAgent]) -> bool:
        """Whether one of them has no lease; one that was not heard of yet may be with any."""
        theirs = {None, *agents}
        given = (each for (at, _), each in self._given.items() if at == label and each.future is not None)
        return sum(each.agent in theirs for each in given) < len(agents)

    def _is_deserted(self, label: str) -> bool:
        """Whether there are layers, and nobody to take one."""
        return not self._there(label) and any(self._is_open(label, layer) for layer in self._ledger.layers)

    def _is_open(self, label: str, layer: Layer) -> bool:
        done = layer.problem in self._found[label] or layer.name in self._failed[label]
        return not done and (label, layer.name) not in self._given

    def _give_one(self, client: Client, device_class: DeviceClass, layer: Layer, only: Collection[str] | None) -> None:
        lease = self._ledger.lease(device_class, layer)
        self._serial = lease.serial
        resources = {device_class.label: 1}
        key = f"{lease.study.name}.{layer.name}-{lease.id}"
        future = client.submit(run_lease, lease, key=key, pure=False, retries=0, resources=resources, workers=only)
        self._given[device_class.label, layer.name] = _Given(lease, future, only)

    async def _take_back(self) -> None:
        """Take back leases whose agents had all gone at the last look: the scheduler keeps them for these for ever."""
        there = {agent.address for agent in self._agents}
        for at, given in list(self._given.items()):
            if given.only is not None and there.isdisjoint(given.only) and given.future and not given.future.done():
                del self._given[at]
                await given.future.cancel()

    async def _settle(self) -> None:
        """Conclude the leases that have ended; the layer of an agent that was lost is open again."""
        answering = {agent.info.name for agent in self._agents if not agent.silent}
        for at, given in list(self._given.items()):
            if given.future is not None and given.future.done():
                await self._end(at, given)
            elif given.end is not None and given.drained:
                del self._given[at]
                self._conclude(given.lease, given.end)
            elif given.end is not None and given.end.agent not in answering:
                del self._given[at]  # lost between its end and its last trials: these come later, by its journal

    async def _end(self, at: tuple[str, str], given: _Given) -> None:
        """See how a lease has ended."""
        future, given.future = given.future, None
        assert future is not None  # noqa: S101 - the caller looked
        if future.status == "finished":
            try:
                async with asyncio.timeout(PATIENCE_S):
                    given.end = await future
            except (KilledWorker, TimeoutError, AutotuneError):
                # Its agent died between the end of its line and our asking for it: Dask has begun the lease again.
                del self._given[at]
                self._say(f"{given.lease.layer.name} on {given.lease.device_class.name}: its agent was lost")
            return
        del self._given[at]
        if future.status != "error":
            raise OSError("the scheduler has forgotten a lease")
        error = await future.exception()
        if isinstance(error, KilledWorker):
            self._say(f"{given.lease.layer.name} on {given.lease.device_class.name}: its agent was lost")
            self._ledger.lost(given.lease, given.running)
        else:
            self._refused(at, given.lease, error)

    def _conclude(self, lease: Lease, end: LeaseEnd) -> None:
        label, finals = lease.device_class.label, end.result.finals
        why = "" if finals is None else self._stragglers.judge(label, end.agent, finals.noise)
        if why:
            self._say(why)
            if any(agent.info.name not in self._stragglers.of(label) for agent in self._there(label)):
                return  # the layer is open again: another agent holds the finals
        if not end.result.cut_short or self._stopping():  # else its agent was taken for lost
            self._found[label][lease.layer.problem] = self._ledger.conclude(lease, end)

    def _refused(self, at: tuple[str, str], lease: Lease, error: BaseException) -> None:
        """A lease that ended by an error: what is wrong with the study is final, what went wrong is tried again."""
        label, layer = at
        kind = "" if isinstance(error, AutotuneError) else f"{type(error).__name__}: "
        self._say(f"{layer} on {lease.device_class.name}: {kind}{error}")
        if isinstance(error, LeaseLost):
            self._lost_on[at].add(error.agent)
            return
        self._attempts[at] += 1
        if isinstance(error, StudyError) or self._attempts[at] >= ATTEMPTS:
            self._failed[label][layer] = str(error)

    # How far it is.

    @property
    def _all_done(self) -> bool:
        layers = self._ledger.layers
        return not any(self._is_open(label, layer) for label in self._classes for layer in layers) and not self._given

    @property
    def _over(self) -> bool:
        """Whether nothing is left to be done, nor to be waited for."""
        if self.lacking and time.monotonic() - self._started < WAIT_S:
            return False
        return (
            self._all_done and not self._agents.waiting and all(agent.empty or agent.silent for agent in self._agents)
        )

    @property
    def _overview(self) -> Overview:
        helping = {
            helper.address: f"helps {line.info.name}" if helper.slots else "compiles"
            for line, helpers in self._lent.items()
            for helper in helpers
        }
        return Overview(
            agents={agent.info.name: helping.get(agent.address, agent.doing) for agent in self._agents},
            layers=len(self._classes) * len(self._ledger.layers),
            done=sum(len(self._found[label]) + len(self._failed[label]) for label in self._classes),
            trials=self._ledger.trials,
            elapsed_s=time.monotonic() - self._started,
            dashboard=self._dashboard,
        )

    def _say_once(self, words: str) -> None:
        if words != self._said:
            self._said = words
            self._say(words)


def _others(agents: list[KnownAgent], last: Collection[str]) -> list[KnownAgent]:
    """Those that are not of these names; all where there is no other."""
    return [agent for agent in agents if agent.info.name not in last] or agents


def _is(device_class: DeviceClass, word: str) -> bool:
    """Whether a device is meant by this word: its kind, else its name or a part of it."""
    if word.casefold() in KINDS:
        return word.casefold() == device_class.info.kind
    return bool(devices_named(word, [device_class.info]))


def _doing(lease: Lease | None, collected: Collected) -> str:
    """A line at work."""
    if lease is None:
        return "busy"
    best = "" if collected.best_us is None else f", best {collected.best_us:.1f} us"
    return f"{lease.layer.name} {collected.evaluated}/{lease.study.trials}{best}"


async def _closed(client: Client) -> None:
    with contextlib.suppress(OSError, TimeoutError, CancelledError, asyncio.CancelledError):
        async with asyncio.timeout(PATIENCE_S):
            await client.close()
