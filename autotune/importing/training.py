"""Find the layers of a network in training: its convolutions, and the gradients of their inputs and filters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autotune.autotune_runtime.activations import BY_WORD
from autotune.autotune_runtime.convolution import FilterGradient, data_gradient, filter_gradient
from autotune.autotune_runtime.convolution import Problem as Convolution
from autotune.autotune_runtime.fusion import Graph, Operator
from autotune.autotune_runtime.gradient_fusion import MASKED, data_epilogues
from autotune.autotune_runtime.network_layers import KINDS
from autotune.errors import StudyError
from autotune.importing.fused_layers import Findings, Fused, Unsupported, computed, unsupported_product
from autotune.importing.network import plain


def training_findings(network: Graph) -> Findings:
    """Find a network's convolutions and their gradients.

    Nothing is fused into the convolutions, because a batch norm needs their output for its statistics. The kernels of
    data gradients compute what `data_epilogues` finds, also for linear layers. A layer whose input has the size of the
    network's input has no data gradient.
    """
    epilogues = data_epilogues(network)
    fused: list[Fused] = []
    left_out: list[Unsupported] = []
    for at, operator in enumerate(network.operators):
        layer, found = operator.layer, 0
        for part, problem in _parts(network, operator, epilogues.get(at, "none")):
            label = plain(layer.label) if layer is not None else ""
            try:
                fused.append(Fused(label, computed(problem), tuple(_words(problem)), ending=part))
                found += 1
            except StudyError as error:
                left_out.append(Unsupported(label + part, plain(str(error), 1000), problem.geometry.flops))
        if operator.product is not None:
            product = unsupported_product(operator.product)
            left_out.append(replace(product, flops=(3 - found) * operator.product.flops))
        elif layer is not None and not isinstance(layer.problem, Convolution) and layer.kind == KINDS["conv2d"]:
            flops = None if layer.flops is None else 3 * layer.flops
            left_out.append(Unsupported(plain(layer.label), plain(layer.why_not, 1000), flops))
        elif layer is not None and isinstance(layer.problem, Convolution) and not layer.problem.geometry.has_gradients:
            why = "no kernel computes its gradients, because its output padding is not below its stride"
            left_out.append(Unsupported(plain(layer.label), why, None if layer.flops is None else 2 * layer.flops))
    return Findings("training", network.images, tuple(fused), tuple(left_out))


def _parts(network: Graph, operator: Operator, epilogue: str) -> Iterator[tuple[str, Convolution | FilterGradient]]:
    """Yield the problems of a convolution's or linear layer's parts, with the endings of their names."""
    if operator.layer is None or not isinstance(operator.layer.problem, Convolution):
        return
    of = operator.layer.problem.geometry
    if operator.product is not None:
        if epilogue != "none":
            yield "-data", data_gradient(of, epilogue)
        return
    yield "", Convolution(of)
    if of.has_gradients:
        if of.x not in network.inputs:
            yield "-data", data_gradient(of, "none" if of.transposed else epilogue)
        yield "-filter", filter_gradient(of)


def _words(problem: Convolution | FilterGradient) -> Iterator[str]:
    """Yield what the kernel of a data gradient computes as well."""
    if problem.epilogue == MASKED:
        yield "masked sum"
    elif isinstance(problem, Convolution) and problem.activation:
        yield f"derivative of {BY_WORD[problem.activation].name}"
