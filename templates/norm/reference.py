"""Normalisation by the statistics of each image's groups of channels, in float64."""

import numpy as np

from autotune.autotune_runtime.activations import BY_WORD, activated
from autotune.measurement.numpy_reference import FUNCTIONS


def reference(p, x, weight, bias):
    """x and the result are [n, pixels, c]; weight and bias are [c] or None."""
    grouped = x.reshape(p.n, p.pixels, p.groups, p.c // p.groups)
    mean = grouped.mean((1, 3), keepdims=True) if p.kind == "standard" else 0.0
    y = grouped - mean
    squares = np.einsum("npgc,npgc->ng", y, y)[:, None, :, None]
    y /= np.sqrt(squares / (p.pixels * p.c // p.groups) + p.eps_e12 * 1e-12)
    y = y.reshape(x.shape)
    if weight is not None:
        y *= weight
    if bias is not None:
        y += bias
    return activated(p.activation, y, FUNCTIONS) if p.activation in BY_WORD else y
