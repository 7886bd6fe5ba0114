"""Concatenation along the channels, scaled and shifted, in float64."""

import numpy as np

from autotune.autotune_runtime.activations import BY_WORD, activated
from autotune.measurement.numpy_reference import FUNCTIONS

LEAST = -1e300  # in place of minus infinity, whose product with an activation's 0 would be no number


def reference(p, x0, weight, bias, *others):
    """The tensors are [n, channels], absent ones None; the result is [n, c], weight and bias are [c] or None."""
    y = np.concatenate([x0, *(x for x in others if x is not None)], axis=1)
    if weight is not None:
        y = y * weight + bias
    return activated(p.activation, np.maximum(y, LEAST), FUNCTIONS) if p.activation in BY_WORD else y
