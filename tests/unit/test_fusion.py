"""Which operators in front of a layer its kernel computes, in graphs written out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.autotune_runtime.convolution import Geometry, Problem
from autotune.autotune_runtime.fusion import Fused, Graph, Operator, convolution, fuse
from autotune.autotune_runtime.plain_problems import BatchNormProblem, images_layer

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


def normed(readers: int = 1, dtype: str = "f16", before: str = "other") -> list[tuple[str, str]]:
    """The layers around a batch norm, and the prologues of their kernels.

    An operator or convolution `before` computes the batch norm's input x. A convolution and perhaps other operators
    read relu(norm(x)).
    """
    layer = convolution("conv", IMAGES, bias=True)
    problem = BatchNormProblem(x=(2, 6, 8, 9), dtype=dtype, channels=(6,))
    operators = (
        Operator(("image",), ("x",), before, layer=layer if before == "convolution" else None),
        Operator(("x",), ("normed",), "affine", amounts=(1,), layer=images_layer("norm", problem, 0)),
        Operator(("normed",), ("y",), function=lambda x: max(x, 0.0)),
        Operator(("y",), ("z",), "convolution", layer=layer),
        *(Operator(("y",), (f"other{at}",)) for at in range(1, readers)),
    )
    found = fuse(Graph(operators, frozenset(("z",)), layout="nhwc", dtypes={"x": dtype}))
    return [(each.layer.kind, getattr(each.problems[0], "prologue", each.activation)) for each in found]


def test_a_batch_norm_and_its_activation_are_in_the_kernel_of_the_convolution_after_them() -> None:
    assert normed() == [("batch norm", "relu"), ("convolution", "scale_shift_relu")]
    assert normed(before="convolution") == [("convolution", "none")] * 2, "the first one's filters contain it"
    for other in (normed(readers=2), normed(dtype="f32")):
        assert other == [("batch norm", "relu"), ("convolution", "none")]
