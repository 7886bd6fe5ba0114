"""The calls of operators in an archive of `torch.export`, out of its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from autotune.autotune_runtime.aten import Calls
from autotune.autotune_runtime.aten_calls import Argument, Call, Ref, TensorType, refs
from autotune.autotune_runtime.convolution import Shape
from autotune.errors import quoted
from autotune.importing.network import plain
from autotune.importing.torch_sizes import LARGEST, Size, evaluate, size_of

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

_INSIDE = "in a part of the network that runs on a condition, or under other settings"
_MOST_AXES = 64
"""of a tensor: NumPy's own limit, and as many as PyTorch's kernels take"""
_DTYPES = {7: "f32", 6: "f16", 13: "bf16", 8: "float64", 1: "uint8", 2: "int8"}  # ScalarType of the archive's schema


@dataclass(frozen=True, slots=True)
class Exported:
    """The types in an archive's JSON."""

    calls: tuple[Call, ...]
    sizes: Mapping[str, tuple[Size, ...]]
    """of tensors"""
    dtypes: Mapping[str, str]
    strides: Mapping[str, tuple[Size, ...]]
    images: tuple[str, ...]
    """tensors that a caller gives"""
    constants: Mapping[str, str]
    """the graph's other inputs, to the names that parameters have in the model"""
    outputs: frozenset[str]

    @classmethod
    def of(cls, document: Json) -> Exported:
        """Raises KeyError or TypeError where something is missing."""
        graph = entry(document, "graph_module", "graph")
        tensors = entry(graph, "tensor_values")
        if not isinstance(tensors, Mapping):
            raise TypeError("expected an object at tensor_values")
        images: list[str] = []
        constants: dict[str, str] = {}
        for spec in entries(document, "graph_module", "signature", "input_specs"):
            if _has(spec, "user_input"):
                images += refs([_argument(entry(spec, "user_input", "arg"))])
            elif isinstance(spec, Mapping):
                for what in spec.values():
                    constants[str(entry(what, "arg", "name"))] = str(optional(what, "parameter_name", ""))
        return cls(
            calls=tuple(map(call_of, entries(graph, "nodes"))),
            sizes={name: _sizes(entries(each, "sizes")) for name, each in tensors.items()},
            dtypes={name: _dtype(_whole(entry(each, "dtype"))) for name, each in tensors.items()},
            strides={name: _sizes(entries(each, "strides")) for name, each in tensors.items()},
            images=tuple(images),
            constants=constants,
            outputs=frozenset(refs(map(_argument, entries(graph, "outputs")))),
        )

    def for_sizes(self, symbols: Mapping[str, int], dtype: str | None, layout: str | None) -> Calls:
        """The calls with sizes as numbers, in this dtype and layout; None: the archive's own."""
        tensors: dict[str, TensorType] = {}
        for name in self.sizes:
            shape, strides = (tuple(evaluate(each, symbols) for each in of[name]) for of in (self.sizes, self.strides))
            tensors[name] = TensorType(shape, dtype or self.dtypes[name], _layouts(shape, strides))
        return Calls(self.calls, tensors, self.images, self.constants, self.outputs, layout)


def _layouts(shape: Shape, strides: Shape) -> frozenset[str]:
    """In which a tensor of these sizes and strides is stored without gaps, as PyTorch has it."""
    orders = {"nchw": range(len(shape))} | ({"nhwc": (0, *range(2, len(shape)), 1)} if len(shape) in (4, 5) else {})
    return frozenset(name for name, order in orders.items() if _is_dense(shape, strides, order))


def _is_dense(shape: Shape, strides: Shape, order: Sequence[int]) -> bool:
    expected: int | None = 1
    for axis in reversed(order):
        size = shape[axis]
        if size != 1 and strides[axis] != expected:
            return False
        expected = None if size is None or expected is None else expected * size
    return True


def call_of(node: Json) -> Call:
    """An operator as an archive has it. Raises KeyError or TypeError where something is missing."""
    target = str(entry(node, "target"))
    name = target.removeprefix("torch.ops.aten.").partition(".")[0]
    given = {str(entry(each, "name")): entry(each, "arg") for each in entries(node, "inputs")}
    stack = str(optional(entry(node, "metadata"), "nn_module_stack", ""))
    inner = tuple(_nested(entry(each, "as_graph", "graph") for each in given.values() if _has(each, "as_graph")))
    return Call(
        name=name.removesuffix("_") if target.startswith("torch.ops.aten.") else "",
        in_place=name.endswith("_"),
        arguments={each: _argument(value) for each, value in given.items()},
        writes=tuple(refs(map(_argument, entries(node, "outputs")))),
        path=[*stack.rpartition(";")[2].split(","), ""][1],
        inner=inner,
        why_not=_INSIDE if inner else "",
        varies=name.startswith("rand"),
    )


def _nested(graphs: Iterable[Json]) -> Iterator[str]:
    """Convolutions in the graphs that an operator runs."""
    for graph in graphs:
        for call in map(call_of, entries(graph, "nodes")):
            if call.is_convolution:
                yield plain(call.path or call.writes[0])
            yield from call.inner


def _dtype(kind: int) -> str:
    return _DTYPES.get(kind, "a type that studies do not have")


def entry(value: Json, *keys: str) -> Json:
    """The value at keys of a JSON document. Raises KeyError or TypeError."""
    for key in keys:
        if not isinstance(value, Mapping):
            raise TypeError(f"expected an object with {key}")
        value = value[key]
    return value


def entries(value: Json, *keys: str) -> Sequence[Json]:
    """The list at keys of a JSON document. Raises KeyError or TypeError."""
    found = entry(value, *keys)
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise TypeError(f"expected a list at {'.'.join(keys)}")
    return found


def optional(value: Json, key: str, default: str) -> Json:
    """The value at a key, if there is one."""
    return value.get(key, default) if isinstance(value, Mapping) else default


def _has(value: Json, key: str) -> bool:
    return isinstance(value, Mapping) and key in value


def _argument(value: Json) -> Argument:
    """An argument is an object of one key, which is its kind."""
    if not isinstance(value, Mapping) or not value:
        return None
    (kind, what), *_ = value.items()
    if kind == "as_tensor":
        return Ref(str(entry(what, "name")))
    if isinstance(what, (str, int, float)):
        return None if kind == "as_none" else what
    if isinstance(what, Sequence):
        tensors = kind in ("as_tensors", "as_nested_tensors")
        return [Ref(str(entry(each, "name"))) if tensors else _element(each) for each in what]
    return _argument(what) if kind.startswith("as_sym") else None


def _element(value: Json) -> Argument:
    """An element of a list, which is a number or an object like an argument."""
    return value if isinstance(value, (str, int, float)) else _argument(value)


def _sizes(values: Sequence[Json]) -> tuple[Size, ...]:
    if len(values) > _MOST_AXES:
        raise ValueError(f"a tensor of {len(values)} dimensions")
    return tuple(map(_size, values))


def _size(value: Json) -> Size:
    if _has(value, "as_int"):
        size = _whole(entry(value, "as_int"))
        if abs(size) > LARGEST:
            raise ValueError("a size of more than 64 bits")
        return size
    return size_of(str(entry(value, "as_expr", "expr_str")))


def _whole(value: Json) -> int:
    if not isinstance(value, int):
        raise TypeError(f"expected a whole number, got {quoted(value)}")
    return value
