"""Records that go into the store and come out of it, beside those of `trial`, `device`, `problem` and `source`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from autotune.devices.device import DeviceInfo, Environment
from autotune.family.source import Stage
from autotune.problem import Conv2dProblem, Layer
from autotune.trial import Config, SpanParts, Timing, Trial

Basis = Literal["finals", "retime", "median"]
"""Why a trial is the best: it won the latest finals, or its median is the smallest, of a retime or while tuning."""

Match = Literal["exact", "device class"]
"""How well an answer fits the device asked for: tuned on it, or on one of its compute capability and SM count."""

Origin = Literal["measured", "imported"]
"""Where a trial comes from: tuned into this database, or brought in from another file."""

RETIME_LABELS = ("confirmed", "moved", "regressed", "failed", "remeasured")
"""What became of a stored trial's time when it was measured again."""

VERDICTS = ("win", "tie", "loss")


@dataclass(frozen=True, slots=True)
class TemplateRecord:
    """A kernel family as it was when trials were made with it."""

    family: str
    hash: str
    """of the template's text with everything it includes"""
    header: str
    """the header's text as written"""


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A study as its file describes it."""

    name: str
    seed: int
    text: str
    """the study file as read"""
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class StudyKey:
    """One generation of a study in the store."""

    id: int
    name: str
    generation: int
    """from 1; every fresh start is a new one"""
    fresh_since: datetime | None = None
    """begun fresh: nothing measured before this date is reused"""


@dataclass(frozen=True, slots=True)
class SubjectScope:
    """Where a run's trials go: one subject of a study, on one device, in one environment, under one policy."""

    study: StudyKey
    policy: str
    subject_id: int
    device_id: int
    environment_id: int
    run_id: int
    template_ids: tuple[tuple[str, int], ...]
    """family to the id of its template row"""

    @property
    def name(self) -> str:
        """The study, as on the command line."""
        return self.study.name


@dataclass(frozen=True, slots=True)
class Scope(SubjectScope):
    """Where the trials of one layer go."""

    layer: Layer
    layer_id: int

    @property
    def name(self) -> str:
        """`study.layer`, as on the command line."""
        return f"{self.study.name}.{self.layer.name}"


@dataclass(frozen=True, slots=True)
class TrialKey:
    """A stored trial that has begun."""

    id: int
    number: int
    config: Config
    source_hash: str | None


@dataclass(frozen=True, slots=True)
class Suspect:
    """A trial that a killed run left behind as `running`."""

    key: TrialKey
    trial: Trial
    attempts: int
    """how often it was begun"""
    started_at: datetime


@dataclass(frozen=True, slots=True)
class Verdict:
    """The finals' winner against something else, from interleaved measurements."""

    against: str
    """what it was compared with: `default`, `previous best`, `cudnn`, ..."""
    verdict: str
    """one of VERDICTS"""
    median_us: float
    against_us: float
    against_number: int | None = None
    """the trial compared with, where it is one of this scope"""
    against_accuracy: str | None = None
    """its accuracy class; None where that was not recorded"""


@dataclass(frozen=True, slots=True)
class Finals:
    """Finalists measured in turn: the winner's trial number, every finalist's timing, the verdicts."""

    winner: int
    timings: tuple[tuple[int, Timing], ...]
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True)
class QuarantineRow:
    """A source that must not be launched again on a device in its environment."""

    source_hash: str
    device: str
    driver: str
    toolkit: str
    reason: str
    message: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The smallest difference that a device's measurements can tell, from A/A runs."""

    noise_us: float
    noise_fraction: float
    measured_at: datetime


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial with everything it was made under."""

    id: int
    study: str
    generation: int
    layer: Layer
    device: DeviceInfo
    environment: Environment
    policy: str
    template_hash: str
    trial: Trial
    started_at: datetime
    ended_at: datetime | None
    reused: bool
    """a copy of a trial measured earlier"""
    attempts: int
    stages: tuple[Stage, ...] = ()
    flops: int | None = None
    """of the kernel's algorithm, where they are not the direct convolution's"""
    """the launches of one round of the forward pass; none when rejected before rendering"""
    origin: Origin = "measured"
    proposed_by: str = "search"
    """what asked for it: search, default, warm_start, prior"""
    ranked_us: float | None = None
    """the median of its latest measurement here, by which `best` ranks it; None for a trial that does not count"""

    @property
    def name(self) -> str:
        """`study.layer`."""
        return f"{self.study}.{self.layer.name}"

    @property
    def problem(self) -> Conv2dProblem:
        """The layer's problem."""
        return self.layer.problem

    @property
    def median_us(self) -> float | None:
        """The median of a correct trial, else None."""
        return self.trial.median_us

    @property
    def gflops(self) -> float | None:
        """Direct-algorithm GFLOP/s of a correct trial, else None."""
        return None if self.median_us is None else gflops(self.problem, self.median_us)


