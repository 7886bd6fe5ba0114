"""The functions that header expressions can call, for a single config. `vectorized` implements them for many
configs.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping

from autotune.autotune_runtime import planned_launches
from autotune.trial import Value

WARP = 32  # lanes
BANKS = 32  # banks of 4 bytes; a pass reads or writes one word of each bank
WORD = 4  # bytes
FARTHEST = 1 << 32  # number of words, more than any shared memory has
MOST = 1 << 16  # maximum number of places that are examined


Place = tuple[int, ...]
"""A distance in bytes, an extent and, optionally, the largest offset in bytes."""


@functools.lru_cache(maxsize=4096)
def bank_conflicts(width: int, threads: int, *places: Place) -> int:
    """Count the additional shared-memory passes that bank conflicts cost.

    A block of `threads` threads accesses `width` bytes at each of many places, one place per thread at a time, in
    order. Place i is at i % extent * distance of the first of `places`, plus the offset of place i // extent in the
    rest of `places`; a third number limits the offset. If there are more than 65,536 places, the first 65,536 represent
    all of them. Raises ValueError if `places` is empty, if one has neither two nor three numbers, or an extent below 0,
    if there are no threads, or if an access can't be `width` bytes wide.

    A warp's access of 8 bytes is split into two halves, and one of 16 bytes into four quarters. Each half or quarter
    takes at least one pass.
    """
    import numpy as np  # imported here, because the other functions do not need it

    if width not in (1, 2, 4, 8, 16) or threads < 1:
        raise ValueError("bank_conflicts begins with 1, 2, 4, 8 or 16 bytes and with threads")
    if not places or any(len(one) not in (2, 3) or one[1] < 0 for one in places):
        raise ValueError("bank_conflicts ends with [distance, extent] or [distance, extent, last]")
    count = math.prod(one[1] for one in places)
    place = np.arange(min(count, MOST), dtype=np.int64)
    if not len(place):
        return 0
    at, left = np.zeros_like(place), place
    for distance, extent, *last in places:
        along = left % extent * distance
        at += np.minimum(along, last[0]) if last else along
        left = left // extent
    parts = max(1, width // WORD)  # parts of a warp's access; each takes at least one pass
    warp = place // threads * -(-threads // WARP) + place % threads // WARP
    part = warp * parts + place % threads % WARP * parts // WARP
    words = at[:, None] // WORD + np.arange(parts)
    accessed = np.sort((part[:, None] * FARTHEST + words).ravel())  # np.unique hashes first: four times the time
    touched = accessed[np.diff(accessed, prepend=accessed[0] - 1) != 0]
    passes = np.bincount(touched // FARTHEST * BANKS + touched % BANKS, minlength=(int(part[-1]) + 1) * BANKS)
    further = np.maximum(passes.reshape(-1, BANKS).max(axis=1) - 1, 0)
    return int(further.sum()) * count // len(place)


Evaluated = Value | tuple[Value, ...]


FUNCTIONS: Mapping[str, Callable[..., int | bool]] = {
    **planned_launches.FUNCTIONS,
    "bank_conflicts": bank_conflicts,
}

ON_VALUES: Mapping[str, Callable[..., Evaluated]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "neg": operator.neg,
    "not": operator.not_,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda value, container: value in container,
    "notin": lambda value, container: value not in container,
    **FUNCTIONS,
}
