"""Convert an ONNX graph with inferred sizes to equivalent calls to PyTorch's operators."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.autotune_runtime.aten import Calls
from autotune.autotune_runtime.aten_calls import Argument, Call, Ref, TensorType
from autotune.autotune_runtime.convolution import Shape, sizes
from autotune.autotune_runtime.elementwise import BINARY
from autotune.importing.network import plain
from autotune.importing.onnx_sizes import shapes

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

_CONVOLUTION = re.compile("Conv(?!er)")  # operators of any domain, such as ONNX Runtime's FusedConv, but not Convert
_ONNX = ("", "ai.onnx")  # domains of the operators that the standard defines
_DTYPES = {1: "f32", 10: "f16", 16: "bf16", 11: "float64", 2: "uint8", 3: "int8"}  # TensorProto.DataType
_NUMBERS = {"value_int": 7, "value_ints": 7, "value_float": 1, "value_floats": 1}  # of a Constant, with their data type
_CLOSE = 1e-6  # constants in files are float32
_PADDED = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")  # the values of auto_pad
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil")
_RANDOM = ("RandomNormal", "RandomUniform")  # they read no tensor, but their outputs are not constants
_SAME = (
    *("Add", "Sub", "Mul", "Div", "Pow", "MatMul", "Gemm", "Dropout"),
    *("Tanh", "Erf", "Exp", "Neg", "Relu", "Sigmoid", "HardSigmoid", "HardSwish", "Gelu"),
)
_NAMES = {each: each.lower() for each in _SAME} | {
    "BatchNormalization": "batch_norm",
    "Clip": "clamp",
    "Concat": "cat",
    "DepthToSpace": "pixel_shuffle",
    "GlobalAveragePool": "adaptive_avg_pool2d",
    "GroupNormalization": "group_norm",
    "Identity": "alias",
    "LayerNormalization": "layer_norm",
    "LeakyRelu": "leaky_relu",
    "Max": "maximum",
    "AveragePool": "avg_pool2d",
    "MaxPool": "max_pool2d",
    "Min": "minimum",
    "Pad": "pad",
    "ReduceMean": "mean",
    "Resize": "upsample_nearest2d",
    "RMSNormalization": "rms_norm",
    "Sum": "add",
    "Swish": "silu",
    "Transpose": "permute",
    "Upsample": "upsample_nearest2d",
}
"""ONNX's names for operators -> PyTorch's names."""
_ARGUMENTS = {
    "convolution": ("input", "weight", "bias"),
    "gemm": ("mat1", "mat2", "bias"),
    "linear": ("input", "weight"),
    "pow": ("self", "exponent"),
    "clamp": ("self", "min", "max"),
    **dict.fromkeys(("batch_norm", "group_norm", "layer_norm", "rms_norm"), ("input", "weight", "bias")),
}
"""PyTorch's names for an operator's inputs. All other operators call their inputs self and other."""
_ALONE = ("pad", "mean", "upsample_nearest2d")
"""Operators whose other inputs are numbers, such as sizes."""
_REPEATS = (
    ("asymmetric", "floor"),
    ("asymmetric", "round_prefer_floor"),
    *((pixels, rounding) for pixels in ("half_pixel", "pytorch_half_pixel") for rounding in _ROUNDINGS),
)
"""How a Resize by 2 repeats pixels: its coordinate_transformation_mode and nearest_mode."""


@dataclass(frozen=True, slots=True)
class _Node:
    """One of the file's operators, with attributes by name and those inputs that aren't constants."""

    proto: NodeProto
    attributes: Mapping[str, object]
    reads: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    """the numbers in each input, or nothing if they aren't known"""
    x: Shape
    """the shape of the first input"""

    @property
    def kind(self) -> str:
        return str(self.proto.op_type)

    def number(self, name: str, default: float) -> float:
        value = self.attributes.get(name, default)
        return float(value) if isinstance(value, (int, float)) else default

    def whole(self, name: str, default: Sequence[int]) -> Sequence[int]:
        value = self.attributes.get(name)
        return [int(each) for each in value] if isinstance(value, list) and value else default

    def whole_input(self, name: str, at: int, default: Sequence[int]) -> Sequence[int]:
        """Return integers that are an input in newer opsets, and an attribute in older ones."""
        given = self.values[at] if len(self.values) > at else ()
        return [int(each) for each in given] or self.whole(name, default)

    def word(self, name: str, default: str) -> str:
        value = self.attributes.get(name)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else default


@dataclass(frozen=True, slots=True)
class _Groups:
    """The beginning of a group norm that is written out as several operators."""

    x: str
    groups: int
    eps: float
    label: str


