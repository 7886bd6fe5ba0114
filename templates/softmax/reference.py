"""softmax of rows in float64."""

import numpy as np


def reference(_p, x):
    """x and the result are [rows, columns]."""
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
