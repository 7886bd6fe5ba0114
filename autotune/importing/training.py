"""Convert a network's layers to those of training: each convolution without an epilogue, and its two gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autotune.autotune_runtime.fusion import Graph
from autotune.autotune_runtime.layer_names import unused_name
from autotune.importing.study_text import NamedLayer
from autotune.operation.registry import operation
from autotune.problem import Problem, make_problem
from autotune.trial import Value

DATA, FILTER = "-data", "-filter"
"""Endings of the layer names of data gradients and filter gradients."""


def training_layers(layers: Sequence[NamedLayer], networks: Sequence[Graph]) -> tuple[NamedLayer, ...]:
    """Return the forward layers, and the gradients of all convolutions except transposed ones.

    The forward layers have no activation and no residual, because a batch norm in between needs the convolution's
    output for its statistics. A layer whose input has the size of the network's input has no data gradient. Raises
    StudyError if a layer has no gradient.
    """
    inputs = {shape for network in networks for shape in network.inputs}
    forward: dict[Problem, NamedLayer] = {}
    for layer in layers:
        plain = make_problem(layer.problem.operation, {**layer.problem.values, "epilogue": "none"})
        same = forward.get(plain)
        labels, share = (
            (*same.labels, *layer.labels) if same else layer.labels,
            layer.share + (same.share if same else 0),
        )
        forward[plain] = NamedLayer(same.name if same else layer.name, plain, labels, share)
    taken = {layer.name for layer in forward.values()}
    return tuple(each for layer in forward.values() for each in _with_gradients(layer, inputs, taken))


def _with_gradients(layer: NamedLayer, inputs: set[tuple[int | None, ...]], taken: set[str]) -> Iterator[NamedLayer]:
    yield layer
    names = layer.problem.names()
    if names["transposed"]:
        return
    if not {tuple(names[size] for size in f"nc{axes}") for axes in ("w", "hw", "dhw")} & inputs:
        yield NamedLayer(unused_name(layer.name, taken, DATA), data_gradient(names), layer.labels, layer.share)
    yield NamedLayer(unused_name(layer.name, taken, FILTER), filter_gradient(names), layer.labels, layer.share)


def data_gradient(names: Mapping[str, Value]) -> Problem:
    """Return a convolution's data gradient, which is a transposed convolution. `names` are those of conv or conv2d."""
    sizes = {**names, "c": names["k"], "k": names["c"]}
    for axis, output, taps in zip("dhw", "opq", "trs", strict=True):
        extent, outputs, filter_size, stride, pad, dilation = (
            int(names[name]) for name in (axis, output, taps, f"stride_{axis}", f"pad_{axis}", f"dilation_{axis}")
        )
        least = (outputs - 1) * stride - 2 * pad + (filter_size - 1) * dilation + 1
        sizes |= {axis: outputs, f"padding_{axis}": pad, f"output_padding_{axis}": extent - least}
    return _problem("conv_transpose", {**sizes, "epilogue": "none"})


def filter_gradient(names: Mapping[str, Value]) -> Problem:
    """Return a convolution's filter gradient. `names` are those of conv or conv2d."""
    return _problem("conv_filter_gradient", names)


def _problem(name: str, names: Mapping[str, Value]) -> Problem:
    declared = operation(name)
    known = (*(size.name for size in declared.sizes), *declared.words)
    return make_problem(declared, {each: names[each] for each in known})
