"""load -> verify -> measure from host memory to host memory, with a layer's batch split into overlapping segments.

For each segment, the input is copied to the device, the kernels run, and the output is copied back, in order on one
stream. The streams take turns with the segments, and each has its own device memory. The weights stay on the device.
"""

from __future__ import annotations

import random
import statistics
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from autotune.compilation.compile import Binary
from autotune.devices.device import POISON, Device, HostArray, Launch, Sample
from autotune.errors import Rejected
from autotune.family.source import KernelSource
from autotune.measurement.benchmark import Clocks, Samples, interleave, median_half_width
from autotune.measurement.guard_bands import OUTPUT_GUARD, GuardedArray
from autotune.measurement.launcher import LoadedKernel, Tensors
from autotune.measurement.test_data import DataSet
from autotune.measurement.verify import Verifier
from autotune.operation.declarations import COMPUTED
from autotune.problem import Problem
from autotune.trial import EndToEndParts, ErrorStats, Measured, Outcome, Phases

_PAGE_BYTES = 4096  # smallest page size of hosts with CUDA
_BUDGET_S = 2.0  # wall-clock limit for sampling the total and its parts
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 25


@dataclass(frozen=True, slots=True)
class EndToEndPlan:
    """How a batch is split and copied."""

    streams: int
    segments: int
    pinned: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """Images `first` to `first + n - 1` of the batch."""

    first: int
    n: int


@dataclass(frozen=True, slots=True)
class EndToEndRequest:
    """Verify and time a layer from host memory to host memory. Answer: EndToEndTiming."""

    problem: Problem
    plan: EndToEndPlan
    kernels: tuple[tuple[KernelSource, Binary], ...]
    """the layer's kernel, rendered for each segment size"""


@dataclass(frozen=True, slots=True)
class EndToEndTiming:
    """The result of one plan."""

    measured: Measured
    parts: EndToEndParts


