"""The result of one config: Config, Outcome, Resources, Timing, Trial and KernelProfile.

Workers return these records, the store keeps them, and the search learns from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Literal

Value = int | str | bool
"""The value of a template parameter."""

Launching = Literal["stream", "graph"]
"""How timed passes reach the device: launched one by one, or replayed from a recorded graph without launch gaps."""


class Outcome(StrEnum):
    """How a trial ended, or `running` if it hasn't."""

    RUNNING = "running"
    CORRECT = "correct"
    INVALID_CONFIG = "invalid_config"
    COMPILE = "compile"
    RUNTIME = "runtime"
    TIMEOUT = "timeout"
    WRONG_RESULT = "wrong_result"


END_TO_END = "end_to_end"
"""The measurement mode of trials timed from host memory to host memory, and the template in their configs."""

ACCURACY_CLASSES = ("fp64", "fp32", "fp32-3xtf32", "tf32", "fp16", "fp16-acc16", "bf16")
"""The accuracy classes of a kernel's arithmetic. Their error bounds are in `verify`."""


@dataclass(frozen=True, slots=True)
class Config:
    """A template's name and a value for each of its parameters, in the header's order."""

    template: str
    """the family's name"""
    pairs: tuple[tuple[str, Value], ...]
    """each parameter's name and value"""

    @classmethod
    def of(cls, template: str, params: Mapping[str, Value]) -> Config:
        """Create a config from a mapping of parameter names to values."""
        return cls(template, tuple(params.items()))

    @property
    def params(self) -> dict[str, Value]:
        """Parameter name to value, in the header's order."""
        return dict(self.pairs)

    def to_json(self) -> str:
        """Return the parameters as a JSON object, in the header's order."""
        return json.dumps(self.params, separators=(",", ":"))

    def __str__(self) -> str:
        return " ".join((self.template, *(f"{name}={value}" for name, value in self.pairs)))


@dataclass(frozen=True, slots=True)
class Resources:
    """A kernel's resources as reported by the compiler: the maximum over all stages."""

    registers: int = 0
    """registers per thread"""
    spill_bytes: int = 0
    """spill stores and loads per thread, bytes"""
    static_smem_bytes: int = 0
    """static shared memory per block, bytes"""
    constant_bytes: int = 0
    """user constant memory (bank 3), bytes"""


@dataclass(frozen=True, slots=True)
class Timing:
    """Samples of a kernel's forward pass on a device, in microseconds, in the order they were taken."""

    samples_us: tuple[float, ...]
    """time of one forward pass in each sample, microseconds"""
    median_us: float
    """median of the samples, microseconds"""
    q1_us: float
    """first quartile, microseconds"""
    q3_us: float
    """third quartile, microseconds"""
    cache: str
    """`cold` (L2 flushed before each sample) or `hot`"""
    sm_clocks_mhz: tuple[float, ...] = ()
    """mean clock during each sample; empty if the device does not report it"""
    discarded: int = 0
    """samples at a throttled clock that were measured again"""
    throttled: int = 0
    """samples at a throttled clock that had to be kept"""
    passes: int = 1
    """number of forward passes that are averaged in one sample; more than one for short kernels"""
    launch: Launching = "stream"
    """how the passes were launched: `graph` or `stream`"""
    power_w: float | None = None
    """power of the device after the last sample, watts; None if the device does not report it"""
    temperature_c: float | None = None
    """temperature of the device after the last sample, degrees Celsius; None if the device does not report it"""


LEAST, MOST = 1e-30, 1e30
"""Limits of a time in microseconds or a rate per second: far beyond real values, and finite when added up."""

LONG_US = 200.0
"""Microseconds. For passes at least this long, launching one by one makes no difference to replaying a graph."""


def comparable(first: Timing, second: Timing) -> bool:
    """Return whether two timings can be compared: both were launched in the same way, or both are at least LONG_US."""
    return first.launch == second.launch or min(first.median_us, second.median_us) >= LONG_US


@dataclass(frozen=True, slots=True)
class ErrorStats:
    """The deviation of an output from the float64 reference."""

    over_bound: float
    """largest |y - ref| / bound over all outputs; at most 1 when correct"""
    max_abs: float
    """largest |y - ref|"""
    of_tolerance: Mapping[str, float] = field(default_factory=dict, compare=False)
    """output name to the largest error beyond the rounding of the output's type, divided by the bound without this
    rounding; not stored"""


