"""Decide whether a library's kernel or PyTorch's operator computes tensors of sizes that were not raced before."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .torch_runtime import Runtime

_WRONG = 0.05  # difference as a fraction of the largest output, larger than the rounding errors of any accuracy class
_RUNS = 3  # number of timed runs of each contender


def agree(ours: Tensor, theirs: Tensor) -> bool:
    """Whether a kernel's result equals PyTorch's except for rounding. Overwrites `ours` to save memory."""
    largest, error = (torch.linalg.vector_norm(each, torch.inf) for each in (theirs, ours.sub_(theirs)))
    return bool(error <= _WRONG * largest)


def wins_race(
    by_kernel: Callable[[], object],
    by_pytorch: Callable[[], object],
    margin: float,
    device: torch.device,
    runtime: Runtime,
) -> bool | None:
    """Whether a kernel is faster than PyTorch by the fraction `margin`.

    Returns None if there isn't enough memory for both results, or if they differ.
    """

    def time_ms(run: Callable[[], object]) -> float:
        def passed() -> None:
            run()

        return min(runtime.time_ms(device, passed) for _ in range(_RUNS))

    try:
        theirs, theirs_ms = by_pytorch(), time_ms(by_pytorch)
        ours, ours_ms = by_kernel(), time_ms(by_kernel)
        assert isinstance(theirs, Tensor)  # noqa: S101 - operators with a choice have one output
        assert isinstance(ours, Tensor)  # noqa: S101
        return theirs_ms > (1 + margin) * ours_ms if agree(ours, theirs) else None
    except torch.OutOfMemoryError:
        return None