class GraphReader:
    """Reads an ONNX graph. `constants` are the names of constants, including those whose values weren't loaded."""

    def __init__(self, graph: GraphProto, constants: frozenset[str], dtype: str | None, layout: str) -> None:
        self._graph, self._constants, self._dtype, self._layout = graph, set(constants), dtype, layout
        self._numbers: dict[str, float] = {}
        self._values: dict[str, tuple[float, ...]] = {}
        self._group_norms: dict[str, _Groups] = {}
        """results of InstanceNormalizations that are part of a group norm"""
        self._skipped: set[str] = set()
        """results of operators that are part of an earlier call"""
        self._writers = {name: node for node in graph.node for name in node.output}
        self._readers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._shapes = dict(shapes(graph))
        self._types = {
            each.name: each.type.tensor_type.elem_type for each in (*graph.input, *graph.value_info, *graph.output)
        }
        self._outputs = frozenset(each.name for each in graph.output)
        for tensor in graph.initializer:
            self._store(tensor.name, tensor)

    def calls(self) -> Calls:
        """Return the graph's calls, without operators that compute constants."""
        images = tuple(each.name for each in self._graph.input if each.name not in self._constants)
        found = tuple(each for node in self._graph.node for each in self._calls(node))
        dense = frozenset(("nchw",))
        tensors = {name: TensorType(shape, self._dtype_of(name), dense) for name, shape in self._shapes.items()}
        return Calls(found, tensors, images, dict.fromkeys(self._constants, ""), self._outputs, self._layout)

    def _store(self, name: str, tensor: TensorProto) -> None:
        """Record a constant's type and sizes, and its value if it is a single number or a short list of numbers."""
        from onnx import numpy_helper

        value = numpy_helper.to_array(tensor)
        self._constants.add(name)
        self._shapes[name], self._types[name] = value.shape, tensor.data_type
        if value.size == 1 and value.dtype.kind in "fiu":
            self._numbers[name] = float(value.reshape(()))
        if value.ndim <= 1 and value.dtype.kind in "fiu":
            self._values[name] = tuple(value.reshape(-1).tolist())

    def _store_constant(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Record the output of a Constant, which is a tensor, a number or a list of numbers, if its value is known."""
        from onnx import helper

        for kind, dtype in _NUMBERS.items():
            if kind in attributes:
                numbers = attributes[kind]
                dims, values = ((len(numbers),), numbers) if isinstance(numbers, list) else ((), [numbers])
                self._store(name, helper.make_tensor(name, dtype, dims, values))
        if "value" in attributes:
            self._store(name, attributes["value"])

    def _dtype_of(self, name: str) -> str:
        return self._dtype or _DTYPES.get(self._types.get(name, 0), "a type that studies do not have")

    def _calls(self, proto: NodeProto) -> Iterator[Call]:
        from onnx import helper

        attributes = {each.name: helper.get_attribute_value(each) for each in proto.attribute}
        parts = _graphs(attributes.values())
        read = (*proto.input, *dict.fromkeys(name for graph in parts for name in _captured(graph)))
        reads = tuple(name for name in dict.fromkeys(read) if name and name not in self._constants)
        values = tuple(self._values.get(each, ()) for each in proto.input)
        node = _Node(proto, attributes, reads, values, self._shapes.get("".join(proto.input[:1]), ()))
        if inner := tuple(_nested(parts)):
            why_not = f"in a subgraph of {node.kind}, which may run any number of times"
            yield Call("", {}, (), inner=inner, why_not=why_not)
        writes = tuple(filter(None, proto.output))
        if not self._skipped.isdisjoint(writes):
            return
        if not reads and node.kind not in _RANDOM:
            self._constants.update(writes)
            if node.kind == "Constant":
                self._store_constant(writes[0], attributes)
            return
        if node.kind == "InstanceNormalization":
            self._begin_group_norm(node)
        if node.kind == "Reshape" and (norm := self._group_norm(node)) is not None:
            yield norm
            return
        if _CONVOLUTION.search(node.kind):
            name, (given, why_not) = "convolution", self._convolution(node)
        elif node.kind == "MatMul" and {*proto.input[1:]}.isdisjoint(reads):
            name, given, why_not = "linear", {"transB": 0}, ""
        else:
            (name, given), why_not = _operator(node), ""
        numbers = self._numbers if name in (*BINARY, "clamp") else {}
        read = read[:1] if name in _ALONE else read
        names = itertools.chain(_ARGUMENTS.get(name, ("self", "other")), map(str, itertools.count()))
        tensors = {key: numbers.get(each, Ref(each)) for key, each in zip(names, read, strict=False) if each}
        yield Call(name, {**given, **tensors}, writes, path=_label(node), why_not=why_not, varies=not reads)

    def _begin_group_norm(self, node: _Node) -> None:
        """Record an InstanceNormalization of images whose groups of channels a Reshape has made the channels."""
        before = self._writers.get(node.proto.input[0])
        if before is None or before.op_type != "Reshape":
            return
        x, grouped = (self._shapes.get(name, ()) for name in (before.input[0], before.output[0]))
        plain_scale = {*node.values[1]} == {1.0} and {*node.values[2]} == {0.0}
        if plain_scale and len(x) > 2 and len(grouped) == 3 and grouped[0] == x[0] and grouped[1]:
            of = _Groups(before.input[0], grouped[1], node.number("epsilon", 1e-5), _label(node))
            self._group_norms[node.proto.output[0]] = of

    def _group_norm(self, node: _Node) -> Call | None:
        """Return the group norm that ends with a Reshape, and the product and sum with its weights. PyTorch exports
        group norms in this form.
        """
        of, written = self._group_norms.get(node.proto.input[0]), str(node.proto.output[0])
        if of is None or self._shapes.get(written) != self._shapes.get(of.x):
            return None
        weights: dict[str, Argument] = {}
        for name, kind in (("weight", "Mul"), ("bias", "Add")):
            readers = self._readers.get(written, ())
            if len(readers) != 1 or readers[0].op_type != kind or written in self._outputs:
                break
            constant = next((each for each in readers[0].input if each in self._constants), "")
            if self._shapes.get(constant) != (self._shapes[of.x][1], *(1,) * (len(self._shapes[of.x]) - 2)):
                break
            weights[name], written = Ref(constant), str(readers[0].output[0])
            self._skipped.add(written)
        given: dict[str, Argument] = {"input": Ref(of.x), "num_groups": of.groups, "eps": of.eps, **weights}
        return Call("group_norm", given, (written,), path=of.label)

    def _convolution(self, node: _Node) -> tuple[dict[str, Argument], str]:
        """Return a convolution's non-tensor arguments, and the reason why no kernel supports it ("" if one does)."""
        proto = node.proto
        if proto.domain not in _ONNX:
            return {}, f"a {node.kind} of {proto.domain}, which is another operation"
        x, w = (self._shapes.get(name, ()) for name in proto.input[:2])
        ones = (1,) * max(len(w) - 2, 0)
        stride, dilation = node.whole("strides", ones), node.whole("dilations", ones)
        before, after = _padding(node, x, w, stride, dilation)
        transposed = node.kind == "ConvTranspose"
        given: dict[str, Argument] = {"stride": stride, "dilation": dilation, "padding": before, "padding_end": after}
        given |= {"groups": node.number("group", 1), "transposed": transposed}
        why_not = ""
        if node.kind not in ("Conv", "ConvTranspose"):
            why_not = f"a {node.kind}, which is another operation"
        elif len(w) < 3 or any(len(each) != len(ones) for each in (stride, dilation, before, after)):
            why_not = "the sizes of its filters are not known, or do not fit its other sizes"
        elif transposed and (node.word("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in node.attributes):
            why_not = "a transposed convolution whose padding follows from the size of its output"
        else:
            why_not = _contradiction(node, w)
        return given, why_not


def _operator(node: _Node) -> tuple[str, dict[str, Argument]]:
    """Return PyTorch's name for an operator other than a convolution, and its arguments other than tensors.

    If PyTorch has no equivalent operator, the name is empty.
    """
    name, given = _NAMES.get(node.kind, ""), dict[str, Argument]()
    match name:
        case "batch_norm":
            given = {"training": node.number("training_mode", 0)}
        case "cat":
            given = {"dim": node.number("axis", 0)}
        case "pixel_shuffle" if node.word("mode", "DCR") == "CRD":
            given = {"upscale_factor": node.number("blocksize", 1)}
        case "pixel_shuffle":
            name = ""
        case "pad":
            given = {"pad": _pad(node), "mode": node.word("mode", "constant"), "value": node.number("value", 0)}
            if len(node.values) > 2 and node.proto.input[2]:
                given["value"] = math.nan if not node.values[2] else node.values[2][0]
        case "mean":
            given = {"dim": node.whole_input("axes", 1, ()), "keepdim": node.number("keepdims", 1)}
        case "upsample_nearest2d":
            scales = [each for value in node.values[1:] for each in value if value] or node.attributes.get("scales")
            modes = node.word("coordinate_transformation_mode", "half_pixel"), node.word("nearest_mode", _ROUNDINGS[0])
            repeats = node.word("mode", "nearest") == "nearest" and (modes in _REPEATS or node.kind == "Upsample")
            if scales == [1, 1, 2, 2] and repeats:
                given = {"scales_h": 2.0, "scales_w": 2.0}
        case "group_norm":
            given = {"num_groups": node.number("num_groups", 1), "eps": node.number("epsilon", 1e-5)}
        case "layer_norm" | "rms_norm":
            given = {"normalized_shape": node.x[int(node.number("axis", -1)) :], "eps": node.number("epsilon", 1e-5)}
        case "clamp":  # its limits are inputs since opset 11
            given = {each: node.number(each, end) for each, end in (("min", -math.inf), ("max", math.inf))}
        case "permute":
            given = {"dims": node.whole("perm", ())}
        case "gelu" if node.word("approximate", "none") == "tanh":
            given = {"approximate": "tanh"}
        case "gemm":
            given = {"alpha": node.number("alpha", 1), "beta": node.number("beta", 1)}
            given |= {each: node.number(each, 0) for each in ("transA", "transB")}
        case "leaky_relu":
            given = {"negative_slope": node.number("alpha", 0.01)}
        case "hardsigmoid" if abs(node.number("alpha", 0.2) - 1 / 6) > _CLOSE or node.number("beta", 0.5) != 0.5:
            name = ""
        case "max_pool2d" | "avg_pool2d":
            given = {"kernel_size": node.whole("kernel_shape", ()), "stride": node.whole("strides", (1,))}
            given |= {"dilation": node.whole("dilations", (1,))}
            before, after = _padding(node, (), (None,) * (2 + len(node.whole("kernel_shape", ()))), (), ())
            given |= {"padding": before, "count_include_pad": node.number("count_include_pad", 0)}
            if before != after or node.word("auto_pad", "NOTSET") != "NOTSET":
                name = ""
        case "silu" if node.number("alpha", 1) != 1:
            name = ""
        case _ if name in BINARY and len(node.proto.input) != 2:
            name = ""
    return name, given


def _pad(node: _Node) -> Sequence[int]:
    """Return a Pad's numbers of elements in PyTorch's order: before and after, for each axis from the last."""
    pads = node.whole_input("pads", 1, ()) if node.x else ()
    axes: Sequence[int] = range(len(pads) // 2)
    if node.proto.input[3:] and node.proto.input[3]:
        axes = [int(axis) % len(node.x) for axis in node.values[3]]
    if len(pads) != 2 * len(axes):  # they are computed in the network
        return ()
    ends = dict(zip(axes, zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True), strict=True))
    return [each for axis in reversed(range(len(node.x))) for each in ends.get(axis, (0, 0))] if pads else ()


def _label(node: _Node) -> str:
    """Return a node's name or, if that is just a number, the filters' name without `.weight`."""
    proto = node.proto
    name = str(proto.name).strip("/").removesuffix(f"/{node.kind}").replace("/", ".")
    numbered = re.fullmatch(rf"(p2o\.|n|node_?)?({re.escape(node.kind)})?[._@]?\d*", name, re.IGNORECASE)
    if not numbered:
        return name
    filters = next((each for each in proto.input[1:] if each not in node.reads), "")
    return re.sub(r"[._](weights?|w(_?\d+)?)$", "", filters) or name or str(proto.output[0])


def _graphs(attributes: Iterable[object]) -> list[GraphProto]:
    """Return the graphs among an operator's attributes, such as the branches of an If."""
    given = (each for value in attributes for each in (value if isinstance(value, list) else [value]))
    return [each for each in given if hasattr(each, "node")]


def _inner(proto: NodeProto) -> list[GraphProto]:
    return [graph for each in proto.attribute for graph in (*([each.g] if each.HasField("g") else ()), *each.graphs)]


def _nested(graphs: Iterable[GraphProto]) -> Iterator[str]:
    """Yield the names of convolutions in graphs and in their operators' subgraphs."""
    for graph in graphs:
        for proto in graph.node:
            if _CONVOLUTION.search(proto.op_type):
                yield proto.name or proto.output[0]
            yield from _nested(_inner(proto))


def _captured(graph: GraphProto) -> Iterator[str]:
    """Yield the tensors that a subgraph reads from the surrounding graph."""
    made = {each.name for each in (*graph.input, *graph.initializer)}
    made |= {each.values.name for each in graph.sparse_initializer}
    for proto in graph.node:
        for name in (*proto.input, *(each for inner in _inner(proto) for each in _captured(inner))):
            if name not in made:
                yield name
        made.update(proto.output)
    yield from (each.name for each in graph.output if each.name not in made)


def _contradiction(node: _Node, w: Shape) -> str:
    """Return a message if a convolution's attributes contradict its filters or the standard, or ""."""
    how, taps = node.word("auto_pad", "NOTSET"), node.whole("kernel_shape", ())
    if how not in _PADDED:
        return f"its auto_pad {plain(how)} is not one of {', '.join(_PADDED)}"
    if taps and tuple(taps) != w[2:]:
        return f"its kernel_shape is {plain(sizes(tuple(taps)))}, and its filters are {sizes(w[2:])}"
    return ""


def _padding(
    node: _Node, x: Shape, w: Shape, stride: Sequence[int], dilation: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the padding at the beginning and end of each of the images' axes."""
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
