"""The graph of an ONNX model, its sizes inferred -> `Network`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.autotune_runtime.activations import ACTIVATIONS, BY_WORD
from autotune.autotune_runtime.aten_calls import TensorType
from autotune.autotune_runtime.convolution import Geometry, Shape, sizes
from autotune.autotune_runtime.elementwise import Operand, binary, clipped, hard_sigmoid, leaky_relu, sigmoid
from autotune.autotune_runtime.fusion import (
    Convolution,
    Function,
    Graph,
    MatrixProduct,
    Operator,
    convolution,
    matrix_product,
)
from autotune.importing.network import plain
from autotune.importing.onnx_sizes import shapes

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

_CONVOLUTION = re.compile("Conv(?!er)")  # of any domain, such as ONNX Runtime's FusedConv; but no Convert
_ONNX = ("", "ai.onnx")  # domains of the operators that the standard defines
_DTYPES = {1: "f32", 10: "f16", 16: "bf16", 11: "float64", 2: "uint8", 3: "int8"}  # TensorProto.DataType
_PADDED = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")  # what auto_pad may be
_COPIES = ("Identity", "Dropout")
_RANDOM = ("RandomNormal", "RandomUniform")  # that make a tensor of nothing, which is no constant
_BINARY: Mapping[str, Callable[[float, float], float]] = {
    "Add": operator.add,
    "Sum": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.truediv,
    "Min": min,
    "Max": max,
    "Pow": math.pow,
}


@dataclass(frozen=True, slots=True)
class _Node:
    """An operator of the file, with its attributes by name and its inputs that are not constants."""

    proto: NodeProto
    attributes: Mapping[str, object]
    reads: tuple[str, ...]

    @property
    def kind(self) -> str:
        return str(self.proto.op_type)

    def number(self, name: str, default: float) -> float:
        value = self.attributes.get(name, default)
        return float(value) if isinstance(value, (int, float)) else default

    def whole(self, name: str, default: Sequence[int]) -> Sequence[int]:
        value = self.attributes.get(name)
        return [int(each) for each in value] if isinstance(value, list) and value else default

    def word(self, name: str, default: str) -> str:
        value = self.attributes.get(name)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else default


_UNARY: Mapping[str, Callable[[_Node], Function]] = {
    "Tanh": lambda _: math.tanh,
    "Erf": lambda _: math.erf,
    "Sqrt": lambda _: math.sqrt,
    "Exp": lambda _: math.exp,
    "Neg": lambda _: operator.neg,
    "HardSigmoid": lambda node: hard_sigmoid(node.number("alpha", 0.2), node.number("beta", 0.5)),
    "LeakyRelu": lambda node: leaky_relu(node.number("alpha", 0.01)),
    "Gelu": lambda node: BY_WORD["gelu_tanh" if node.word("approximate", "none") == "tanh" else "gelu"],
    "Swish": lambda node: lambda x: x * sigmoid(node.number("alpha", 1.0) * x),
}
_ACTIVATIONS = {each.name.lower(): each for each in ACTIVATIONS if not each.options}
"""ONNX names them as PyTorch's modules, but for capitals."""


