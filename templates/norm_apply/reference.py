"""Normalisation by given statistics of each image's channels, in float64."""

import numpy as np

from autotune.autotune_runtime.activations import BY_WORD, activated
from autotune.measurement.numpy_reference import FUNCTIONS


def reference(p, x, weight, bias, mean, variance):
    """x and the result are [n, pixels, c]; weight and bias are [c] or None; mean and variance are [n, c]."""
    means, variances = (each.reshape(p.n, p.groups, -1) for each in (mean, variance))
    mean = means.mean(-1, keepdims=True) if p.kind == "standard" else np.zeros((p.n, p.groups, 1))
    variance = (variances + (means - mean) ** 2).mean(-1, keepdims=True)
    y = (x.reshape(p.n, p.pixels, p.groups, -1) - mean[:, None]) / np.sqrt(variance[:, None] + p.eps_e12 * 1e-12)
    y = y.reshape(x.shape)
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return activated(p.activation, y, FUNCTIONS) if p.activation in BY_WORD else y
