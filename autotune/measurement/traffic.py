"""The bytes that any implementation of a layer moves through memory, by the 32-byte sectors that it must touch."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from autotune.problem import Conv2dProblem

SECTOR_BYTES = 32
"""what a GPU's memory moves at least (CUDA C++ Best Practices Guide, coalesced access to global memory)"""
_MOST_PLACES = 1 << 20  # rows or columns of an image that are looked at

_Integers = npt.NDArray[np.int64]


@lru_cache(maxsize=1024)
def minimal_bytes(problem: Conv2dProblem) -> int:
    """Bytes of the sectors that any implementation reads or writes, each once.

    Of x the sectors with an element that some output needs; every other array whole. Each array begins at a sector.
    Exact for images of at most 2^20 rows and columns, of larger ones a lower bound.
    """
    whole = sum(-(-array.size_bytes // SECTOR_BYTES) for array in problem.arrays if array.name != "x")
    return SECTOR_BYTES * (input_sectors(problem) + whole)


def input_sectors(problem: Conv2dProblem) -> int:
    """Sectors of x that hold an element which some output needs."""
    p = problem
    width = SECTOR_BYTES // p.element_bytes  # elements of a sector
    rows = needed(p.h, p.p, p.r, p.stride_h, p.pad_h, p.dilation_h)
    columns = needed(p.w, p.q, p.s, p.stride_w, p.pad_w, p.dilation_w)
    if not len(rows) or not len(columns):
        return 0  # every output sees nothing but padding
    if len(rows) == p.h and len(columns) == p.w:
        return -(-p.array("x").elements // width)
    planes, run = (p.n, p.c) if p.layout == "nhwc" else (p.n * p.c, 1)
    row_size = p.w * run
    first, last, count = _row_sectors(columns * run, run, width)

    def sectors(planes: int) -> int:
        """Of as many planes, one behind the other, the first of which begins at a sector."""
        begin = (np.arange(planes, dtype=np.int64)[:, None] * p.h + rows).ravel() * row_size
        behind = begin % width
        return _union(begin // width + first[behind], begin // width + last[behind], int(count[behind].sum()))

    period = width // math.gcd(width, p.h * row_size)  # planes after which one begins at a sector again
    return planes // period * sectors(period) + sectors(planes % period)


def needed(size: int, outputs: int, taps: int, stride: int, pad: int, dilation: int) -> _Integers:
    """Which of the first 2^20 places on an axis of x some output needs, in order.

    Output i and tap t meet at place i * stride + t * dilation - pad.
    """
    place = np.arange(min(size, _MOST_PLACES), dtype=np.int64) + pad
    common = math.gcd(stride, dilation)
    step = stride // common  # taps that meet outputs at one place are so far apart
    some = place // common % step * pow(dilation // common, -1, step) % step  # one such tap, modulo step
    least = np.maximum(0, -(((outputs - 1) * stride - place) // dilation))  # for smaller ones there is no output
    tap = least + (some - least) % step
    found: _Integers = np.flatnonzero((place % common == 0) & (tap < taps) & (tap * dilation <= place))
    return found


def _row_sectors(begin: _Integers, run: int, width: int) -> tuple[_Integers, _Integers, _Integers]:
    """First, last and number of the sectors of a row with needed runs, by its begin's distance behind a sector's."""
    found = []
    for behind in range(width):
        first, last = (behind + begin) // width, (behind + begin + run - 1) // width
        found.append((int(first[0]), int(last[-1]), _union(first, last, int((last - first + 1).sum()))))
    first, last, count = np.array(found, dtype=np.int64).T
    return first, last, count


def _union(first: _Integers, last: _Integers, count: int) -> int:
    """Of runs in order with `count` sectors in all, those that are different: neighbours share one at most."""
    return count - int((last[:-1] == first[1:]).sum())
