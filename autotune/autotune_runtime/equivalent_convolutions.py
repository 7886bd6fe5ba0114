"""Convolutions that compute the same as another convolution together with padding or operators that move pixels.

Each function returns the arguments of the equivalent convolution, or None if there is none.
"""

from __future__ import annotations

from dataclasses import replace

from .convolution import Geometry


def padded(of: Geometry, amounts: tuple[int, ...]) -> Geometry | None:
    """Add the padding in front of a convolution to its own. There is no equivalent if it affects N or C, or crops."""
    before, after = amounts[0::2], amounts[1::2]
    if any((*before[:2], *after[:2])) or min(amounts) < 0:
        return None
    x = tuple((size or 0) - one - other for size, one, other in zip(of.x, before, after, strict=True))
    first, last = (
        tuple(pad + more for pad, more in zip(pads, those[2:], strict=True))
        for pads, those in ((of.before, before), (of.after, after))
    )
    return replace(of, x=x, before=first, after=last)


def two_frames(of: Geometry, amounts: tuple[int, ...]) -> Geometry | None:
    """Replace a concatenation of two images with equally many channels by a video.

    The first image is the frame in front of the second.
    """
    plain = len(of.w) == 4 and of.groups == 1 and not of.transposed and of.layout == "nhwc"
    if not plain or len(amounts) != 3 or amounts[0] != 1 or amounts[1] != amounts[2]:
        return None
    n, c, *image = of.x
    half = (c or 0) // 2
    return replace(
        of,
        x=(n, half, 1, *image),
        w=(of.w[0], half, 2, *of.w[2:]),
        y=(*of.y[:2], 1, *of.y[2:]),
        stride=(1, *of.stride),
        before=(0, *of.before),
        after=(0, *of.after),
        dilation=(1, *of.dilation),
    )


def upsampled(of: Geometry) -> Geometry | None:
    """Replace nearest upsampling by 2 and a 3x3 convolution by a transposed convolution.

    It has 4x4 filters and a stride of 2. The three taps of a filter row read two different pixels, so each output needs
    4 products per channel instead of 9.
    """
    ones = (1, 1)
    if of.w[2:] != (3, 3) or of.transposed or not of.before == of.after == of.stride == of.dilation == ones:
        return None
    n, c, h, w = (size or 0 for size in of.x)
    return replace(of, x=(n, c, h // 2, w // 2), w=(c, of.k // of.groups, 4, 4), stride=(2, 2), transposed=True)


def shuffled(of: Geometry, factor: int) -> Geometry | None:
    """Replace a 2-D convolution and a pixel shuffle after it by a transposed convolution.

    Its filters consist of the convolution's flipped filters for each output phase, so it computes as many products.
    """
    if len(of.w) != 4 or of.transposed or of.groups > 1 or of.before != of.after or of.k % factor**2:
        return None
    c, *taps = (size or 0 for size in of.w[1:])
    before = tuple((each - 1 - pad) * factor for each, pad in zip(taps, of.before, strict=True))
    if min(before) < 0 or not of.stride == of.dilation == (1, 1):
        return None
    n, _, *image = (size or 0 for size in of.y)
    k = of.k // factor**2
    return replace(
        of,
        w=(c, k, *(each * factor for each in taps)),
        y=(n, k, *(size * factor for size in image)),
        stride=(factor, factor),
        before=before,
        after=before,
        transposed=True,
    )
