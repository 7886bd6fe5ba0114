"""The bytes that any implementation of a layer must move through memory, in 32-byte sectors.

The windows that the operation declares for the axes of an array determine which of its elements are needed.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from autotune.operation.declarations import COMPUTED, READ, Array, Window
from autotune.operation.storage_types import TYPES
from autotune.problem import Problem

SECTOR_BYTES = 32
"""the smallest transfer of a GPU's memory (CUDA C++ Best Practices Guide, coalesced access to global memory)"""
_MOST_PLACES = 1 << 20  # maximum number of positions considered on an axis with a window

_Integers = npt.NDArray[np.int64]


def minimal_bytes(problem: Problem) -> int:
    """Bytes of the sectors that any implementation reads or writes, each once; sectors of a changed array count twice.

    A sector counts if some output needs one of its elements. Each array begins at a sector. The result is exact for
    windows of at most 2^20 rows and columns, and a lower bound for larger ones.
    """
    return read_bytes(problem) + written_bytes(problem)


@lru_cache(maxsize=1024)
def read_bytes(problem: Problem) -> int:
    """The bytes that are read."""
    return SECTOR_BYTES * sum(needed_sectors(array) for array in problem.arrays if array.role in READ)


@lru_cache(maxsize=1024)
def written_bytes(problem: Problem) -> int:
    """The bytes that are written."""
    return SECTOR_BYTES * sum(needed_sectors(array) for array in problem.arrays if array.role in COMPUTED)


def needed_sectors(array: Array) -> int:
    """The number of an array's sectors with an element that some output needs."""
    width = SECTOR_BYTES // TYPES[array.dtype].size_bytes  # elements of a sector
    places = {axis: needed(array.shape[axis], window) for axis, window in enumerate(array.windows) if window}
    if not all(map(len, places.values())):
        return 0  # every output sees only padding
    if all(len(positions) == array.shape[axis] for axis, positions in places.items()):
        return -(-array.elements // width)
    first_axis, last_axis = min(places), max(places)
    run = math.prod(array.shape[last_axis + 1 :])
    row_size = array.shape[last_axis] * run
    rows = np.zeros(1, np.int64)  # the needed rows of a plane, which has the axes from the first window to the last
    for axis in range(first_axis, last_axis):
        size = array.shape[axis]
        rows = (rows[:, None] * size + places.get(axis, np.arange(size, dtype=np.int64))).ravel()
    plane_size = math.prod(array.shape[first_axis:])
    first, last, count = _row_sectors(places[last_axis] * run, run, width)

    def sectors(planes: int) -> int:
        """The sectors of consecutive planes; the first begins at a sector."""
        begin = (np.arange(planes, dtype=np.int64)[:, None] * plane_size + rows * row_size).ravel()
        behind = begin % width
        return _union(begin // width + first[behind], begin // width + last[behind], int(count[behind].sum()))

    planes = math.prod(array.shape[:first_axis])
    period = width // math.gcd(width, plane_size)  # planes until another one begins at a sector
    return planes // period * sectors(period) + sectors(planes % period)


def needed(size: int, window: Window) -> _Integers:
    """The positions that some output needs among the first 2^20 on an axis of this length, in order."""
    stride, dilation = window.stride, window.dilation
    place = np.arange(min(size, _MOST_PLACES), dtype=np.int64) + window.pad
    common = math.gcd(stride, dilation)
    step = stride // common  # between two taps that meet outputs at one place
    some = place // common % step * pow(dilation // common, -1, step) % step  # one such tap, modulo step
    least = np.maximum(0, -(((window.outputs - 1) * stride - place) // dilation))  # smaller taps have no output
    tap = least + (some - least) % step
    positions: _Integers = np.flatnonzero((place % common == 0) & (tap < window.taps) & (tap * dilation <= place))
    return positions


def _row_sectors(begin: _Integers, run: int, width: int) -> tuple[_Integers, _Integers, _Integers]:
    """First, last and number of the sectors of a row's needed runs, by the row's offset within a sector."""
    sectors = []
    for behind in range(width):
        first, last = (behind + begin) // width, (behind + begin + run - 1) // width
        sectors.append((int(first[0]), int(last[-1]), _union(first, last, int((last - first + 1).sum()))))
    first, last, count = np.array(sectors, dtype=np.int64).T
    return first, last, count


def _union(first: _Integers, last: _Integers, count: int) -> int:
    """The number of distinct sectors of ordered runs with `count` sectors in all; neighbours share at most one."""
    return count - int((last[:-1] == first[1:]).sum())
