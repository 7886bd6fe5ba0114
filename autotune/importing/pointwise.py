"""Elementwise operators, and the activations that kernels have, told by what they compute, not by how it is written.

A file may have SiLU as one operator or as x * sigmoid(x), GELU as five: they are the same function of x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from autotune.importing.network import Floats, Function, Network, Operator, Shape

Unary: TypeAlias = Callable[[Floats], Floats]

MOST_OPERATORS = 16
"""Behind a tensor that are looked at: GELU written out has five."""
_SAMPLES = np.concatenate([np.linspace(-12.0, 12.0, 481), np.array([-60.0, 60.0])])
_CLOSE = 1e-5  # files have float32 constants; the two kinds of GELU differ by 5e-4


def clipped(least: float | None, most: float | None) -> Unary:
    """x between two numbers, each of which may be missing."""
    return lambda x: np.clip(x, -np.inf if least is None else least, np.inf if most is None else most)


def leaky_relu(slope: float) -> Unary:
    """x, below 0 times a slope."""
    return lambda x: np.where(x < 0, slope * x, x)


def hard_sigmoid(slope: float = 1 / 6, offset: float = 0.5) -> Unary:
    """A line between 0 and 1."""
    return lambda x: np.clip(slope * x + offset, 0.0, 1.0)


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x))"""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def erf(x: Floats) -> Floats:
    """The error function."""
    return np.array([math.erf(each) for each in x])


def gelu(x: Floats) -> Floats:
    """x times the normal distribution's share below x."""
    return np.asarray(0.5 * x * (1 + erf(x / math.sqrt(2))))


def gelu_tanh(x: Floats) -> Floats:
    """GELU as Hendrycks and Gimpel (2016) approximate it."""
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


ACTIVATIONS: Mapping[str, Unary] = {
    "relu": clipped(0.0, None),
    "relu6": clipped(0.0, 6.0),
    "silu": lambda x: x * sigmoid(x),
    "hardswish": lambda x: x * hard_sigmoid()(x),
    "sigmoid": sigmoid,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "leaky_relu": leaky_relu(0.01),
}
"""By the word that ends an epilogue's name."""


def of_one(function: Unary) -> Function:
    """A function of the only tensor that an operator reads."""
    return lambda read: function(read[0])


@dataclass(frozen=True, slots=True)
class Operand:
    """What an operator of two operands is given."""

    tensor: str = ""
    """its name; empty for a constant"""
    shape: Shape = ()
    number: float | None = None
    """of a constant that is one known number"""


def binary(function: np.ufunc, one: Operand, other: Operand, writes: str, shape: Shape) -> Operator:
    """An elementwise operator of two operands, which makes a tensor of this shape."""
    reads = tuple(each.tensor for each in (one, other) if each.tensor)
    if len(reads) == 2:
        alike = one.shape == other.shape == shape and None not in shape
        kind = "addition" if function is np.add and one.tensor != other.tensor and alike else "other"
        return Operator(reads, (writes,), kind, lambda read: np.asarray(function(read[0], read[1])))
    constant, first = (other, False) if one.tensor else (one, True)
    scales = function in (np.add, np.subtract, np.multiply) or (function is np.divide and not first)
    kind = "affine" if scales and _per_channel(constant.shape, shape) else "other"
    if constant.number is None:
        return Operator(reads, (writes,), kind)
    number = constant.number

    def computed(x: Floats) -> Floats:
        return np.asarray(function(number, x) if first else function(x, number))

    return Operator(reads, (writes,), kind, of_one(computed))


def _per_channel(constant: Shape, made: Shape) -> bool:
    """Whether a constant has one number for each channel of [N, C, H, W], or one for all."""
    if len(made) != 4 or len(constant) > 4:
        return False
    aligned = (*(1,) * (4 - len(constant)), *constant)
    return (aligned[0], aligned[2], aligned[3]) == (1, 1, 1) and aligned[1] in (1, made[1])


def activation_behind(network: Network, tensor: str) -> str:
    """The word of the activation that is all that becomes of a tensor; empty where there is none."""
    if tensor in network.outputs:
        return ""
    values = {tensor: _SAMPLES}
    parts: list[int] = []
    waiting = set(network.readers.get(tensor, ()))
    while waiting and len(parts) < MOST_OPERATORS:
        at = min(waiting)
        waiting.discard(at)
        operator = network.operators[at]
        if operator.function is None or any(name not in values for name in operator.reads):
            continue
        with np.errstate(all="ignore"):
            made = operator.function([values[name] for name in operator.reads])
        values[operator.writes[0]] = made
        parts.append(at)
        word = next((word for word, known in ACTIVATIONS.items() if _same(known(_SAMPLES), made)), "")
        if word and _alone(network, values, parts):
            return word
        waiting.update(network.readers.get(operator.writes[0], ()))
    return ""


def _alone(network: Network, values: Mapping[str, Floats], parts: list[int]) -> bool:
    """Whether nothing but the parts reads what they read, and each but the last is read."""
    inside = [name for name in values if name not in network.operators[parts[-1]].writes]
    return all(
        name not in network.outputs and network.readers.get(name, ()) and {*network.readers[name]} <= {*parts}
        for name in inside
    )


def _same(known: Floats, made: Floats) -> bool:
    return known.shape == made.shape and bool(np.allclose(known, made, rtol=_CLOSE, atol=_CLOSE))
