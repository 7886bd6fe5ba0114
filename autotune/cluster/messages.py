"""What travels between the coordinator and its agents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autotune.compilation.compile import Binary
from autotune.devices.device import DeviceInfo, Environment
from autotune.errors import DeviceLost
from autotune.family.source import KernelSource
from autotune.measurement.rates import Rate
from autotune.problem import Layer, Problem
from autotune.store import Delivery, Finals, TopTrial, check_delivery
from autotune.study import Study
from autotune.trial import Config
from autotune.tuning.layer_finals import FinalsPlan
from autotune.tuning.layer_result import LayerResult

ID_BYTES = 8
"""of a lease's id, which is written in hexadecimal digits"""
HARMLESS = ("null", "replay")
"""kinds of devices that run nothing: no kernel of theirs takes an agent down"""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """Devices whose results compare: of one identity, in one environment."""

    label: str
    """the name of Dask's resource"""
    info: DeviceInfo = field(compare=False)
    environment: Environment = field(compare=False)

    @staticmethod
    def of(info: DeviceInfo, environment: Environment) -> DeviceClass:
        """The class of a device."""
        digest = hashlib.sha256(repr((info.identity, environment.identity)).encode()).hexdigest()
        return DeviceClass(f"{info.kind}:{info.name}:{digest[:8]}", info, environment)

    @property
    def name(self) -> str:
        """For people."""
        return self.info.name


@dataclass(frozen=True, slots=True)
class Lease:
    """One layer on one device of a class, with all that its line needs of the results database."""

    id: str
    serial: int
    """when it was given, in nanoseconds of the coordinator's clock"""
    owner: str
    """the study in its database: who its trials belong to"""
    device_class: DeviceClass
    study: Study
    """of this layer alone, without its file's text"""
    layer: Layer
    finals: FinalsPlan | None
    families: Mapping[str, str]
    """each family's hash: an agent with another version of one must not run it"""
    files: Mapping[str, str]
    """name and text of the user's own families, with what they include, and of their operations; below their names"""
    history: tuple[Delivery, ...] = ()
    """the layer's finished trials"""
    held: Finals | None = None
    """finals that knew all of these"""
    quarantined: tuple[tuple[str, str, str], ...] = ()
    """hash, reason and message of each source that must not be launched"""
    rates: tuple[Rate, ...] = ()
    tuned: tuple[TopTrial, ...] = ()
    """what a warm start begins from"""

    @property
    def bare(self) -> Lease:
        """Without what the agent's own database has by then."""
        return replace(self, history=(), held=None, quarantined=(), rates=(), tuned=())


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """What a lease came to, besides its trials."""

    agent: str
    """the name of who tuned it"""
    result: LayerResult
    finals: Finals | None
    """None: none were held now"""
    configs: Mapping[int, Config]
    """the trials that the finals name by number"""
    disproved: tuple[tuple[str, str], ...]
    """source hash and message of each kernel that went wrong in the finals"""


class LeaseLost(DeviceLost):
    """An agent's device was lost on a lease: that says more of the device than of the layer."""

    def __init__(self, agent: str, message: str) -> None:
        super().__init__(message)
        self.agent = agent
        """its name"""

    def __reduce__(self) -> tuple[type[LeaseLost], tuple[str, str]]:
        return (LeaseLost, (self.agent, str(self)))


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent as it introduces itself."""

    name: str
    device_class: DeviceClass | None
    """None: it only compiles"""
    compilers: int
    version: str
    toolchain: tuple[str, str, str]
    """kind of device, compiler and flags of what it compiles"""
    slots: int
    """kernels that its device takes at once"""


@dataclass(frozen=True, slots=True)
class Helper:
    """Who measures or compiles for the line of another agent."""

    name: str
    address: str
    slots: int
    """kernels that it measures at once; 0 where it only compiles"""
    compilers: int


@dataclass(frozen=True, slots=True)
class CompileFor:
    """A kernel to be compiled. Answer: its Binary, Rejected, or None where there is other work to be done."""

    source: KernelSource
    arch: int


@dataclass(frozen=True, slots=True)
class MeasureFor:
    """A kernel to be verified and timed. Answer: Measured, Rejected, or None as above."""

    source: KernelSource
    binary: Binary
    cache: str
    best_us: float | None


@dataclass(frozen=True, slots=True)
class Collecting:
    """What the coordinator asks an agent: its new trials, and to stop what is no lease any more."""

    owner: str
    serial: int
    """the last lease that had been given by then"""
    current: frozenset[str]
    """leases that still are some"""
    stored: Mapping[str, frozenset[int]]
    """by lease, deliveries that the results database has"""
    seen: int
    """the state that the agent told last: it answers once it has another"""
    heartbeat_s: float
    """between two words to the scheduler: often enough not to be taken for lost"""
    helpers: tuple[Helper, ...] = ()
    """who measures and compiles for the agent's line from now on"""


@dataclass(frozen=True, slots=True)
class Collected:
    """Of one lease, what was not acknowledged yet."""

    lease_id: str
    lease: Lease | None
    """bare; None: it is a current one, which the coordinator knows"""
    live: bool
    """whether its line still runs; else what is running died with it"""
    deliveries: tuple[Delivery, ...]
    evaluated: int
    """evaluations so far"""
    best_us: float | None

    @property
    def done(self) -> tuple[Delivery, ...]:
        """Those that have their result."""
        return tuple(each for each in self.deliveries if not each.running)

    @property
    def running(self) -> tuple[Delivery, ...]:
        """Those that have none."""
        return tuple(each for each in self.deliveries if each.running)


def named_by(finals: Finals) -> frozenset[int]:
    """The numbers of the trials that finals name."""
    against = {each.against_number for each in finals.verdicts if each.against_number is not None}
    return frozenset({finals.winner, *(number for number, _ in finals.timings), *against})


def check_news(news: object) -> None:
    """Raise ValueError, TypeError or AttributeError for what is no answer of an agent.

    Its trials may be of another class of devices than its own by now: a journal outlasts a driver.
    """
    if not isinstance(news, News) or not isinstance(news.state, int) or not isinstance(news.retired, str):
        raise TypeError(f"it is {type(news).__name__}")
    if not isinstance(news.collected, tuple):
        raise TypeError("what it collected is no tuple")
    for each in news.collected:
        if not isinstance(each, Collected) or not isinstance(each.lease, Lease | None):
            raise TypeError(f"it collected {type(each).__name__}")
        if each.lease is not None:
            _check_lease(each.lease)
        if not isinstance(each.evaluated, int) or not isinstance(each.best_us, float | None):
            raise TypeError("its counts are no numbers")
        if not isinstance(each.deliveries, tuple):
            raise TypeError("its deliveries are no tuple")
        for delivery in each.deliveries:
            check_delivery(delivery)


def _check_lease(lease: Lease) -> None:
    """Raise the same for one that no coordinator has given out: where its trials go."""
    told = lease.device_class
    if told != DeviceClass.of(told.info, told.environment):
        raise ValueError("its lease is of a class that its device is not of")
    if not isinstance(lease.layer, Layer) or not isinstance(lease.layer.problem, Problem):
        raise TypeError("its lease is of no layer")


@dataclass(frozen=True, slots=True)
class News:
    """What an agent answers."""

    state: int
    """which it has by now; another one each time that there is something new"""
    retired: str
    """why it takes no further lease; empty while it does"""
    collected: tuple[Collected, ...]