@dataclass(frozen=True, slots=True)
class Phases:
    """How long each phase of a trial took, in microseconds of wall-clock time."""

    render_us: float = 0.0
    """rendering the source"""
    compile_us: float = 0.0
    """compiling it; small if the binary was cached"""
    load_us: float = 0.0
    """loading the module"""
    verify_us: float = 0.0
    """verifying the outputs"""
    measure_us: float = 0.0
    """timing"""

    def __add__(self, later: Phases) -> Phases:
        """Add up the phases of two steps of the same trial."""
        return Phases(*(getattr(self, field.name) + getattr(later, field.name) for field in fields(Phases)))


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of running a verified kernel."""

    timing: Timing
    """timing of the verified kernel"""
    error: ErrorStats
    """largest deviation of the outputs from the reference"""
    too_slow: bool = False
    """timing stopped early because the kernel is too slow"""
    phases: Phases = Phases()
    """time of loading, verifying and timing the kernel"""


@dataclass(frozen=True, slots=True)
class EndToEndParts:
    """The parts of a host-to-host time, each measured alone, in microseconds."""

    copy_in_us: float
    """copies from host memory, microseconds"""
    kernel_us: float
    """kernels, microseconds"""
    copy_out_us: float
    """copies to host memory, microseconds"""
    hidden_fraction: float | None
    """share of the copy time that overlaps with kernels; None if the noise of the samples exceeds the copies"""
    allocate_us: float
    """allocating the host memory and touching it once; not part of the total"""
    host_bytes: int
    """host memory that the copies need, bytes"""
    distinct_segments: int
    """segments whose test data differ from all other segments'"""


@dataclass(frozen=True, slots=True)
class Trial:
    """A config and its result."""

    number: int
    """position in its tuning target's history, from 0; seeds the ask that proposed it"""
    config: Config
    """the family and its parameter values"""
    outcome: Outcome
    """how the trial ended"""
    reason: str = ""
    """one word that refines the outcome: too_slow, oob_write, unwritten, crash, hang, ..."""
    message: str = ""
    """the message of the compiler, driver or checker, shortened"""
    source_hash: str | None = None
    """identity of the rendered source; None when rejected before rendering"""
    accuracy: str = ""
    """its accuracy class, one of ACCURACY_CLASSES; empty if unknown"""
    deterministic: bool = True
    """whether repeated runs give the same bits"""
    resources: Resources = field(default_factory=Resources)
    """registers, spills and memory that the compiler reports"""
    smem_bytes: int = 0
    """static and dynamic shared memory of the stage that needs most"""
    occupancy: float | None = None
    """theoretical: resident warps over the device's maximum; None if not applicable"""
    timing: Timing | None = None
    """None unless the kernel is correct"""
    error: ErrorStats | None = None
    """deviation from the float64 reference; None if not compared"""
    phases: Phases = field(default_factory=Phases)
    """time of each phase"""

    @property
    def compiled(self) -> bool:
        """Whether the trial used up one of the budget's evaluations."""
        return self.source_hash is not None and self.outcome != Outcome.RUNNING

    @property
    def over_bound(self) -> float | None:
        """The largest error divided by the error bound, or None if it wasn't measured."""
        return self.error.over_bound if self.error else None

    @property
    def median_us(self) -> float | None:
        """The median time of a correct trial, or None."""
        return self.timing.median_us if self.outcome == Outcome.CORRECT and self.timing else None


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """The profiler's counters for one launch, or None where the device lacks a counter. Fractions are from 0 to 1."""

    tool: str
    """name and version of the profiler"""
    position: int
    """position of the launch in one forward pass"""
    entry: str
    time_us: float | None = None
    achieved_occupancy: float | None = None
    """mean resident warps divided by the maximum"""
    load_sectors_per_request: float | None = None
    """32-byte sectors that a warp's global load touches; 4 is a full row of floats"""
    store_sectors_per_request: float | None = None
    load_efficiency_fraction: float | None = None
    """bytes used divided by the bytes of the sectors touched"""
    store_efficiency_fraction: float | None = None
    shared_efficiency_fraction: float | None = None
    shared_load_conflicts: float | None = None
    """additional passes because of bank conflicts"""
    shared_store_conflicts: float | None = None
    dram_read_bytes: float | None = None
    dram_written_bytes: float | None = None
    l2_bytes: float | None = None
    fma_utilisation_fraction: float | None = None
    """share of the pipe's peak while a multiprocessor is active"""
    tensor_utilisation_fraction: float | None = None
    l1_hit_fraction: float | None = None
    """share of hits among the sectors that global accesses request from the L1 cache"""
    l2_hit_fraction: float | None = None
    sm_throughput_fraction: float | None = None
    """share of the peak of the SM's busiest unit, over the whole launch"""
    memory_throughput_fraction: float | None = None
    """share of the peak of the busiest of L1, L2 and device memory"""
    issue_fraction: float | None = None
    """share of a scheduler's cycles in which it issues an instruction"""
    active_threads: float | None = None
    """mean number of active threads per executed warp instruction; 32 without divergence"""
    shared_load_wavefronts: float | None = None
    """passes of shared-memory loads, of at most 128 bytes each"""
    stalls: tuple[tuple[str, float], ...] = ()
    """reason to the average number of warps stalled for it, per issued instruction; largest first"""
