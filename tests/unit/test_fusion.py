"""Which operators in front of a layer its kernel computes, in graphs written out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.autotune_runtime.convolution import Geometry, Problem
from autotune.autotune_runtime.fusion import Fused, Graph, Operator, convolution, fuse

IMAGES = Geometry(
    *((2, 6, 8, 9), (4, 6, 3, 1), (2, 4, 4, 10), (2, 1), (0, 1), (0, 1), (1, 1), 1), dtype="f16", layout="nhwc"
)
FRAMES = Geometry(
    *((2, 3, 1, 8, 9), (4, 3, 2, 3, 1), (2, 4, 1, 4, 10), (1, 2, 1), (0, 0, 1), (0, 0, 1), (1, 1, 1), 1),
    dtype="f16",
    layout="nhwc",
)


def fused(
    amounts: tuple[int, ...] = (1, 3, 3), geometry: Geometry = IMAGES, dtype: str = "f16", readers: int = 1
) -> Fused:
    """A convolution of concatenated and cast tensors, which other operators may read as well."""
    tensors = ("skipped", "raised", "third")[: len(amounts) - 1]
    joining = Operator(tensors, ("joined",), "joining", amounts=amounts)
    cast = Operator(("joined",), ("x",), "cast")
    conv = Operator(("x",), ("y",), "convolution", layer=convolution("conv", geometry, bias=True))
    others = tuple(Operator(("joined",), (f"other{at}",)) for at in range(1, readers))
    dtypes = dict.fromkeys(tensors, dtype)
    (found,) = fuse(Graph((joining, cast, conv, *others), frozenset(("y",)), layout=geometry.layout, dtypes=dtypes))
    return found


def test_two_tensors_of_equal_size_are_two_frames() -> None:
    front = fused().front
    assert front is not None
    assert front.reads == ("raised", "skipped"), "the images, then the frame in front of them"
    assert front.problem == Problem(FRAMES, "bias", cache_d=1)


@pytest.mark.parametrize(
    "other",
    [
        fused(amounts=(1, 2, 4)),
        fused(amounts=(1, 2, 2, 2)),
        fused(amounts=(2, 4, 4)),
        fused(geometry=replace(IMAGES, w=(4, 3, 3, 1), groups=2)),
        fused(geometry=replace(IMAGES, layout="nchw")),
        fused(dtype="f32"),
        fused(readers=2),
    ],
    ids=["different sizes", "three tensors", "along the rows", "groups", "nchw", "another dtype", "read elsewhere"],
)
def test_a_kernel_does_not_compute_other_concatenations(other: Fused) -> None:
    assert other.front is None
