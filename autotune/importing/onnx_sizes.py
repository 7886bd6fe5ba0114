"""Infer the sizes of an ONNX model's tensors, including those that the model computes from other sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autotune.autotune_runtime.convolution import Shape

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorShapeProto

_ROUNDS = 16
"""Maximum number of rounds of inferring sizes and computing with them. Each round may find sizes for the next."""
_MOST_NUMBERS = 64
_COMPUTED = frozenset(
    ("Cast", "Slice", "Gather", "Concat", "Unsqueeze", "Squeeze", "Reshape", "Identity", "Floor", "Ceil", "Min", "Max")
) | {"Add", "Sub", "Mul", "Div", "Transpose", "ConstantOfShape"}
"""Operators that are evaluated on sizes. None but the last turns a small tensor into a large one."""


def with_sizes(model: ModelProto) -> ModelProto:
    """Infer the sizes of a model's tensors from its inputs' sizes, and return the model with sizes.

    The given model is changed. ONNX's own inference computes with sizes too, but not through a Cast, for example.
    """
    from onnx import numpy_helper, shape_inference

    for _ in range(_ROUNDS):
        inferred: ModelProto = shape_inference.infer_shapes(model, data_prop=True)
        values = dict(_computed(inferred))
        if not values:
            break
        kept = [node for node in model.graph.node if not {*node.output} & values.keys()]
        del model.graph.node[:]
        model.graph.node.extend(kept)
        model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    return inferred


def dims(shape: TensorShapeProto) -> Shape:
    """Return a tensor's sizes, with None for an unknown one."""
    return tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in shape.dim)


def shapes(graph: GraphProto) -> Mapping[str, Shape]:
    """Return the shapes of tensors by name, for tensors whose number of dimensions is known."""
    return {
        each.name: dims(each.type.tensor_type.shape)
        for each in (*graph.input, *graph.value_info, *graph.output)
        if each.type.tensor_type.HasField("shape")
    }


def _computed(model: ModelProto) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Yield small tensors with known values: sizes, and values computed from sizes and constants."""
    from onnx import numpy_helper
    from onnx.reference import ReferenceEvaluator

    known_shapes = shapes(model.graph)
    opsets = {each.domain: each.version for each in model.opset_import}
    values = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    for node in model.graph.node:
        made = node.output[0] if node.output else ""
        if node.op_type == "Constant":
            stored = next((each.t for each in node.attribute if each.name == "value"), None)
            if stored is not None:
                values[made] = numpy_helper.to_array(stored)
        elif node.op_type == "Shape" and not node.attribute:
            shape = known_shapes.get(node.input[0])
            if shape is not None and None not in shape:
                values[made] = np.array(shape, np.int64)
                yield made, values[made]
        elif node.op_type in _COMPUTED and all(not name or name in values for name in node.input):
            given = {name: values[name] for name in node.input if name}
            made_sizes = [value.prod() for value in given.values()] if node.op_type == "ConstantOfShape" else []
            if sum((*(value.size for value in given.values()), *made_sizes)) <= _MOST_NUMBERS:
                with contextlib.suppress(Exception):  # ONNX's reference lacks some old operators
                    values[made] = ReferenceEvaluator(node, opsets=opsets).run(None, given)[0]
                    yield made, values[made]
