"""The mean of windows, in which padding is zeros, in float64."""

import numpy as np


def reference(p, x):
    """x [n, c, h, w] or [n, h, w, c]; y in the same order."""
    rows, columns = (2, 3) if p.layout == "nchw" else (1, 2)
    pads = [(0, 0)] * 4
    pads[rows], pads[columns] = (p.pad_h, p.pad_h), (p.pad_w, p.pad_w)
    padded = np.pad(x, pads)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (p.r, p.s), (rows, columns))
    every = [slice(None)] * 4
    every[rows], every[columns] = slice(None, None, p.stride_h), slice(None, None, p.stride_w)
    return windows[tuple(every)].mean((-2, -1))