def cut(n: int, segments: int) -> tuple[Segment, ...]:
    """Split n images into equal segments. The last one may be smaller, and there may be fewer than `segments`."""
    size = -(-n // segments)
    return tuple(Segment(first, min(size, n - first)) for first in range(0, n, size))


def measure_end_to_end(
    device: Device, verifier: Verifier, request: EndToEndRequest, clock: Callable[[], float]
) -> EndToEndTiming:
    """Verify all of a plan's outputs on both data sets, then time the plan and its parts.

    Raises Rejected('wrong_result', ...) in the same way as the verifier, and Rejected('invalid_config', 'indistinct',
    ...) if two segments have the same test data.
    """
    started = clock()
    with _laid_out(device, verifier, request, clock) as laid_out:
        loaded = clock()
        laid_out.verify()
        verified = clock()
        clocks = Clocks()
        all_samples = [
            Samples(partial(laid_out.time, enqueue), clocks)
            for enqueue in (laid_out.total, laid_out.copy_in, laid_out.kernels_alone, laid_out.copy_out)
        ]
        interleave(
            all_samples,
            budget_s=_BUDGET_S,
            least=_LEAST_ROUNDS,
            most=_MOST_ROUNDS,
            rng=random.Random(0),
            clock=clock,
        )
        error = laid_out.verify_again()
        measured = clock()
        total, copy_in, kernel, copy_out = (samples.samples_us for samples in all_samples)
        parts = EndToEndParts(
            copy_in_us=statistics.median(copy_in),
            kernel_us=statistics.median(kernel),
            copy_out_us=statistics.median(copy_out),
            hidden_fraction=hidden_fraction(total, copy_in, kernel, copy_out),
            allocate_us=laid_out.allocate_us,
            host_bytes=sum(array.nbytes for array in laid_out.host.values()),
            distinct_segments=laid_out.distinct_segments,
        )
    return EndToEndTiming(
        Measured(
            timing=all_samples[0].timing("hot", device.health()),
            error=error,
            phases=Phases(
                load_us=1e6 * (loaded - started),
                verify_us=1e6 * (verified - loaded),
                measure_us=1e6 * (measured - verified),
            ),
        ),
        parts,
    )


def hidden_fraction(
    total_us: Sequence[float], copy_in_us: Sequence[float], kernel_us: Sequence[float], copy_out_us: Sequence[float]
) -> float | None:
    """Return the share of the copy time that overlaps with kernels, from rounds of samples, or None if noise hides it.

    1 means that the total takes no longer than the kernels alone, and 0 that the parts run one after another. If the
    share is negative, the overlapping parts take even longer than that.
    """
    rounds = list(zip(total_us, copy_in_us, kernel_us, copy_out_us, strict=True))
    copies = statistics.median(copy_in + copy_out for _, copy_in, _, copy_out in rounds)
    saved = [copy_in + kernel + copy_out - total for total, copy_in, kernel, copy_out in rounds]
    if copies <= 0 or median_half_width(saved) > copies / 2:
        return None
    return min(1.0, statistics.median(saved) / copies)


@dataclass(frozen=True, slots=True)
class _Lane:
    """A stream, with device memory for its current segment."""

    stream: int
    arrays: Mapping[str, GuardedArray]
    """inputs and output of a launch, by name"""
    workspace: GuardedArray


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The kernel for one segment size."""

    kernel: LoadedKernel
    packed_w: GuardedArray


@dataclass(frozen=True, slots=True)
class _Step:
    """One segment of a run."""

    lane: _Lane
    kernel: LoadedKernel
    launches: tuple[Launch, ...]
    host: Mapping[str, HostArray]
    """the segment's part of each array of a launch"""


@contextmanager
def _laid_out(
    device: Device, verifier: Verifier, request: EndToEndRequest, clock: Callable[[], float]
) -> Iterator[_LaidOut]:
    """Allocate the memory and load the kernels that a plan needs, and release everything at the end."""
    problem, plan = verifier.problem, request.plan
    segments = cut(problem.runtime_size, plan.segments)
    started = clock()
    host = {
        array.name: device.allocate_host(array.size_bytes, pinned=plan.pinned)
        for array in problem.arrays
        if array.role != "weights"
    }
    for content in host.values():
        content[::_PAGE_BYTES] = 0
    allocate_us = 1e6 * (clock() - started)
    largest = problem.with_runtime(segments[0].n)
    workspace_bytes = max(source.workspace_bytes for source, _ in request.kernels)
    with ExitStack() as owned:

        def guarded(name: str, size_bytes: int, guard: int = POISON) -> GuardedArray:
            array = GuardedArray(device, name, size_bytes, guard=guard)
            owned.callback(array.free)
            return array

        kernels = {}
        for source, binary in request.kernels:
            module = device.load(binary)
            owned.callback(module.unload)
            kernel = LoadedKernel(device, module, source)
            kernels[source.problem.runtime_size] = _Loaded(kernel, guarded("packed_w", source.packed_w_bytes))
        lanes = tuple(
            _Lane(
                stream=1 + number,
                arrays={
                    array.name: guarded(
                        array.name, array.size_bytes, OUTPUT_GUARD if array.role in COMPUTED else POISON
                    )
                    for array in largest.arrays
                    if array.role != "weights"
                },
                workspace=guarded("workspace", workspace_bytes),
            )
            for number in range(min(plan.streams, len(segments)))
        )
        yield _LaidOut(device, verifier, segments, kernels, lanes, host, allocate_us, clock)


class _LaidOut:
    """A plan ready to run on the device, as a whole and in parts."""

    def __init__(
        self,
        device: Device,
        verifier: Verifier,
        segments: tuple[Segment, ...],
        kernels: dict[int, _Loaded],
        lanes: tuple[_Lane, ...],
        host: Mapping[str, HostArray],
        allocate_us: float,
        clock: Callable[[], float],
    ) -> None:
        self.device, self.verifier, self.segments = device, verifier, segments
        self.kernels, self.lanes = kernels, lanes
        self.host, self.allocate_us = host, allocate_us
        self.output = verifier.y.name
        self.inputs = tuple(name for name in host if name != self.output)
        self.distinct_segments = 0
        self._clock = clock
        self._steps: tuple[_Step, ...] = ()

    @property
    def source(self) -> KernelSource:
        """The kernel used for most of the segments."""
        return self.kernels[self.segments[0].n].kernel.source

    def verify(self) -> None:
        """Run the plan on both data sets and verify every output that arrives in host memory.

        Raises Rejected if an output is wrong, or if two segments have the same inputs.
        """
        seen: list[tuple[int, ...]] = [() for _ in self.segments]
        for data in (self.verifier.integers, self.verifier.normal):
            self._prepare(data)
            seen = [(*marks, self._mark(step)) for marks, step in zip(seen, self._steps, strict=True)]
            self._run()
            self._judge(data)
        self.distinct_segments = sum(seen.count(marks) == 1 for marks in seen)
        if self.distinct_segments < len(self.segments):
            message = (
                f"{len(self.segments)} segments of {self.segments[0].n} images cannot be distinguished, because the "
                "test images repeat; use another number of segments"
            )
            raise Rejected(Outcome.INVALID_CONFIG, "indistinct", message)

    def _mark(self, step: _Step) -> int:
        """Return a checksum of a segment's inputs, used to compare segments."""
        mark = 0
        for name in self.inputs:
            mark = zlib.crc32(step.host[name].data, mark)
        return mark

    def verify_again(self) -> ErrorStats:
        """Run the plan again after the timing, without clearing device memory, and verify the outputs."""
        self.host[self.output].fill(POISON)
        self._run()
        return self._judge(self.verifier.normal)

    def total(self) -> None:
        """Enqueue the whole plan: copies and kernels."""
        for step in self._steps:
            self._copy_in(step)
            step.kernel.run(step.launches, stream=step.lane.stream)
            self._copy_out(step)

    def copy_in(self) -> None:
        """Enqueue only the copies of the inputs."""
        for step in self._steps:
            self._copy_in(step)

    def kernels_alone(self) -> None:
        """Enqueue only the kernels."""
        for step in self._steps:
            step.kernel.run(step.launches, stream=step.lane.stream)

    def copy_out(self) -> None:
        """Enqueue only the copies of the outputs."""
        for step in self._steps:
            self._copy_out(step)

    def _copy_in(self, step: _Step) -> None:
        for name in self.inputs:
            self.device.copy_in(step.lane.arrays[name].address, step.host[name], stream=step.lane.stream)

    def _copy_out(self, step: _Step) -> None:
        address = step.lane.arrays[self.output].address
        self.device.copy_out(step.host[self.output], address, stream=step.lane.stream)

    def time(self, enqueue: Callable[[], None]) -> Sample:
        """Measure the wall-clock time from the first call until all enqueued work is done."""
        started = self._clock()
        enqueue()
        self.device.synchronize()
        return Sample(1e6 * (self._clock() - started))

    def _run(self) -> None:
        self.total()
        self.device.synchronize()

    def _prepare(self, data: DataSet) -> None:
        """Copy a data set's inputs to the host, poison all memory that a run has to write, and plan the steps."""
        for name in self.inputs:
            self.device.copy_out(self.host[name], data.inputs[name].address, stream=0)
        self.host[self.output].fill(POISON)
        for lane in self.lanes:
            for array in (*lane.arrays.values(), lane.workspace):
                array.poison()
        for loaded in self.kernels.values():
            loaded.packed_w.poison()
            loaded.kernel.prepare(self._tensors(data, self.lanes[0], loaded))
        self.device.synchronize()
        self._steps = tuple(
            self._step(data, self.lanes[number % len(self.lanes)], segment)
            for number, segment in enumerate(self.segments)
        )

    def _step(self, data: DataSet, lane: _Lane, segment: Segment) -> _Step:
        loaded = self.kernels[segment.n]
        n = self.verifier.problem.runtime_size
        end = segment.first + segment.n
        return _Step(
            lane=lane,
            kernel=loaded.kernel,
            launches=loaded.kernel.forward(self._tensors(data, lane, loaded)),
            host={
                name: array[segment.first * (array.nbytes // n) : end * (array.nbytes // n)]
                for name, array in self.host.items()
            },
        )

    def _tensors(self, data: DataSet, lane: _Lane, loaded: _Loaded) -> Tensors:
        arrays = {name: array.address for name, array in {**data.inputs, **lane.arrays}.items()}
        return Tensors(arrays, loaded.packed_w.address, lane.workspace.address)

    def _judge(self, data: DataSet) -> ErrorStats:
        """Verify the output in host memory and the guard bands of all arrays. Raises Rejected if anything is wrong."""
        self.verifier.y.poison()
        self.device.copy_in(self.verifier.y.address, self.host[self.output], stream=0)
        self.device.synchronize()
        arrays = [array for lane in self.lanes for array in (*lane.arrays.values(), lane.workspace)]
        arrays += [loaded.packed_w for loaded in self.kernels.values()]
        return self.verifier.judge(data, self.source, arrays)
