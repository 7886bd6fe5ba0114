"""Sizes in an archive of `torch.export`: numbers, and expressions of symbols that its inputs bind."""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

Size: TypeAlias = int | str
"""A number, or an expression such as Add(FloorDiv(s53, 2), 1)."""
LARGEST = 2**63 - 1
"""elements; a size or stride beyond it is unknown"""
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Max": max,
    "Min": min,
}


def size_of(text: str) -> Size:
    """Convert a size from an archive, which has SymPy's `srepr` of it, and drop the assumptions on symbols."""
    return re.sub(r"Integer\((-?\d+)\)", r"\1", re.sub(r"Symbol\('(\w+)'[^()]*\)", r"\1", text))


class UnsupportedSize(Exception):
    """Inputs are not of the sizes that an archive was exported for; the message says which."""


def bind_symbols(inputs: Mapping[str, Sequence[Size]], given: Sequence[Sequence[int]]) -> Mapping[str, int]:
    """Map the symbols in the sizes of inputs to the given sizes. Raises UnsupportedSize for other exported sizes."""
    symbols: dict[str, int] = {}
    pairs = [
        (name, size, number)
        for (name, shape), numbers in zip(inputs.items(), given, strict=True)
        for size, number in zip(shape, numbers, strict=True)
    ]
    for _, size, number in pairs:
        if isinstance(size, str) and size.isidentifier():
            symbols[size] = number
    for name, size, number in pairs:
        if evaluate(size, symbols) != number:
            raise UnsupportedSize(f"input {name} was exported with a size of {size}, not {number}")
    return symbols


def evaluate(size: Size, symbols: Mapping[str, int]) -> int | None:
    """A size as a number; None if it needs symbols or functions that are not known."""
    if isinstance(size, int):
        return size
    try:
        return _value(ast.parse(size, mode="eval").body, symbols)
    except (_Unknown, SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


class _Unknown(Exception):
    """Something in an expression that is not known here."""


def _value(part: ast.expr, symbols: Mapping[str, int]) -> int:
    match part:
        case ast.Constant(value=int(number)):
            made = number
        case ast.Name(id=name) if name in symbols:
            made = symbols[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            made = -_value(inner, symbols)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            made = _OPERATORS[type(op)](_value(left, symbols), _value(right, symbols))
        case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as arguments, keywords=[]) if name in _FUNCTIONS:
            made = functools.reduce(_FUNCTIONS[name], [_value(each, symbols) for each in arguments])
        case _:
            raise _Unknown
    if abs(made) > LARGEST:
        raise _Unknown
    return made
