"""The graph of an archive of `torch.export`, which calls ATen's operators -> `Network`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from autotune.errors import ModelError
from autotune.importing.network import Convolution, Geometry, Network, Operator, Shape, convolution, plain, product
from autotune.importing.pointwise import (
    Operand,
    Unary,
    binary,
    clipped,
    erf,
    gelu,
    gelu_tanh,
    hard_sigmoid,
    leaky_relu,
    of_one,
    sigmoid,
)
from autotune.importing.torch_calls import Call, Graph, entries
from autotune.importing.torch_sizes import evaluated
from autotune.interchange.recorded_space import Json

_CONVOLUTION = re.compile(r"conv_transpose[123]d|conv[123]d|_?convolution|cudnn_convolution\w*")
_DTYPES = {7: "f32", 6: "f16", 13: "bf16", 8: "float64", 1: "uint8", 2: "int8"}  # ScalarType of the archive's schema
_COPIES = ("clone", "contiguous", "detach", "alias", "lift_fresh_copy")
_DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
_NORMS = ("batch_norm", "_native_batch_norm_legit_no_training")
_BINARY: Mapping[str, np.ufunc] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "pow": np.power,
}
_PRODUCTS = {"linear": "input", "matmul": "self", "mm": "self", "bmm": "self", "addmm": "mat1", "baddbmm": "batch1"}
"""Products of matrices, to the argument whose last axis is summed over."""
_UNARY: Mapping[str, Callable[[Call], Unary]] = {
    "relu": lambda _: clipped(0.0, None),
    "relu6": lambda _: clipped(0.0, 6.0),
    "hardtanh": lambda call: clipped(call.number("min_val", -1.0), call.number("max_val", 1.0)),
    "clamp": lambda call: clipped(call.limit("min"), call.limit("max")),
    "clamp_min": lambda call: clipped(call.limit("min"), None),
    "clamp_max": lambda call: clipped(None, call.limit("max")),
    "sigmoid": lambda _: sigmoid,
    "tanh": lambda _: np.tanh,
    "erf": lambda _: erf,
    "exp": lambda _: np.exp,
    "neg": lambda _: np.negative,
    "silu": lambda _: lambda x: x * sigmoid(x),
    "hardsigmoid": lambda _: hard_sigmoid(),
    "hardswish": lambda _: lambda x: x * hard_sigmoid()(x),
    "leaky_relu": lambda call: leaky_relu(call.number("negative_slope", 0.01)),
    "gelu": lambda call: gelu_tanh if call.arguments.get("approximate") == "tanh" else gelu,
}


class GraphReader:
    """Reads a graph for inputs of one size."""

    def __init__(
        self, graph: Graph, name: str, symbols: Mapping[str, int], dtype: str | None, layout: str | None
    ) -> None:
        self._graph, self._name, self._dtype = graph, name, dtype
        self._constants = set(graph.constants)
        self._known = {*graph.constants, *graph.images}
        self._now: dict[str, str] = {}
        """tensors that were written in place, to the results of the writers"""
        self._shapes: dict[str, Shape] = {
            name: tuple(evaluated(size, symbols) for size in made) for name, made in graph.sizes.items()
        }
        self._layout = layout or ("nhwc" if graph.channels_last & graph.constants.keys() else "nchw")

    def network(self) -> Network:
        """Raises ModelError where the model is in training mode, ValueError where operators are in no order."""
        operators = tuple(operator for call in self._graph.calls for operator in self._operators(call))
        inputs = tuple(self._shape(name) for name in self._graph.images)
        outputs = frozenset(self._latest(name) for name in self._graph.outputs)
        return Network(operators, outputs, inputs, self._layout)

    def _operators(self, call: Call) -> Iterator[Operator]:
        for label in _nested(call.graphs):
            why_not = "in a part of the network that runs on a condition, or under other settings"
            yield Operator((), (), convolution=Convolution(plain(label), None, why_not, None))
        if not call.writes:
            return  # asks for a size, or asserts something
        if not {*call.tensors} <= self._known or not self._known.isdisjoint(call.writes):
            raise ValueError(f"{call.name} reads what is not written yet, or writes again")
        self._known.update(call.writes)
        reads = tuple(self._latest(name) for name in call.tensors if name not in self._constants)
        if not reads:
            self._constants.update(call.writes)
            return
        yield self._operator(call, reads)
        if call.in_place and call.tensors[0] not in self._constants:
            self._now[self._latest(call.tensors[0])] = call.writes[0]

    def _latest(self, name: str) -> str:
        """The tensor that has a tensor's memory now."""
        latest = name
        while latest in self._now:
            latest = self._now[latest]
        while name != latest:  # what was written many times is found in one step the next time
            self._now[name], name = latest, self._now[name]
        return latest

    def _operator(self, call: Call, reads: tuple[str, ...]) -> Operator:
        if call.number("training", 0) or (call.name in _DROPOUTS and call.number("train", 0)):
            raise ModelError(f"{self._name}: is in training mode; call eval() before torch.export: kernels only infer")
        if _CONVOLUTION.fullmatch(call.name):
            return Operator(reads, call.writes, "convolution", convolution=self._convolution(call))
        if flops := self._product_flops(call):
            return Operator(reads, call.writes, product_flops=flops, label=plain(self._label(call)))
        if call.name in _BINARY and call.limit("alpha") in (None, 1) and "rounding_mode" not in call.arguments:
            other = "exponent" if call.name == "pow" else "other"
            made = self._shape(call.writes[0])
            one, second = (self._operand(call, each) for each in ("self", other))
            return binary(_BINARY[call.name], one, second, call.writes[0], made)
        if call.name in (*_COPIES, *_DROPOUTS):
            return Operator(reads, call.writes, "copy", of_one(lambda x: x))
        if call.name in _NORMS:
            return Operator(reads, call.writes, "affine" if len(reads) == 1 else "other")
        known = call.name in _UNARY and len(reads) == 1
        return Operator(reads, call.writes, function=of_one(_UNARY[call.name](call)) if known else None)

    def _shape(self, name: str) -> Shape:
        return self._shapes.get(name, ())

    def _operand(self, call: Call, name: str) -> Operand:
        tensor = call.tensor(name)
        if tensor and tensor not in self._constants:
            return Operand(self._latest(tensor), self._shape(tensor))
        return Operand("", self._shape(tensor), call.limit(name))

    def _label(self, call: Call) -> str:
        """The name of the parameter with its filters, without `weight`, else the path of the module that calls it."""
        filters = self._graph.constants.get(call.tensor("weight"), "")
        return filters.removesuffix(".weight") or call.path or call.writes[0]

    def _convolution(self, call: Call) -> Convolution:
        x, w, y = (self._shape(name) for name in (call.tensor("input"), call.tensor("weight"), call.writes[0]))
        axes = max(len(w) - 2, 0)
        dilation = call.whole("dilation", axes, 1)
        before = after = call.whole("padding", axes, 0)
        if call.arguments.get("padding") == "same":
            totals = [apart * ((taps or 1) - 1) for apart, taps in zip(dilation, w[2:], strict=False)]
            before, after = tuple(each // 2 for each in totals), tuple(each - each // 2 for each in totals)
        geometry = Geometry(
            *(x, w, y, call.whole("stride", axes, 1), before, after, dilation, int(call.number("groups", 1))),
            transposed="transpose" in call.name or bool(call.number("transposed", 0)),
            bias=bool(call.tensor("bias")),
            dtype=_DTYPES.get(self._graph.dtypes.get(call.tensor("input"), 0), "a type that studies have not"),
        )
        given = [each for each in (call.tensor("weight"), call.tensor("bias")) if each]
        why_not = "" if {*given} <= self._constants else "its filters are computed by the network"
        return convolution(self._label(call), geometry, self._dtype, self._layout, why_not)

    def _product_flops(self, call: Call) -> int:
        """FLOPs of products of matrices; 0 where there are none, or of unknown size."""
        made = self._shape(call.writes[0])
        if call.name == "scaled_dot_product_attention":
            query, key = (self._shape(call.tensor(name)) for name in ("query", "key"))
            both = [product((2, *each, key[-2])) for each in (query, made)] if len(key) > 1 else []
            return sum(each or 0 for each in both)
        a = self._shape(call.tensor(_PRODUCTS.get(call.name, "")))
        return (product((2, *made, a[-1])) or 0) if a else 0


def _nested(graphs: tuple[Json, ...]) -> Iterator[str]:
    """Convolutions in the graphs that an operator runs."""
    for graph in graphs:
        for call in map(Call.of, entries(graph, "nodes")):
            if _CONVOLUTION.fullmatch(call.name):
                yield call.path or call.writes[0]
            yield from _nested(call.graphs)