@dataclass(frozen=True, slots=True)
class Leader:
    """One of the fastest trials of a family on some layer and device."""

    name: str
    """`study.layer` of a study that has it"""
    problem: Conv2dProblem
    device: DeviceInfo
    config: Config
    median_us: float


@dataclass(frozen=True, slots=True)
class SpanRow:
    """An end-to-end trial with the parts of its time."""

    row: TrialRow
    parts: SpanParts


@dataclass(frozen=True, slots=True)
class RetimeRow:
    """A stored trial measured again in a later run."""

    row: TrialRow
    """as it is now"""
    environment: Environment
    """of the new measurement"""
    label: str
    """one of RETIME_LABELS"""
    before_us: float
    """the median it had"""
    timing: Timing | None
    """None when it failed"""
    message: str
    """why it failed, else empty"""
    ended_at: datetime

    @property
    def after_us(self) -> float | None:
        """The new median, None when it failed."""
        return None if self.timing is None else self.timing.median_us

    @property
    def ratio(self) -> float | None:
        """The new median over the old one; None when it failed, and when the two were taken in different ways."""
        after_us = None if self.label == "remeasured" else self.after_us
        return None if after_us is None else after_us / self.before_us


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """What a profiler saw of one launch; None where the device has no such counter. Fractions are 0 to 1."""

    tool: str
    """name and version"""
    position: int
    """of the launch in one round of the forward pass"""
    entry: str
    time_us: float | None = None
    achieved_occupancy: float | None = None
    """mean resident warps over the most"""
    load_sectors_per_request: float | None = None
    """32-byte sectors that a warp's global load touches; 4 is a full row of floats"""
    store_sectors_per_request: float | None = None
    load_efficiency_fraction: float | None = None
    """bytes used of the sectors touched"""
    store_efficiency_fraction: float | None = None
    shared_efficiency_fraction: float | None = None
    shared_load_conflicts: float | None = None
    """further passes that bank conflicts cost"""
    shared_store_conflicts: float | None = None
    dram_read_bytes: float | None = None
    dram_written_bytes: float | None = None
    l2_bytes: float | None = None
    fma_utilisation_fraction: float | None = None
    """of the pipe's most while a multiprocessor is active"""
    tensor_utilisation_fraction: float | None = None
    l1_hit_fraction: float | None = None
    """of the sectors that global accesses ask the L1 cache for"""
    l2_hit_fraction: float | None = None
    sm_throughput_fraction: float | None = None
    """of the busiest unit of the SM's peak over the whole launch"""
    memory_throughput_fraction: float | None = None
    """of the busiest part of L1, L2 and device memory's peak"""
    issue_fraction: float | None = None
    """cycles of a scheduler in which it issues"""
    active_threads: float | None = None
    """per executed warp instruction; 32 without divergence"""
    shared_load_wavefronts: float | None = None
    """passes of shared-memory loads, of at most 128 bytes each"""
    stalls: tuple[tuple[str, float], ...] = ()
    """reason and the warps that wait for it on average, per issued instruction; most first"""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A stored profile of a trial's kernel."""

    row: TrialRow
    profile: KernelProfile
    profiled_at: datetime


@dataclass(frozen=True, slots=True)
class BestRow:
    """The best kernel of one layer, device, accuracy class, determinism and policy."""

    study: str
    """as asked for; `row` may come from another study with the same layer shape"""
    layer: Layer
    timing: Timing
    """what decided: of the finals, or of the trial"""
    basis: Basis
    row: TrialRow
    match: Match = "exact"

    @property
    def name(self) -> str:
        """`study.layer`."""
        return f"{self.study}.{self.layer.name}"

    @property
    def median_us(self) -> float:
        """The deciding median."""
        return self.timing.median_us

    @property
    def gflops(self) -> float:
        """Direct-algorithm GFLOP/s."""
        return gflops(self.layer.problem, self.median_us)


