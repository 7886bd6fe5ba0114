"""A convolution in float64, with the mean and variance of each image and channel of its stored outputs."""

import numpy as np

from autotune.autotune_runtime.activations import BY_WORD, activated
from autotune.measurement.numpy_reference import FUNCTIONS
from autotune.measurement.storage import stored


def reference(p, x, w, bias, z):
    """The arrays are those of operation.toml, or None; returns y, and the mean and variance [n, k]."""
    if p.layout == "nchw":
        x, w, z = (None if each is None else np.moveaxis(each, 1, -1) for each in (x, w, z))
    padded = np.pad(x, ((0, 0), (p.pad_h, p.pad_h), (p.pad_w, p.pad_w), (0, 0)))
    y = np.zeros((p.n, p.p, p.q, p.k))
    channels = [
        (slice(g * p.c // p.groups, (g + 1) * p.c // p.groups), slice(g * p.k // p.groups, (g + 1) * p.k // p.groups))
        for g in range(p.groups)
    ]
    for r in range(p.r):
        rows = slice(r * p.dilation_h, r * p.dilation_h + (p.p - 1) * p.stride_h + 1, p.stride_h)
        for s in range(p.s):
            columns = slice(s * p.dilation_w, s * p.dilation_w + (p.q - 1) * p.stride_w + 1, p.stride_w)
            for c, k in channels:
                y[..., k] += padded[:, rows, columns, c] @ w[k, r, s].T
    for term in (bias, z):
        if term is not None:
            y += term
    if p.activation in BY_WORD:
        y = activated(p.activation, y, FUNCTIONS)
    rounded = stored(y, p.dtype)
    return np.moveaxis(y, -1, 1) if p.layout == "nchw" else y, rounded.mean((1, 2)), rounded.var((1, 2))
