"""store -> dispatch: how alike layers are to a dispatcher, and the paces to expect of its kernels on one.

All in whole numbers, so that the compiled dispatcher comes to the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

SAME = 1 << 24
"""How alike a layer is to itself."""


def likeness(powers: Sequence[int], values: Ints, known: Ints) -> Ints:
    """[layers, known]; SAME for the same, less the more their properties' values differ, and at least 1.

    Values are [layers, properties] and [known, properties]. Two layers are as alike as the smaller of each property's
    values over the larger, to the property's power.
    """
    alike = np.full((len(values), len(known)), SAME, dtype=np.int64)
    for position, power in enumerate(powers):
        one, other = np.maximum(1, values[:, position, None]), np.maximum(1, known[None, :, position])
        for _ in range(power):
            alike = alike * np.minimum(one, other) // np.maximum(one, other)
    return np.maximum(1, alike)


def paces_on(alike: Ints, paces: Ints) -> Ints:
    """[layers, kernels]; the mean of paces [known, kernels], each known layer's weighted by how alike it is."""
    found: Ints = alike @ paces // alike.sum(axis=1, keepdims=True)
    return found