class GraphReader:
    """Reads a graph; `constants` are tensors whose values are not there."""

    def __init__(self, graph: GraphProto, constants: frozenset[str], dtype: str | None, layout: str) -> None:
        self._graph, self._constants, self._dtype, self._layout = graph, set(constants), dtype, layout
        self._numbers: dict[str, float] = {}
        self._shapes = dict(shapes(graph))
        self._types = {
            each.name: each.type.tensor_type.elem_type for each in (*graph.input, *graph.value_info, *graph.output)
        }
        for tensor in graph.initializer:
            self._store(tensor.name, tensor)

    def network(self, inputs: tuple[Shape, ...]) -> Graph:
        """The graph's operators, without those that compute constants."""
        operators = [each for node in self._graph.node for each in self._operators(node)]
        outputs = frozenset(each.name for each in self._graph.output)
        return Graph(tuple(operators), outputs, inputs, self._layout)

    def _store(self, name: str, tensor: TensorProto) -> None:
        """Note a constant's type and sizes, and the number that is all of it."""
        from onnx import numpy_helper

        value = numpy_helper.to_array(tensor)
        self._constants.add(name)
        self._shapes[name], self._types[name] = value.shape, tensor.data_type
        if value.size == 1 and value.dtype.kind in "fiu":
            self._numbers[name] = float(value.reshape(()))

    def _operators(self, proto: NodeProto) -> Iterator[Operator]:
        from onnx import helper

        attributes = {each.name: helper.get_attribute_value(each) for each in proto.attribute}
        parts = _graphs(attributes.values())
        read = dict.fromkeys((*proto.input, *(name for graph in parts for name in _captured(graph))))
        node = _Node(proto, attributes, tuple(name for name in read if name and name not in self._constants))
        for label in _nested(parts):
            why_not = f"in a part of the network that {node.kind} runs, as often as it may be"
            yield Operator((), (), convolution=Convolution(label, None, why_not, None))
        constants = tuple(name for name in read if name and name in self._constants)
        writes = tuple(proto.output)
        if not node.reads and node.kind not in _RANDOM:
            self._constants.update(writes)
            if node.kind == "Constant" and "value" in attributes:
                self._store(writes[0], attributes["value"])
        elif _CONVOLUTION.search(node.kind):
            found = self._convolution(node)
            yield Operator(node.reads, writes, "convolution", None, constants, convolution=found)
        elif (made := self._product(node)) is not None:
            yield Operator(node.reads, writes, constants=constants, product=made)
        elif node.kind in _BINARY and len(proto.input) == 2:
            one, other = map(self._operand, proto.input)
            yield binary(_BINARY[node.kind], (one, other), writes[0], self._shape(writes[0]), constants)
        else:
            yield Operator(node.reads, writes, self._kind(node), self._function(node), constants)

    def _shape(self, name: str) -> Shape:
        return self._shapes.get(name, ())

    def _operand(self, name: str) -> Operand:
        if name not in self._constants:
            return Operand(name, TensorType(self._shape(name)))
        unknown: Shape = (None,) * 5  # which is not one number for each channel
        return Operand("", TensorType(self._shapes.get(name, unknown)), self._numbers.get(name))

    def _convolution(self, node: _Node) -> Convolution:
        proto = node.proto
        if proto.domain not in _ONNX:
            why_not = f"a {node.kind} of {proto.domain}, which is another operation"
            return Convolution(_label(node), None, why_not, None)
        x, w, y = (self._shape(name) for name in (*proto.input[:2], proto.output[0]))
        ones = (1,) * max(len(w) - 2, 0)
        stride, dilation = tuple(node.whole("strides", ones)), tuple(node.whole("dilations", ones))
        before, after = map(tuple, _padding(node, x, w, stride, dilation))
        dtype = self._dtype or _DTYPES.get(self._types.get(proto.input[0], 0), "a type that studies do not have")
        groups, bias = int(node.number("group", 1)), len(proto.input) > 2 and proto.input[2] != ""
        transposed = node.kind == "ConvTranspose"
        geometry = Geometry(x, w, y, stride, before, after, dilation, groups, transposed, dtype, self._layout)
        why_not = ""
        if node.kind not in ("Conv", "ConvTranspose"):
            why_not = f"a {node.kind}, which is another operation"
        elif len(w) < 3 or any(len(each) != len(ones) for each in (stride, dilation, before, after)):
            why_not = "the sizes of its filters are not known, or do not fit its other sizes"
        elif any(name and name not in self._constants for name in proto.input[1:]):
            why_not = "its filters are computed by the network"
        elif transposed and (node.word("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in node.attributes):
            why_not = "a transposed convolution whose padding follows from the size of its output"
        else:
            why_not = _contradiction(node, w)
        return convolution(_label(node), geometry, bias=bias, why_not=why_not)

    def _product(self, node: _Node) -> MatrixProduct | None:
        """The matrix product that the node computes; None if it computes none, or its size is unknown."""
        if node.kind not in ("MatMul", "Gemm"):
            return None
        names = [*node.proto.input]
        a, b, made = (self._shape(name) for name in (*names[:2], node.proto.output[0]))
        why_not, transposes = "", "nt" if node.number("transB", 0) else "nn"
        if node.number("transA", 0):
            a, transposes = a[::-1], "tn"
            why_not = "both matrices are transposed" if node.number("transB", 0) else ""
        added = names[2] if len(names) > 2 else ""
        if node.number("alpha", 1) != 1 or node.number("beta", 1) != 1 or len(self._shape(added)) > 1:
            why_not = "adds a matrix, or scales"
        dtype = self._dtype or _DTYPES.get(self._types.get(names[0], 0), "a type that studies do not have")
        return matrix_product(_label(node), a, b, made, transposes, dtype, bias=bool(added), why_not=why_not)

    def _kind(self, node: _Node) -> str:
        if node.kind in _COPIES:
            return "copy"
        normal = node.kind == "BatchNormalization" and not node.number("training_mode", 0)
        return "affine" if normal and len(node.reads) == 1 else "other"

    def _function(self, node: _Node) -> Function | None:
        if len(node.reads) != 1:
            return None
        if node.kind in _COPIES:
            return lambda x: x
        if node.kind == "Clip":
            return self._clip(node)
        known = _ACTIVATIONS.get(node.kind.lower())
        return _UNARY[node.kind](node) if node.kind in _UNARY else known

    def _clip(self, node: _Node) -> Function | None:
        """Its limits are attributes, since opset 11 inputs; None where one is not a known number."""
        limits: list[float | None] = []
        for at, name in ((1, "min"), (2, "max")):
            given = node.proto.input[at] if len(node.proto.input) > at else ""
            value = self._numbers.get(given) if given else node.attributes.get(name)
            if given and value is None:
                return None
            limits.append(float(value) if isinstance(value, (int, float)) else None)
        return clipped(*limits)


def _label(node: _Node) -> str:
    """The node's name where it says something, else its filters' without what all filters have."""
    proto = node.proto
    name = str(proto.name).strip("/").removesuffix(f"/{node.kind}").replace("/", ".")
    numbered = re.fullmatch(rf"(p2o\.|n|node_?)?({re.escape(node.kind)})?[._@]?\d*", name, re.IGNORECASE)
    if not numbered:
        return name
    filters = next((each for each in proto.input[1:] if each not in node.reads), "")
    return re.sub(r"[._](weights?|w(_?\d+)?)$", "", filters) or name or str(proto.output[0])


def _graphs(attributes: Iterable[object]) -> list[GraphProto]:
    """The graphs that an operator has for attributes."""
    given = (each for value in attributes for each in (value if isinstance(value, list) else [value]))
    return [each for each in given if hasattr(each, "node")]


def _inner(proto: NodeProto) -> list[GraphProto]:
    return [graph for each in proto.attribute for graph in (*([each.g] if each.HasField("g") else ()), *each.graphs)]


def _nested(graphs: Iterable[GraphProto]) -> Iterator[str]:
    """Convolutions in graphs and in those of their operators."""
    for graph in graphs:
        for proto in graph.node:
            if _CONVOLUTION.search(proto.op_type):
                yield proto.name or proto.output[0]
            yield from _nested(_inner(proto))


def _captured(graph: GraphProto) -> Iterator[str]:
    """The tensors that an operator's graphs read from the graph that contains it."""
    made = {each.name for each in (*graph.input, *graph.initializer)}
    for proto in graph.node:
        for name in (*proto.input, *(each for inner in _inner(proto) for each in _captured(inner))):
            if name not in made:
                yield name
        made.update(proto.output)
    yield from (each.name for each in graph.output if each.name not in made)


def _contradiction(node: _Node, w: Shape) -> str:
    """The error of an operator with contradictory attributes; an empty text if there is none."""
    how, taps = node.word("auto_pad", "NOTSET"), node.whole("kernel_shape", ())
    if how not in _PADDED:
        return f"its auto_pad {plain(how)} is not one of {', '.join(_PADDED)}"
    if taps and tuple(taps) != w[2:]:
        return f"its kernel_shape is {plain(sizes(tuple(taps)))}, and its filters are {sizes(w[2:])}"
    return ""


def _padding(
    node: _Node, x: Shape, w: Shape, stride: Sequence[int], dilation: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    """Padding before and after the image on each axis."""
    axes = max(len(w) - 2, 0)
    how = node.word("auto_pad", "NOTSET")
    if how not in ("SAME_UPPER", "SAME_LOWER"):
        pads = node.whole("pads", (0,) * (2 * axes))
        return pads[:axes], pads[axes:]
    totals = [
        max((-(-size // step) - 1) * step + (taps - 1) * apart + 1 - size, 0)
        for size, taps, step, apart in zip(x[2:], w[2:], stride, dilation, strict=False)
        if size is not None and taps is not None and step
    ]
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (less, more) if how == "SAME_UPPER" else (more, less)
