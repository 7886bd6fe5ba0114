"""Compute the bytes that any implementation of a layer must move through memory, in 32-byte sectors.

Which elements of an array are needed follows from the windows that the operation declares for its axes.
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
    """Return the bytes in all sectors that any implementation must read or write.

    A sector counts if some output needs one of its elements, and twice if its array is both read and written. Each
    array begins at a sector. The result is exact for axes of at most 2^20 elements, and a lower bound for longer ones.
    """
    return read_bytes(problem) + written_bytes(problem)


@lru_cache(maxsize=1024)
def read_bytes(problem: Problem) -> int:
    """Return the number of bytes that any implementation must read."""
    return SECTOR_BYTES * sum(needed_sectors(array) for array in problem.arrays if array.role in READ)


@lru_cache(maxsize=1024)
def written_bytes(problem: Problem) -> int:
    """Return the number of bytes that any implementation must write."""
    return SECTOR_BYTES * sum(needed_sectors(array) for array in problem.arrays if array.role in COMPUTED)


def needed_sectors(array: Array) -> int:
    """Return the number of an array's sectors that contain an element needed by some output."""
    width = SECTOR_BYTES // TYPES[array.dtype].size_bytes  # elements per sector
    places = {axis: needed(array.shape[axis], window) for axis, window in enumerate(array.windows) if window}
    if not all(map(len, places.values())):
        return 0  # every output reads only padding
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
        """Return the number of needed sectors in consecutive planes. The first plane begins at a sector."""
        begin = (np.arange(planes, dtype=np.int64)[:, None] * plane_size + rows * row_size).ravel()
        behind = begin % width
        return _union(begin // width + first[behind], begin // width + last[behind], int(count[behind].sum()))

    planes = math.prod(array.shape[:first_axis])
    period = width // math.gcd(width, plane_size)  # number of planes until a plane begins at a sector again
    return planes // period * sectors(period) + sectors(planes % period)


def needed(size: int, window: Window) -> _Integers:
    """Return, in order, the positions on an axis of this length that outputs need, among the first 2^20."""
    stride, dilation = window.stride, window.dilation
    place = np.arange(min(size, _MOST_PLACES), dtype=np.int64) + window.pad
    common = math.gcd(stride, dilation)
    step = stride // common  # distance between two taps that read the same position for some output
    some = place // common % step * pow(dilation // common, -1, step) % step  # one such tap, modulo step
    least = np.maximum(0, -(((window.outputs - 1) * stride - place) // dilation))  # smaller taps have no output
    tap = least + (some - least) % step
    positions: _Integers = np.flatnonzero((place % common == 0) & (tap < window.taps) & (tap * dilation <= place))
    return positions


def _row_sectors(begin: _Integers, run: int, width: int) -> tuple[_Integers, _Integers, _Integers]:
    """Return the first sector, the last sector and the number of sectors of a row's needed runs.

    Each array is indexed by the row's starting position within a sector.
    """
    sectors = []
    for behind in range(width):
        first, last = (behind + begin) // width, (behind + begin + run - 1) // width
        sectors.append((int(first[0]), int(last[-1]), _union(first, last, int((last - first + 1).sum()))))
    first, last, count = np.array(sectors, dtype=np.int64).T
    return first, last, count


def _union(first: _Integers, last: _Integers, count: int) -> int:
    """Return the number of distinct sectors in ordered runs, which have `count` sectors in total.

    Consecutive runs share at most one sector.
    """
    return count - int((last[:-1] == first[1:]).sum())