@dataclass(frozen=True, slots=True)
class FinalsRow:
    """Finals that were held, and what they said."""

    study: str
    generation: int
    winner: TrialRow
    environment: Environment
    timing: Timing | None
    """the winner's; None where no samples are kept"""
    verdicts: tuple[Verdict, ...]
    ended_at: datetime
    superseded_at: datetime | None
    """when a later retime put them in doubt"""
    origin: Origin

    @property
    def time_us(self) -> float | None:
        """The winner's median in these finals."""
        return None if self.timing is None else self.timing.median_us


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A layer of a study's generation and how far it has come, over all devices."""

    study: str
    generation: int
    layer: Layer
    trials: int
    correct: int

    @property
    def name(self) -> str:
        """`study.layer`."""
        return f"{self.study}.{self.layer.name}"


@dataclass(frozen=True, slots=True)
class StudyRow:
    """One generation of a study."""

    name: str
    generation: int
    seed: int
    text: str
    created_at: datetime
    layers: int
    trials: int
    imported_from: str | None = None
    """the file that it came from; None when it was begun here"""


@dataclass(frozen=True, slots=True)
class SpaceTrial:
    """A trial of a recorded space that was imported from a file: another kernel's, on a device known by name alone."""

    id: int
    study: str
    """named after the file"""
    generation: int
    space: str
    """the kernel's name"""
    device: DeviceInfo
    """of the kind `recorded`; only its name is known"""
    trial: Trial
    ended_at: datetime
    """when it was imported"""
    problem: None = None
    gflops: None = None
    """unknown, since the kernel's work is"""
    origin: Origin = "imported"
    proposed_by: str = "import"

    @property
    def name(self) -> str:
        """`study.kernel`."""
        return f"{self.study}.{self.space}"

    @property
    def median_us(self) -> float | None:
        """The recorded time of a correct trial, else None."""
        return self.trial.median_us


@dataclass(frozen=True, slots=True)
class Imported:
    """What importing a recorded space brought."""

    study: str
    generation: int
    trials: int
    known: int
    """trials that were here already"""


@dataclass(frozen=True, slots=True)
class Merged:
    """What merging another database brought."""

    trials: int
    known: int
    """trials that were here already"""
    running: int
    """trials that were left out, since they had not ended"""
    studies: int
    """studies that were not here"""


@dataclass(frozen=True, slots=True)
class DispatchedLayer:
    """What a dispatcher does with one layer, and what other ways to choose would, each made without the layer."""

    layer: Layer
    role: Literal["tuned", "held out"]
    kernel: str | None
    """the name of what serves it; None: nothing fits, it is to be tuned"""
    unsure: bool
    """the rule says nothing of it, so that the safe default came first"""
    time_us: float | None
    """of what serves it"""
    best_us: float
    """of its own best kernel"""
    left_out_us: float | None
    """of what a dispatcher made without it chooses"""
    default_us: float | None
    """of the safe default"""
    single_us: float | None
    """of the single kernel that is best over the other layers, the default where that does not fit"""
    nearest_us: float | None
    """of the best kernel of the layer most like it, of the next one's where that does not fit"""


@dataclass(frozen=True, slots=True)
class DispatcherRow:
    """A dispatcher that was built, with what it costs its layers."""

    study: str
    generation: int
    device: DeviceInfo
    policy: str
    number: int
    """of its trial among those of its set of layers"""
    total_us: float
    """of all its layers, each as often as the network runs it"""
    document: str
    """what it is, as `dispatch.dispatcher` writes and reads it"""
    layers: tuple[DispatchedLayer, ...]
    built_at: datetime

    @property
    def held_out(self) -> bool:
        """Whether layers were kept from its making to judge it by."""
        return any(layer.role == "held out" for layer in self.layers)


def gflops(problem: Conv2dProblem, time_us: float) -> float:
    """GFLOP/s of the direct algorithm at a time; 1e3 from FLOP per microsecond to GFLOP per second."""
    return problem.flops / time_us / 1e3
