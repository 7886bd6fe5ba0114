"""The calls of operators in an archive of `torch.export`, out of its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from autotune.errors import quoted
from autotune.importing.torch_sizes import LARGEST, Size, size_of
from autotune.interchange.recorded_space import Json

_MOST_AXES = 64
"""of a tensor: NumPy's own limit, and as many as PyTorch's kernels take"""


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor as an argument."""

    name: str


Argument: TypeAlias = "Ref | str | float | Sequence[Argument] | None"


@dataclass(frozen=True, slots=True)
class Call:
    """An operator as the archive has it."""

    name: str
    """as ATen has it, without the underscore of those that work in place; empty for operators that are not ATen's"""
    overload: str
    in_place: bool
    arguments: Mapping[str, Argument]
    writes: tuple[str, ...]
    """tensors"""
    path: str
    """of the module that calls it, such as layer1.0.conv1"""
    graphs: tuple[Json, ...]
    """that it runs"""

    @classmethod
    def of(cls, node: Json) -> Call:
        """Raises KeyError or TypeError where something is missing."""
        target = str(entry(node, "target"))
        name, _, overload = target.removeprefix("torch.ops.aten.").partition(".")
        given = {str(entry(each, "name")): entry(each, "arg") for each in entries(node, "inputs")}
        stack = str(optional(entry(node, "metadata"), "nn_module_stack", ""))
        return cls(
            name=name.removesuffix("_") if target.startswith("torch.ops.aten.") else "",
            overload=overload,
            in_place=name.endswith("_"),
            arguments={each: _argument(value) for each, value in given.items()},
            writes=tuple(refs(map(_argument, entries(node, "outputs")))),
            path=[*stack.rpartition(";")[2].split(","), ""][1],
            graphs=tuple(entry(value, "as_graph", "graph") for value in given.values() if _has(value, "as_graph")),
        )

    def number(self, name: str, default: float) -> float:
        """An argument that is a number."""
        value = self.limit(name)
        return default if value is None else value

    def limit(self, name: str) -> float | None:
        """An argument that is a number, or is missing."""
        value = self.arguments.get(name)
        return value if isinstance(value, (int, float)) else None

    def whole(self, name: str, axes: int, default: int) -> tuple[int, ...]:
        """An argument that has a number for each axis, or one for all."""
        value = self.arguments.get(name)
        given = [value] if isinstance(value, int) else value if isinstance(value, (list, tuple)) else []
        numbers = tuple(each for each in given if isinstance(each, int))
        return numbers * axes if len(numbers) == 1 else numbers or (default,) * axes

    def tensor(self, name: str) -> str:
        """The name of a tensor; empty where the argument is none."""
        value = self.arguments.get(name)
        return value.name if isinstance(value, Ref) else ""

    @property
    def tensors(self) -> tuple[str, ...]:
        """All that it is given, also in lists."""
        return tuple(refs(self.arguments.values()))


@dataclass(frozen=True, slots=True)
class Graph:
    """What an archive's JSON has in it."""

    calls: tuple[Call, ...]
    sizes: Mapping[str, tuple[Size, ...]]
    """of tensors"""
    dtypes: Mapping[str, int]
    """ScalarType of the archive's schema"""
    channels_last: frozenset[str]
    """filters that are stored KRSC"""
    images: tuple[str, ...]
    """tensors that a caller gives"""
    constants: Mapping[str, str]
    """the graph's other inputs, to the names that parameters have in the model"""
    outputs: frozenset[str]

    @classmethod
    def of(cls, document: Json) -> Graph:
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
            calls=tuple(map(Call.of, entries(graph, "nodes"))),
            sizes={name: _sizes(entries(each, "sizes")) for name, each in tensors.items()},
            dtypes={name: _whole(entry(each, "dtype")) for name, each in tensors.items()},
            channels_last=frozenset(name for name, each in tensors.items() if _channels_last(each)),
            images=tuple(images),
            constants=constants,
            outputs=frozenset(refs(map(_argument, entries(graph, "outputs")))),
        )


def entry(value: Json, *keys: str) -> Json:
    """What stands below keys of a JSON document. Raises KeyError or TypeError."""
    for key in keys:
        if not isinstance(value, Mapping):
            raise TypeError(f"expected an object with {key}")
        value = value[key]
    return value


def entries(value: Json, *keys: str) -> Sequence[Json]:
    """The list that stands below keys. Raises KeyError or TypeError."""
    found = entry(value, *keys)
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise TypeError(f"expected a list at {'.'.join(keys)}")
    return found


def optional(value: Json, key: str, default: str) -> Json:
    """What stands at a key, if something does."""
    return value.get(key, default) if isinstance(value, Mapping) else default


def refs(arguments: Iterable[Argument]) -> Iterator[str]:
    """The names of tensors among arguments, also in lists."""
    for each in arguments:
        if isinstance(each, Ref):
            yield each.name
        elif isinstance(each, (list, tuple)):
            yield from refs(each)


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


def _channels_last(tensor: Json) -> bool:
    """Whether [K, C, R, S] is stored KRSC, and not also KCRS."""
    made, strides = ([_size(each) for each in entries(tensor, key)] for key in ("sizes", "strides"))
    return len(made) == 4 and strides[1] == 1 and made[1] != 1 and (made[2], made[3]) != (1, 1)
