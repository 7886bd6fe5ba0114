"""The PyTorch operator of an operation, whose declaration determines its schema and its rules for
tensors without data.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from .interface import DeclaredProblem, Interface, InterfaceArray, Library
from .prepared import GIVEN, WEIGHTS, problem_of
from .torch_operator import Operator, Tensors, given_arrays

DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i32": torch.int32,
    "f64": torch.float64,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i64": torch.int64,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def operator_of(library: Library) -> Operator:
    """`torch.ops.autotune_NAME.NAME`; call it with tensors, and with sizes and words by name."""
    interface = library.interface
    arrays = given_arrays(interface)
    launched, weights = ([array for array in arrays if (array.role in WEIGHTS) is kept] for kept in (False, True))

    names = [array.name for array in (*launched, *weights)]

    def split(*tensors: Tensor | None, **named: int | str) -> tuple[Tensors, Tensors, Hashable]:
        given = dict(zip((array.name for array in arrays), tensors, strict=False))
        of_launch, kept = ([given.get(array.name) for array in some] for some in (launched, weights))
        return of_launch, kept, tuple(named.items())

    def call_of(named: Hashable) -> _Declared:
        return _Declared(library, names, cast("tuple[tuple[str, int | str], ...]", named))

    return Operator(interface, f"autotune_{interface.name}", schema(interface), split, call_of)


def schema(interface: Interface) -> str:
    """The operator's schema: tensors that are read or changed, then sizes that no shape determines, and
    words by name.
    """
    given = given_arrays(interface)
    axes = _axes(array for array in given if not array.optional)
    perhaps = _axes(given) - axes  # of optional arrays alone
    tensors, marks = [], iter("abcdefgh")
    for array in given:
        kind = f"Tensor({next(marks)}!)" if array.role == "inout" else "Tensor"
        tensors.append(f"{kind}? {array.name}=None" if array.optional else f"{kind} {array.name}")
    named = [
        f"int? {size.name}=None"
        if size.name in perhaps
        else f"int {size.name}" + ("" if size.default is None else f"={size.default}")
        for size in interface.sizes
        if size.name not in axes
    ]
    types = {"dtype", *(array.type_word for array in given)}  # which tensors say
    named += [f'str {name}="{words[0]}"' for name, words in interface.words.items() if name not in types]
    made = sum(array.role == "out" for array in interface.arrays)
    returns = "Tensor" if made == 1 else f"({', '.join(['Tensor'] * made)})"
    return f"{interface.name}({', '.join((*tensors, *(['*', *named] if named else ())))}) -> {returns}"


def _axes(arrays: Iterable[InterfaceArray]) -> set[str]:
    return {axis for array in arrays for extents in array.axes.values() for axis in extents}


@dataclass(frozen=True, slots=True)
class _Declared:
    """A call with sizes and words by name."""

    library: Library
    arrays: Sequence[str]
    """names of the tensors of a launch, then of weights"""
    named: tuple[tuple[str, int | str], ...]
    channels_last: bool = False
    instead: None = None

    def _given(self, launched: Tensors, weights: Tensors) -> dict[str, Tensor]:
        tensors = zip(self.arrays, (*launched, *weights), strict=True)
        return {name: tensor for name, tensor in tensors if tensor is not None}

    def problem(self, launched: Tensors, weights: Tensors) -> DeclaredProblem:
        given = self._given(launched, weights)
        for name, tensor in given.items():
            if tensor.dtype not in _NAMES:
                raise ValueError(f"{name}: {tensor.dtype}, expected one of {', '.join(map(str, _NAMES))}")
        shapes = {name: tuple(int(extent) for extent in tensor.shape) for name, tensor in given.items()}
        dtypes = {name: _NAMES[tensor.dtype] for name, tensor in given.items()}
        sizes = {name: value for name, value in self.named if value is not None}
        return problem_of(self.library.interface, shapes, dtypes, sizes)

    def made(self, launched: Tensors, weights: Tensors, device: torch.device) -> dict[str, Tensor]:
        given = self._given(launched, weights)
        where = next(iter(given.values())).device
        made = {}
        for array in self.library.array_shapes(self.problem(launched, weights)):
            if array.role not in GIVEN:
                made[array.name] = torch.empty(array.shape, dtype=DTYPES[array.dtype], device=device)
                continue
            tensor = given.pop(array.name, None)
            if tensor is None:
                raise ValueError(f"{array.name}: missing")
            if tuple(tensor.shape) != array.shape or tensor.dtype != DTYPES[array.dtype] or tensor.device != where:
                found = f"{tuple(tensor.shape)}, {tensor.dtype} on {tensor.device}"
                raise ValueError(f"{array.name}: is {found}, expected {array.shape}, {DTYPES[array.dtype]} on {where}")
        for name in given:
            raise ValueError(f"{name}: this problem of {self.library.interface.name} has none")
        return made
