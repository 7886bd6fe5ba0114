"""Find what the kernels of data gradients can compute as well. import-model and the backend share this matcher."""

from __future__ import annotations

from collections.abc import Iterator

from .fusion import Graph, Operator, activation_behind

MASKED = "add_masked"
"""The epilogue of a data gradient that adds the gradient of the input's other readers and masks the sum by a ReLU."""
DIFFERENTIATED = ("relu", "silu", "gelu", "gelu_tanh")
"""Activations by whose derivatives kernels of data gradients may multiply."""


def data_epilogues(graph: Graph) -> dict[int, str]:
    """Return the epilogues of data gradients in training, by the positions of convolutions and linear layers.

    Layers without an epilogue are left out. Between two layers, the gradient of the second one is multiplied by the
    activation's derivative. Other operators, such as batch norms, read an activation's gradient anyway, so its
    derivative costs them nothing. If a ReLU of a batch norm has several readers, the gradient of the first one, a
    convolution, is added to the others and masked.
    """
    found: dict[int, str] = {}
    for word, of, x in _activations(graph):
        first, *others = graph.readers.get(x, (-1,))
        if first < 0 or not _is_layer(graph.operators[first]) or graph.operators[first].reads[0] != x:
            continue
        alone = not others and x not in graph.outputs
        if alone and _is_layer(graph.operators[of]):
            found[first] = f"derivative_{word}"
        elif not alone and word == "relu" and graph.operators[first].product is None and _normalizes(graph, of):
            found[first] = MASKED
    return found


def _activations(graph: Graph) -> Iterator[tuple[str, int, str]]:
    """Yield each activation's word, the position of the operator that computes its input, and its output."""
    for at, operator in enumerate(graph.operators):
        if _is_layer(operator) or operator.kind in ("affine", "addition"):
            word, parts = activation_behind(graph, operator.writes[0])
            if word in DIFFERENTIATED:
                yield word, at, graph.operators[parts[-1]].writes[0]


def _is_layer(operator: Operator) -> bool:
    """Return whether an operator is a convolution or a linear layer."""
    return operator.kind == "convolution" or (operator.product is not None and bool(operator.constants))


def _normalizes(graph: Graph, at: int) -> bool:
    """Return whether an operator is a batch norm, or adds a batch norm's output that nothing else reads."""
    operator = graph.operators[at]
    if operator.kind != "addition":
        return operator.kind == "affine"
    before = (graph.writers.get(name, at) for name in operator.reads if graph.only_reader(name) == at)
    return any(graph.operators[of].kind == "affine" for of in before)
