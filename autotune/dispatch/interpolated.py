"""study -> dispatch: layers that nobody asked for, on which kernels are measured too, so that a rule knows more.

They have the shapes of a study's layers, at batches between those that the study has. Kernels take the batch at run
time, so nothing is compiled for them. Nothing is tuned on them either, and they suggest no kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import geometric_mean

from autotune.problem import Layer, Problem


def interpolated_layers(layers: Sequence[Layer], but: Sequence[Layer] = ()) -> tuple[Layer, ...]:
    """Each shape of some layers at the geometric middle of every two neighbouring batches that these layers have.

    Those layers themselves are left out, and others that are named. One counts as often as those of its shape in the
    mean.
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
