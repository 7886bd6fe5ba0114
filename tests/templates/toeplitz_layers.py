"""Layers for families that multiply by Toeplitz matrices of a depthwise filter's rows."""

from __future__ import annotations

from dataclasses import replace

from autotune.problem import Conv2dProblem

ODD = Conv2dProblem(
    *(3, 24, 15, 19, 24, 7, 7), pad_h=3, pad_w=3, groups=24, dtype="f16", layout="nhwc", epilogue="bias_silu"
)
"""An odd number of columns; a tile's last images, rows and channels do not exist."""
IMAGES = replace(ODD, n=5, c=16, k=16, groups=16, h=7, w=7, r=5, s=5, pad_h=2, pad_w=2, dtype="bf16", epilogue="none")
"""Images of which the last is alone in a tile of four."""
NOT_SUPPORTED = (
    replace(ODD, layout="nchw"),
    replace(ODD, dtype="f32"),
    replace(ODD, groups=12),
    replace(ODD, k=48),
    replace(ODD, c=20, k=20, groups=20),
    replace(ODD, stride_h=2),
    replace(ODD, stride_w=2),
    replace(ODD, dilation_h=2),
    replace(ODD, dilation_w=2),
)
"""Each differs in one property: the last two have dilated rows of taps, and a filter span of 13 columns."""
