"""study -> dispatch: additional layers on which kernels are measured, so that a rule has more data.

They have the shapes of a study's layers, with batch sizes between those of the study. Kernels take the batch size at
run time, so nothing is compiled for them. They are not tuned, and they contribute no config.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import geometric_mean

from autotune.problem import Layer, Problem


def interpolated_layers(layers: Sequence[Layer], but: Sequence[Layer] = ()) -> tuple[Layer, ...]:
    """Each shape at the geometric mean of every two neighbouring batch sizes.

    The study's own layers are left out, and so are the named ones. The count of an interpolated layer is the mean of
    its shape's counts.
    """
    batches = sorted({layer.problem.runtime_size for layer in layers})
    middles = [round(geometric_mean(pair)) for pair in pairwise(batches)]
    shapes: dict[Problem, list[Layer]] = {}
    for layer in layers:
        shapes.setdefault(layer.problem.with_runtime(1), []).append(layer)
    known = {layer.problem for layer in (*layers, *but)}
    found = [
        Layer(f"{same[0].name} at n = {n}", shape.with_runtime(n), round(geometric_mean(layer.count for layer in same)))
        for shape, same in shapes.items()
        for n in middles
    ]
    return tuple(layer for layer in found if layer.problem not in known)
