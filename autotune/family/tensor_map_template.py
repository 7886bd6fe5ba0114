"""template -> tensor maps: a header's `[[tensor_map]]` tables as expressions, and their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.devices.tensor_map import SWIZZLES, TensorMap
from autotune.errors import TemplateError, shortened
from autotune.expressions.expression import Expression
from autotune.operation.declarations import SCALAR
from autotune.operation.operation import Operation
from autotune.toml_table import Table

KEYS = {
    *("name", "array", "in_workspace", "when", "data_type", "global_dim", "box_dim", "element_strides"),
    *("lower_corner", "upper_corner", "swizzle"),
}
Evaluate = Callable[[Expression], int]
Word = Callable[[Expression], str]


@dataclass(frozen=True, slots=True)
class NamedTensorMap:
    """A tensor map that a stage can take as an argument."""

    name: str
    array: str
    tensor: TensorMap


@dataclass(frozen=True, slots=True)
class TensorMapTemplate:
    """One of the header's `[[tensor_map]]` tables, before it is evaluated for a config."""

    name: str
    where: str
    """file and dotted key for messages"""
    array: str
    in_workspace: Expression
    """whether the map is of the workspace, into which an earlier stage has copied the array"""
    when: Expression
    data_type: Expression
    """the problem's dtype, or tf32 for f32"""
    global_dim: tuple[Expression, ...]
    box_dim: tuple[Expression, ...]
    element_strides: tuple[Expression, ...]
    """empty: 1 in every dimension"""
    lower_corner: tuple[Expression, ...]
    upper_corner: tuple[Expression, ...]
    swizzle_bytes: Expression

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """All expressions of the table."""
        corners = (*self.lower_corner, *self.upper_corner)
        alone = (self.in_workspace, self.when, self.data_type, self.swizzle_bytes)
        return (*alone, *self.global_dim, *self.box_dim, *self.element_strides, *corners)

    def evaluate(self, value: Evaluate, word: Word, dtype: str) -> NamedTensorMap:
        """Evaluate the map for a config and a dtype. Raises TemplateError if the driver wouldn't encode it."""
        data_type = word(self.data_type)
        if data_type not in ((dtype, "tf32") if dtype == "f32" else (dtype,)):
            raise self.data_type.error(f"yields {data_type!r} for arrays of {dtype}; only f32 may be loaded as tf32")
        swizzle_bytes = value(self.swizzle_bytes)
        _check_swizzle(self.swizzle_bytes, swizzle_bytes)

        def all_of(expressions: tuple[Expression, ...]) -> tuple[int, ...]:
            return tuple(value(expression) for expression in expressions)

        tensor = TensorMap(
            dtype=data_type,
            global_dim=all_of(self.global_dim),
            box_dim=all_of(self.box_dim),
            element_strides=all_of(self.element_strides) or (1,) * len(self.global_dim),
            swizzle_bytes=swizzle_bytes,
            lower_corner=all_of(self.lower_corner),
            upper_corner=all_of(self.upper_corner),
        )
        if refusal := tensor.refusal():
            given = f"box_dim {list(tensor.box_dim)} of global_dim {list(tensor.global_dim)}, {tensor.dtype}"
            raise TemplateError(f"{self.where}: {refusal}; it yields {shortened(given)}, swizzle {swizzle_bytes}")
        return NamedTensorMap(self.name, "workspace" if value(self.in_workspace) else self.array, tensor)


def named_arrays(table: Table) -> dict[str, str]:
    """Return the names of a `[[tensor_map]]` table's maps, and the array that each one describes.

    `array` is a single array or a list of them.
    """
    arrays = table.words("array")
    if table.get("name") is None:
        return {f"{array}_map": array for array in arrays}
    name = table.word("name", "")
    if not name.isidentifier() or len(arrays) > 1:
        raise table.error("name", f"expected a name, for one array, got {name!r}")
    return {name: arrays[0]}


def read_tensor_map(
    table: Table, name: str, array: str, declared: Operation, expression: Callable[[str, object], Expression]
) -> TensorMapTemplate:
    """Read one array's map from a `[[tensor_map]]` table. `expression` parses the value at a dotted key."""
    table.allow(KEYS)

    def expressions(key: str) -> tuple[Expression, ...]:
        value = table.get(key, [])
        if not isinstance(value, list):
            raise table.error(key, f"expected a list of expressions, got {value!r}")
        return tuple(expression(table.path(f"{key}[{index}]"), item) for index, item in enumerate(value))

    arrays = [*(each.name for each in declared.arrays if each.role != SCALAR), "packed_w"]  # of the problem's dtype
    if array not in arrays:
        raise table.error("array", f"expected one of {', '.join(arrays)}, got {array!r}")
    made = TensorMapTemplate(
        name=name,
        where=f"{table.file}: {table.key}",
        array=array,
        in_workspace=expression(table.path("in_workspace"), table.get("in_workspace", "false")),
        when=expression(table.path("when"), table.get("when", "true")),
        data_type=expression(table.path("data_type"), table.get("data_type", "dtype")),
        global_dim=expressions("global_dim"),
        box_dim=expressions("box_dim"),
        element_strides=expressions("element_strides"),
        lower_corner=expressions("lower_corner"),
        upper_corner=expressions("upper_corner"),
        swizzle_bytes=expression(table.path("swizzle"), table.get("swizzle", 0)),
    )
    _check_lengths(made, table)
    if not made.swizzle_bytes.names:
        _check_swizzle(made.swizzle_bytes, made.swizzle_bytes.bind({}).integer({}))
    return made


def _check_swizzle(expression: Expression, swizzle_bytes: int) -> None:
    if swizzle_bytes not in SWIZZLES:
        raise expression.error(f"yields {swizzle_bytes}; expected one of {', '.join(map(str, SWIZZLES))} bytes")


def _check_lengths(made: TensorMapTemplate, table: Table) -> None:
    """Check that each list has the right length for the number of dimensions.

    An im2col box has two values, and its corners have one to three.
    """
    rank, im2col = len(made.global_dim), bool(made.lower_corner or made.upper_corner)
    corners = rank - 2 if im2col else 0
    if rank == 0:
        raise table.error("global_dim", "expected a list of expressions, one for each dimension")
    for key, length, expected in (
        ("box_dim", len(made.box_dim), 2 if im2col else rank),
        ("element_strides", len(made.element_strides), rank if made.element_strides else 0),
        ("lower_corner", len(made.lower_corner), corners),
        ("upper_corner", len(made.upper_corner), corners),
    ):
        if length != expected:
            raise table.error(key, f"expected {expected} expressions for {rank} dimensions, got {length}")
