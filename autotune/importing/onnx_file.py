"""Read an ONNX file as a `Graph`. Weights aren't read; sizes come from shape inference."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from autotune.autotune_runtime.fusion import Graph
from autotune.errors import ModelError, shortened
from autotune.importing.network import Request, plain
from autotune.importing.onnx_graph import GraphReader
from autotune.importing.onnx_sizes import dims, with_sizes

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

LARGEST_BYTES = 2**31 - 1
"""The largest size that protobuf can read, in bytes. Larger models store their weights in separate files."""
_MOST_GROWN = 200_000
"""Maximum number of operators after functions are inlined. A small file could expand to any number; networks have a few
thousand.
"""
_DEEPEST = 100
_LARGE = 64  # number of elements: larger constants are weights, smaller ones may be sizes that shape inference needs

T = TypeVar("T")


def read_onnx(request: Request) -> Graph:
    """Read an ONNX file.

    Raises ModelError if the file isn't a valid model, if the package onnx is missing, or if sizes are neither in the
    file nor in the request.
    """
    path = Path(request.source)
    model = _loaded(path)
    try:
        return _network(path, model, request)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
        what = _line(error)
        raise ModelError(f"{path}: is not an ONNX model that can be read ({type(error).__name__}: {what})") from None


def _network(path: Path, loaded: ModelProto, request: Request) -> Graph:
    model = _inlined(loaded, path)
    constants = _without_weights(model.graph)
    images = [each for each in model.graph.input if each.name not in constants]
    for each in images[len(request.inputs) :]:
        if _has_no_shape(each):
            name = plain(each.name)
            raise ModelError(f"{path}: its input {name} has no shape; give the sizes of all inputs by --input")
    for each in (*images, *model.graph.output):  # the checker requires shapes, which are set or inferred below
        if _has_no_shape(each):
            each.type.tensor_type.shape.SetInParent()
    _check(model, path)
    shapes = request.sizes({each.name: dims(each.type.tensor_type.shape) for each in images})
    for each, shape in zip(images, shapes, strict=True):
        _set_sizes(each, shape)
    for each in model.graph.output:  # the file's output sizes may differ from the requested ones
        each.type.tensor_type.ClearField("shape")
    try:
        inferred = with_sizes(model)
    except Exception as error:  # noqa: BLE001 - of onnx's C++
        raise ModelError(f"{path}: its sizes cannot be inferred: {_line(error)}") from None
    return GraphReader(inferred.graph, constants, request.dtype, request.layout or "nchw").calls().graph()


def _loaded(path: Path) -> ModelProto:
    try:
        import onnx
    except ImportError:
        raise ModelError(f"{path}: reading it needs the package onnx: pip install 'autotune-conv[onnx]'") from None
    try:
        size_bytes = os.stat(path).st_size
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    if size_bytes > LARGEST_BYTES:
        raise ModelError(
            f"{path}: has {size_bytes} bytes, and protobuf reads {LARGEST_BYTES}; save it with external data"
        )
    try:
        model = onnx.load_model(path, format="protobuf", load_external_data=False)
        nodes = len(model.graph.node)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - protobuf's errors have no common class and differ between versions
        raise ModelError(f"{path}: is not an ONNX model: {_line(error)}") from None
    if not nodes:
        raise ModelError(f"{path}: is not an ONNX model: it has no graph")
    return model


def _inlined(model: ModelProto, path: Path) -> ModelProto:
    """Return the model with calls to its own functions replaced by these functions' operators."""
    if not model.functions:
        return model
    from onnx import inliner

    if _grown(model) > _MOST_GROWN:
        raise ModelError(f"{path}: its functions make more than {_MOST_GROWN} operators of the model")
    try:
        return inliner.inline_local_functions(model)
    except Exception as error:  # noqa: BLE001 - of onnx's C++
        raise ModelError(f"{path}: its functions cannot be inlined: {_line(error)}") from None


def _grown(model: ModelProto) -> int:
    """Count the operators after inlining functions. An operator in a function counts 1, plus 1 for each full KiB."""
    calls = {(each.domain, each.name): Counter(_called(each.node)) for each in model.functions}
    own = {(each.domain, each.name): sum(1 + (node.ByteSize() >> 10) for node in each.node) for each in model.functions}
    called = [name for name in _called(model.graph.node) if name in own]
    grown = own
    for _ in range(_DEEPEST):  # adds one level of nested calls each time; onnx rejects deeper nesting and recursion
        grown = {
            name: own[name] + sum(times * grown[each] for each, times in calls[name].items() if each in own)
            for name in own
        }
        if sum(grown[name] for name in called) > _MOST_GROWN:
            break
    return sum(grown[name] for name in called)


def _called(nodes: Iterable[NodeProto]) -> Iterator[tuple[str, str]]:
    """Yield each operator's domain and name, including those in subgraphs."""
    for node in nodes:
        yield node.domain, node.op_type
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _called(graph.node)


def _check(model: ModelProto, path: Path) -> None:
    from onnx import checker

    try:
        checker.check_model(model)
    except Exception as error:  # noqa: BLE001 - of onnx's C++
        raise ModelError(f"{path}: is not a valid ONNX model: {_line(error)}") from None


def _line(error: Exception) -> str:
    """Return an error's message as one line of limited length."""
    return shortened(re.sub(r"\s+", " ", str(error)).strip(), 200) or type(error).__name__


def _without_weights(graph: GraphProto) -> frozenset[str]:
    """Replace large constants with inputs, because shape inference copies the model, and return the constants'
    names.
    """
    from onnx import helper

    known = {each.name for each in graph.input}
    stored = {node.output[0]: _stored(node) for node in graph.node if node.op_type == "Constant" and node.output}
    large = {name: tensor for name, tensor in stored.items() if tensor is not None}
    large |= {each.name: each for each in graph.initializer if _is_weight(each)}
    large |= {each.values.name: each for each in graph.sparse_initializer}
    constants = frozenset((*large, *(each.name for each in graph.initializer)))
    for name in large.keys() - known:
        tensor = large[name]
        kind = tensor.data_type if hasattr(tensor, "data_type") else tensor.values.data_type
        graph.input.append(helper.make_tensor_value_info(name, kind, list(tensor.dims)))
    _keep(graph.initializer, [each for each in graph.initializer if each.name not in large])
    _keep(
        graph.node, [node for node in graph.node if node.op_type != "Constant" or large.keys().isdisjoint(node.output)]
    )
    _keep(graph.sparse_initializer, [])
    _keep(graph.value_info, [])  # the file's own sizes may differ from the requested ones
    return constants


def _stored(node: NodeProto) -> TensorProto | None:
    """Return the large tensor that a Constant node contains, if any."""
    tensors = (attribute.t for attribute in node.attribute if attribute.name == "value")
    return next((tensor for tensor in tensors if _is_weight(tensor)), None)


def _keep(field: MutableSequence[T], kept: Sequence[T]) -> None:
    del field[:]
    field.extend(kept)


def _is_weight(tensor: TensorProto) -> bool:
    """Return whether to skip a tensor's values, because it has many elements or they are in a separate file."""
    return math.prod(tensor.dims) > _LARGE or bool(tensor.data_location == tensor.EXTERNAL)


def _has_no_shape(value: ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


def _set_sizes(value: ValueInfoProto, shape: Sequence[int]) -> None:
    del value.type.tensor_type.shape.dim[:]
    for size in shape:
        value.type.tensor_type.shape.dim.add(dim_value=size)
