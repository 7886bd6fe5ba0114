"""Find the layers of a network in training: its convolutions, and the gradients of their inputs and filters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autotune.autotune_runtime.convolution import FilterGradient, Geometry, data_gradient, filter_gradient
from autotune.autotune_runtime.convolution import Problem as Convolution
from autotune.autotune_runtime.fusion import Graph
from autotune.autotune_runtime.network_layers import KINDS
from autotune.errors import StudyError
from autotune.importing.fused_layers import Findings, Fused, Unsupported, computed, unsupported_product
from autotune.importing.network import plain


def training_findings(network: Graph) -> Findings:
    """Find a network's convolutions and their gradients.

    Nothing is fused into them, because a batch norm needs the convolution's output for its statistics. A layer whose
    input has the size of the network's input has no data gradient.
    """
    fused: list[Fused] = []
    left_out: list[Unsupported] = []
    for operator in network.operators:
        layer = operator.layer
        if operator.product is not None:
            product = unsupported_product(operator.product)
            left_out.append(replace(product, flops=3 * operator.product.flops))
        elif layer is not None and not isinstance(layer.problem, Convolution) and layer.kind == KINDS["conv2d"]:
            flops = None if layer.flops is None else 3 * layer.flops
            left_out.append(Unsupported(plain(layer.label), plain(layer.why_not, 1000), flops))
        elif layer is not None and isinstance(layer.problem, Convolution):
            for part, problem in _parts(layer.problem.geometry, network):
                try:
                    fused.append(Fused(plain(layer.label), computed(problem), ending=part))
                except StudyError as error:
                    left_out.append(Unsupported(plain(layer.label) + part, plain(str(error), 1000), layer.flops))
            if not layer.problem.geometry.has_gradients:
                why = "no kernel computes its gradients, because its output padding is not below its stride"
                left_out.append(Unsupported(plain(layer.label), why, None if layer.flops is None else 2 * layer.flops))
    return Findings("training", network.images, tuple(fused), tuple(left_out))


def _parts(of: Geometry, network: Graph) -> Iterator[tuple[str, Convolution | FilterGradient]]:
    yield "", Convolution(of)
    if of.has_gradients:
        if of.x not in network.inputs:
            yield "-data", data_gradient(of)
        yield "-filter", filter_gradient(of)
