"""Problems whose arrays have more elements than 31 bits count, for families that do not refuse them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.checking.problems import with_runtimes
from autotune.devices.device import DeviceInfo
from autotune.family.space import Admission, BoundTemplate, SearchSpace, refusal
from autotune.operation.declarations import READ
from autotune.problem import Problem
from autotune.trial import Config

BEYOND = 1 << 31
"""elements of x and of y, more than which a large problem has"""
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
        large = [problem for each in of_layout for problem in with_runtimes(each, (_size(each),))]
        if not large:
            continue
        problem = min(large, key=lambda problem: (_bytes(problem), problem.flops))
        admission = Admission(workspace_limit_bytes=max(0, int(_SHARE * device.memory_bytes) - _bytes(problem)))
        bound = BoundTemplate(bounds[0].template, problem, device, admission)
        found.append(_tried(bound, device))
    return tuple(found)


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


def _size(problem: Problem) -> int:
    """The run-time size at which each array that grows with it has more than 2^31 elements."""
    fewest = min(array.elements for array in problem.arrays if array.per_item)
    return BEYOND // max(1, fewest // problem.runtime_size) + 1


def _bytes(problem: Problem) -> int:
    """Two sets of the inputs that grow with it, and the output."""
    return sum(array.size_bytes * (2 if array.role in READ else 1) for array in problem.arrays if array.per_item)
