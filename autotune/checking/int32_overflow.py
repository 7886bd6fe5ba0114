"""Problems whose arrays have more elements than 31 bits count, or 24 on a CPU, for families that do not refuse them;
and on a CPU a run-time size beyond 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from autotune.checking.problems import with_leading
from autotune.devices.device import DeviceInfo
from autotune.family.render import launches
from autotune.family.space import Admission, BoundTemplate, SearchSpace, refusal
from autotune.operation.declarations import READ
from autotune.problem import Problem, valid_problems
from autotune.trial import Config

BEYOND = 1 << 31
"""elements of x and of y, more than which a large problem has"""
_CPU_BEYOND = (1 << 24) + (1 << 10)  # on a CPU: beyond the integers of a float and of 24-bit multiplications
_CPU_UNITS = (1 << 16) + 1  # of the run-time size: beyond 16 bits and two axes of a grid
_CPU_BYTES, _CPU_FLOPS, _CPU_THREADS = 256 << 20, 1 << 28, 5 << 20  # that take a CPU a few seconds
_SHARE = 0.85  # of the device's memory that a check may take


@dataclass(frozen=True, slots=True)
class LargeProblem:
    """A large problem with a config for it, or the reason why none is tried."""

    bound: BoundTemplate
    config: Config | None
    why_not: str


def large_problems(bounds: Sequence[BoundTemplate], device: DeviceInfo) -> tuple[LargeProblem, ...]:
    """For each layout that there is the one of these problems that is largest with the least memory, at the
    run-time size that it takes; none where no 32-bit size is enough.

    A CPU has neither the memory nor the time.
    """
    found = []
    for layout in dict.fromkeys(bound.problem.values.get("layout") for bound in bounds):
        of_layout = (bound.problem for bound in bounds if bound.problem.values.get("layout") == layout)
        large = [problem for each in of_layout for problem in with_leading(each, (_size(each),))]
        if not large:
            continue
        problem = min(large, key=lambda problem: (_bytes(problem), problem.flops))
        admission = Admission(workspace_limit_bytes=max(0, int(_SHARE * device.memory_bytes) - _bytes(problem)))
        bound = BoundTemplate(bounds[0].template, problem, device, admission)
        found.append(_tried(bound, device))
    return tuple(found)


def large_for_a_cpu(
    tried: Sequence[tuple[BoundTemplate, Config]], device: DeviceInfo
) -> Iterator[tuple[BoundTemplate, Config]]:
    """The fastest of these on a CPU with arrays of more elements than a float counts, and with more units of the
    run-time size than 16 bits hold; nothing if all take long.
    """
    beyond_24_bits = _soonest(tried, device, 0, lambda problem: _size(problem, _CPU_BEYOND))
    if beyond_24_bits:
        yield beyond_24_bits
    sizes = beyond_24_bits[0].problem.runtime_sizes if beyond_24_bits else None
    for place, _ in enumerate(tried[0][0].problem.runtime_sizes if tried else ()):
        if sizes is None or sizes[place] < _CPU_UNITS:
            beyond_16_bits = _soonest(tried, device, place, lambda _: _CPU_UNITS)
            if beyond_16_bits:
                yield beyond_16_bits


def _soonest(
    tried: Sequence[tuple[BoundTemplate, Config]], device: DeviceInfo, place: int, size: Callable[[Problem], int]
) -> tuple[BoundTemplate, Config] | None:
    """The one with the fewest threads, and then elements, with these numbers for the run-time size of this place."""
    cheapest: tuple[tuple[int, int], BoundTemplate, Config] | None = None
    for small, config in tried:
        for problem in valid_problems([partial(small.problem.with_runtime_at, place, size(small.problem))]):
            bound = BoundTemplate(small.template, problem, device)
            if problem.tensor_bytes > _CPU_BYTES or problem.flops > _CPU_FLOPS or not bound.allows(config):
                continue
            stages = launches(bound, bound.template.stages, bound.names(config))
            threads = sum(math.prod((*stage.grid, *stage.block)) for stage in stages)
            cost = threads, sum(array.elements for array in problem.arrays)
            if threads <= _CPU_THREADS and (cheapest is None or cost < cheapest[0]):
                cheapest = cost, bound, config
    return cheapest[1:] if cheapest else None


def _tried(bound: BoundTemplate, device: DeviceInfo) -> LargeProblem:
    if not bound.supported:
        return LargeProblem(bound, None, f"the family requires: {bound.unmet}")
    if not device.can.gpu:
        return LargeProblem(bound, None, "it takes a GPU; give --device cuda:N")
    needed = _bytes(bound.problem)
    if needed > _SHARE * device.memory_bytes:
        return LargeProblem(
            bound, None, f"it takes {needed / 1e9:.0f} GB, the device has {device.memory_bytes / 1e9:.0f}"
        )
    config = SearchSpace(bound, most_rows=0, sampled_rows=1).default
    return LargeProblem(bound, config, "" if config else f"no config is feasible: {refusal(bound)}")


def _size(problem: Problem, beyond: int = BEYOND) -> int:
    """The run-time size at which each array that grows with it has more than so many elements."""
    fewest = min(array.elements for array in problem.arrays if array.per_item)
    return beyond // max(1, fewest // problem.runtime_size) + 1


def _bytes(problem: Problem) -> int:
    """Two sets of the inputs that grow with it, and the output."""
    return sum(array.size_bytes * (2 if array.role in READ else 1) for array in problem.arrays if array.per_item)
