"""Shared memory of a multiprocessor: what bank conflicts cost a block's access."""

from __future__ import annotations

import functools
import math

WARP = 32  # lanes
BANKS = 32  # of 4 bytes each; a pass reads or writes one word of each
WORD = 4  # bytes
FARTHEST = 1 << 32  # words, more than any shared memory has
MOST = 1 << 16  # places looked at


Place = tuple[int, ...]
"""A distance in bytes, an extent, and where the last places lie if they move up."""


@functools.lru_cache(maxsize=4096)
def bank_conflicts(width: int, threads: int, *places: Place) -> int:
    """The passes that bank conflicts cost beyond those of the same accesses without any.

    A block of `threads` threads accesses `width` bytes at each of many places, as many places at a time as it has
    threads, neighbouring threads neighbouring places. Place i lies at i % extent * distance of the first of `places`,
    and i // extent goes on with the next; none lies beyond a third number, where there is one. Of more than 65,536
    places the first are taken for all. Raises ValueError for another number of numbers, an extent below 0, no threads,
    or a width that no access has.

    An access of over 4 bytes goes through sixteen (8 bytes) or eight lanes (16 bytes) at a time, at least a pass each.
    """
    import numpy as np  # the other functions of headers need none

    if width not in (1, 2, 4, 8, 16) or threads < 1:
        raise ValueError("bank_conflicts begins with 1, 2, 4, 8 or 16 bytes and with threads")
    if not places or any(len(one) not in (2, 3) or one[1] < 0 for one in places):
        raise ValueError("bank_conflicts ends with [distance, extent] or [distance, extent, last]")
    whole = math.prod(one[1] for one in places)
    place = np.arange(min(whole, MOST), dtype=np.int64)
    if not len(place):
        return 0
    at, left = np.zeros_like(place), place
    for distance, extent, *last in places:
        along = left % extent * distance
        at += np.minimum(along, last[0]) if last else along
        left = left // extent
    turns = max(1, width // WORD)  # of a warp's access, each a pass at least
    warp = place // threads * -(-threads // WARP) + place % threads // WARP
    turn = warp * turns + place % threads % WARP * turns // WARP
    words = at[:, None] // WORD + np.arange(turns)
    touched = np.unique(turn[:, None] * FARTHEST + words)
    passes = np.bincount(touched // FARTHEST * BANKS + touched % BANKS, minlength=(int(turn[-1]) + 1) * BANKS)
    further = np.maximum(passes.reshape(-1, BANKS).max(axis=1) - 1, 0)
    return int(further.sum()) * whole // len(place)
