"""Elementwise operators: the function that each one computes, and its kind in a `Graph`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .activations import ACTIVATIONS
from .aten_calls import UNKNOWN, Call, TensorType
from .convolution import Shape
from .fusion import Function, Operator

BINARY: Mapping[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "maximum": max,
    "minimum": min,
    "pow": math.pow,
}
"""Functions of operators on two tensors, by their names in ATen."""


def _clipped(least: float | None, most: float | None) -> Function:
    """Return a function that limits x to an interval. None means that there is no limit at that end."""
    return lambda x: min(max(x, -math.inf if least is None else least), math.inf if most is None else most)


def _leaky_relu(slope: float) -> Function:
    return lambda x: slope * x if x < 0 else x


_UNARY: Mapping[str, Callable[[Call], Function]] = {
    "hardtanh": lambda call: _clipped(call.number("min_val", -1.0), call.number("max_val", 1.0)),
    "clamp": lambda call: _clipped(call.limit("min"), call.limit("max")),
    "clamp_min": lambda call: _clipped(call.limit("min"), None),
    "clamp_max": lambda call: _clipped(None, call.limit("max")),
    "tanh": lambda _: math.tanh,
    "erf": lambda _: math.erf,
    "exp": lambda _: math.exp,
    "neg": lambda _: operator.neg,
    "hardsigmoid": lambda _: lambda x: min(max(x / 6 + 0.5, 0.0), 1.0),
    "leaky_relu": lambda call: _leaky_relu(call.number("negative_slope", 0.01)),
}


def elementwise(call: Call) -> Function | None:
    """Return the function computed by an operator on one tensor, or None if it is unknown."""
    if call.name in _UNARY:
        return _UNARY[call.name](call)
    named = [each for each in ACTIVATIONS if each.aten == call.name]
    given = {name: call.arguments[name] for each in named for name in each.options if name in call.arguments}
    return next((each for each in named if given == dict(each.options)), named[0] if named and not given else None)


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a binary operator."""

    tensor: str = ""
    """name of the tensor; empty for a constant"""
    type: TensorType = UNKNOWN
    number: float | None = None
    """value of the operand, if it is a single known number"""


def binary(
    function: Callable[[float, float], float],
    operands: tuple[Operand, Operand],
    writes: str,
    shape: Shape,
    constants: tuple[str, ...],
) -> Operator:
    """Return an elementwise operator with two operands. `shape` is the shape of the result."""
    one, other = operands
    reads = tuple(each.tensor for each in operands if each.tensor)
    if len(reads) == 2:
        alike = one.type == other.type and one.type.shape == shape and None not in shape
        kind = "addition" if function is operator.add and one.tensor != other.tensor and alike else "other"
        return Operator(reads, (writes,), kind, function)
    constant, first = (other, False) if one.tensor else (one, True)
    scales = function in (operator.add, operator.sub, operator.mul) or (function is operator.truediv and not first)
    along = _axes_of(constant.type.shape, shape) if scales else None
    kind = "other" if along is None else "affine"
    number = constant.number
    if number is None:
        return Operator(reads, (writes,), kind, None, constants, amounts=along or ())
    known: float = number
    if known == {operator.mul: 1, operator.truediv: 1, operator.add: 0, operator.sub: 0}.get(function):
        kind = kind if first and function in (operator.truediv, operator.sub) else "copy"

    def computed(x: float) -> float:
        return function(known, x) if first else function(x, known)

    return Operator(reads, (writes,), kind, computed, constants)


def _axes_of(constant: Shape, made: Shape) -> tuple[int, ...] | None:
    """Return the axis of the result along which a constant varies: (axis,), or () if the constant is a single number.

    Returns None if it varies along several axes or doesn't fit the result, or if the result has fewer than 3 axes.
    """
    if len(made) < 3 or len(constant) > len(made):
        return None
    axes = range(len(made) - len(constant), len(made))
    along = {axis: size for axis, size in zip(axes, constant, strict=True) if size != 1}
    fits = len(along) < 2 and all(made[axis] == size for axis, size in along.items())
    return tuple(along) if fits else None
