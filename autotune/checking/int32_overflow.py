"""Find large problems that make integers overflow, for families that don't reject them.

An array has more elements than 31 bits can count. On a CPU, there are also problems with more elements than 24 bits can
count, and with a run-time size beyond 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from autotune.checking.other_sizes import axes
from autotune.devices.device import DeviceInfo
from autotune.family.render import launches
from autotune.family.space import Admission, BoundTemplate, SearchSpace, refusal
from autotune.family.template import KernelTemplate
from autotune.operation.declarations import READ, Array
from autotune.problem import Problem, make_problem, valid_problems
from autotune.trial import Config

BEYOND = 1 << 31
"""a large problem has an array with more elements than this"""
_UNITS_BEYOND = 3  # number of units that end beyond it, so that the last ones also begin beyond it
_WIDE, _WIDENED = (1 << 17) + 1, 8  # a large value for a size that is not a run-time size, and problems to try it on
_CPU_BEYOND = (1 << 24) + (1 << 10)  # on a CPU: beyond the integers of a float and of 24-bit multiplications
_CPU_UNITS = (1 << 16) + 1  # run-time size on a CPU: beyond 16 bits and the limits of two axes of a grid
_CPU_BYTES, _CPU_FLOPS, _CPU_THREADS = 256 << 20, 1 << 28, 5 << 20  # limits for a few seconds on a CPU
_UNITS, _REFERENCE_ELEMENTS = 64, 1 << 26  # number of units with a reference, and limit for their elements
_UNIT_FLOPS = 10_000  # FLOPs that take a GPU as long as a unit of the run-time size, which is often a block
_ALIGNED = 4096  # a large size other than a run-time size is a multiple of this, so that vectors divide it
_SAMPLED = 64  # number of configs from which the one with the largest workspace is chosen
_SHARE = 0.85  # maximum share of the device's memory that a check may use
_STRIDE_BYTES = 1 << 40  # a tensor map takes smaller strides
_ADDRESSES_BYTES = 1 << 44  # limit for arrays that take memory only where they are written


@dataclass(frozen=True, slots=True)
class LargeProblem:
    """A large problem, with a config or the reason why none is tried."""

    bound: BoundTemplate
    config: Config | None
    why_not: str
    limited: bool = False
    """whether the family supports the problem, but no config runs it"""


def large_problems(bounds: Sequence[BoundTemplate], device: DeviceInfo) -> tuple[LargeProblem, ...]:
    """Return a large problem for each layout, with a larger run-time size, or none if no 32-bit size is large enough.

    As many arrays as possible have more than `BEYOND` elements, in as little memory as possible. A CPU has neither the
    memory nor the time for such a problem, so it runs only some blocks. If possible, even an array's places are as many
    there, such as its pixels.
    """
    memory_bytes, beyond = int(_SHARE * device.memory_bytes), BEYOND
    if device.can.cpu:  # memory is not a limit here, so the last of several rows can also begin beyond 31 bits
        memory_bytes, beyond = _ADDRESSES_BYTES, 2 * BEYOND
    found = []
    for layout in dict.fromkeys(bound.problem.values.get("layout") for bound in bounds):
        of_layout = [bound.problem for bound in bounds if bound.problem.values.get("layout") == layout]
        if device.can.cpu and (larger_yet := _with_many_places(bounds[0].template, of_layout, device)):
            found.append(larger_yet)
            continue
        larger = [problem for each in of_layout for problem in _enlarged(each, beyond)]
        tried = [BoundTemplate(bounds[0].template, problem, device) for problem in larger]
        if not any(bound.supported for bound in tried):  # such as an axis of a grid, which has at most 65535 blocks
            wide = [
                problem
                for each in of_layout[:_WIDENED]
                for other in _wide(each)
                for problem in _enlarged(other, beyond)
            ]
            tried += [BoundTemplate(bounds[0].template, problem, device) for problem in wide]
        if not device.can.cpu:
            tried = [bound for bound in tried if _has_quick_reference(bound.problem)]
        if not tried:
            continue
        best = min(tried, key=lambda bound: (not bound.supported, *_cost(bound.problem, beyond, memory_bytes)))
        admission = Admission(workspace_limit_bytes=max(0, memory_bytes - _bytes(best.problem)))
        found.append(_tried(BoundTemplate(best.template, best.problem, device, admission), memory_bytes))
    return tuple(found)


def _with_many_places(template: KernelTemplate, problems: Sequence[Problem], device: DeviceInfo) -> LargeProblem | None:
    """Return a problem whose arrays each have more places than 32 bits can count, or None if none is supported.

    A place has all elements along an array's longest axis, such as the channels of a pixel. The config has the largest
    workspace among some.
    """
    supported = []
    for problem in problems:
        places = min((_places(array, problem) for array in problem.arrays if array.grows), default=0)
        if not places:
            continue
        for other in valid_problems([partial(problem.with_runtime, 2 * BEYOND // places + _UNITS_BEYOND)]):
            bound = BoundTemplate(template, other, device, Admission(workspace_limit_bytes=_STRIDE_BYTES))
            if max(array.size_bytes for array in other.arrays) < _STRIDE_BYTES and bound.supported:
                supported.append(bound)
    found: list[tuple[int, LargeProblem]] = []
    for bound in sorted(supported, key=lambda bound: _bytes(bound.problem))[:_WIDENED]:
        space, workspace = SearchSpace(bound, most_rows=0, sampled_rows=_SAMPLED), bound.bind(template.workspace_bytes)
        for config in map(space.config, range(len(space.rows))):
            found.append((workspace.integer(bound.names(config)), LargeProblem(bound, config, "")))
    return max(found, key=lambda each: each[0])[1] if found else None


def _places(array: Array, problem: Problem) -> int:
    """Return the number of places of an array per unit of the first run-time size."""
    units = problem.operation.runtime[0]
    longest = max((size for axis, size in zip(array.axes, array.shape, strict=True) if axis != units), default=1)
    return array.elements // problem.runtime_size // longest


def large_weights(bounds: Sequence[BoundTemplate]) -> LargeProblem | None:
    """Return a problem with few units and a large array without units, such as weights, or None.

    Among several, the one with the most outputs has the least work for each of them.
    """
    tried = [
        BoundTemplate(bound.template, problem, bound.device)
        for bound in bounds[:_WIDENED]
        for problem in _with_large_weights(bound.problem)
    ]
    supported = [bound for bound in tried if bound.supported]
    if not supported:
        return None
    best = max(supported, key=lambda bound: sum(array.elements for array in bound.problem.outputs))
    return _tried(best, _ADDRESSES_BYTES)


def _with_large_weights(problem: Problem) -> Iterator[Problem]:
    """Yield the problem with each size other than a run-time size so large that an array without units is large."""
    beyond = 2 * BEYOND
    for axis in axes(problem):
        own = int(problem.values[axis])
        each = {array.elements // own for array in problem.arrays if not array.grows and array.elements > own}
        sizes = sorted({(beyond // elements // _ALIGNED + 1) * _ALIGNED for elements in each})
        larger = valid_problems(partial(make_problem, problem.operation, {**problem.values, axis: n}) for n in sizes)
        for other in larger:
            if any(array.elements > beyond and not array.grows for array in other.arrays):
                yield other


def _enlarged(problem: Problem, beyond: int) -> Iterator[Problem]:
    """Yield the problem with each run-time size so large that one or several arrays exceed `beyond` elements."""
    for place, size in enumerate(problem.runtime_sizes):
        each = {array.elements // size for array in problem.arrays if array.elements >= size}
        sizes = sorted({beyond // elements + _UNITS_BEYOND for elements in each})
        larger = valid_problems(partial(problem.with_runtime_at, place, size) for size in sizes)
        yield from (other for other in larger if _arrays(other, beyond))


def _has_quick_reference(problem: Problem) -> bool:
    """Return whether the units that need a reference have few elements, since a NumPy reference takes long."""
    units = min(_UNITS, problem.runtime_size) if problem.operation.independent else problem.runtime_size
    return sum(array.elements for array in problem.arrays) * units <= _REFERENCE_ELEMENTS * problem.runtime_size


def _wide(problem: Problem) -> Iterator[Problem]:
    """Yield the problem with each size other than a run-time size set to a large value."""
    widened = (partial(make_problem, problem.operation, {**problem.values, axis: _WIDE}) for axis in axes(problem))
    return valid_problems(widened)


def _arrays(problem: Problem, beyond: int) -> int:
    """Return the number of arrays with more than `beyond` elements."""
    return sum(array.elements > beyond for array in problem.arrays)


def _cost(problem: Problem, beyond: int, memory_bytes: int) -> tuple[bool, int, int, int]:
    needed, work = _bytes(problem), problem.flops + _UNIT_FLOPS * problem.runtime_size
    return needed > memory_bytes, -_arrays(problem, beyond), needed >> 30, work


def large_for_a_cpu(
    tried: Sequence[tuple[BoundTemplate, Config]], device: DeviceInfo
) -> Iterator[tuple[BoundTemplate, Config]]:
    """Yield large problems that a CPU can run quickly: beyond 24 bits of elements, and beyond 16 bits of a run-time
    size.

    Each one is the fastest of the problems with larger sizes that were tried. If all of them would take too long,
    nothing is yielded.
    """
    most_arrays = max((len(bound.problem.arrays) for bound, _ in tried), default=0)
    found = (_soonest(tried, device, 0, partial(_size, fewer=fewer)) for fewer in range(most_arrays))
    beyond_24_bits = next(filter(None, found), None)
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
    """Return the problem with the fewest threads, or else the fewest elements, after enlarging one run-time size.

    `place` is that run-time size's position, and `size` returns its new value. Returns None if all of them take too
    long.
    """
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


def _tried(bound: BoundTemplate, memory_bytes: int) -> LargeProblem:
    if not bound.supported:
        return LargeProblem(bound, None, f"the family requires: {bound.unmet}")
    needed = _bytes(bound.problem)
    if needed > memory_bytes:
        return LargeProblem(bound, None, f"it takes {needed / 1e9:.0f} GB, the device has {memory_bytes / 1e9:.0f}")
    config = SearchSpace(bound, most_rows=0, sampled_rows=1).default
    why_not = "" if config else f"no config is feasible: {refusal(bound)}"
    return LargeProblem(bound, config, why_not, limited=config is None)


def _size(problem: Problem, *, fewer: int) -> int:
    """Return the run-time size at which all but `fewer` of the arrays that grow with it have over 2^24 elements."""
    elements = sorted(array.elements for array in problem.arrays if array.per_item)
    return _CPU_BEYOND // max(1, elements[min(fewer, len(elements) - 1)] // problem.runtime_size) + 1


def _bytes(problem: Problem) -> int:
    """Return the size in bytes of two sets of inputs and one set of outputs."""
    return sum(array.size_bytes * (2 if array.role in READ else 1) for array in problem.arrays)
