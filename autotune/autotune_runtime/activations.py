"""The activations of epilogues. The C++ and Python forms of each activation are generated from a single entry.

`in_cpp` generates the CUDA and float64 forms, also of derivatives. `activated` evaluates the expression with any set of
functions, such as NumPy's. Faster functions for kernels are written by hand in `templates/_epilogue.cuh`. This module
needs nothing but Python, because exported packages contain it, and autotune's importers, references and templates use
it.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation, which is a function of a sum v."""

    word: str
    """the last part of an epilogue's name"""
    name: str
    """class name of PyTorch's module"""
    expression: str
    """Python expression of v and the functions `min max exp erfc tanh log1p`, which C also has"""
    derivative: str
    """the derivative, as such an expression, which may contain conditions"""
    steepest: float
    """the largest absolute slope, rounded up: the activation multiplies an error of the sum by at most this factor"""
    operator: str = ""
    """name of PyTorch's operator in torch.ops.aten; empty: same as `word`"""
    options: Mapping[str, object] = field(default_factory=dict)
    """arguments of PyTorch's operator besides the tensor"""
    rounds: bool = True
    """whether the output may be inexact even if v is an integer"""

    @property
    def aten(self) -> str:
        """The name of PyTorch's operator."""
        return self.operator or self.word

    def __call__(self, v: float) -> float:
        """Apply the activation to a number."""
        return float(activated(self.word, v, SCALAR))


SCALAR: Mapping[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "exp": math.exp,
    "erfc": math.erfc,
    "tanh": math.tanh,
    "log1p": math.log1p,
}
"""The functions that expressions may call, for single numbers."""

_TANH = "tanh(0.79788456080286536 * (v + 0.044715 * v * v * v))"
ACTIVATIONS = (
    Activation("relu", "ReLU", "max(v, 0)", "1 if v > 0 else 0", 1.0, rounds=False),
    Activation("relu6", "ReLU6", "min(max(v, 0), 6)", "(1 if v > 0 else 0) * (1 if v < 6 else 0)", 1.0, rounds=False),
    Activation("silu", "SiLU", "v / (1 + exp(-v))", "(1 + v / (1 + exp(v))) / (1 + exp(-v))", 1.1),
    Activation(
        "hardswish", "Hardswish", "v * min(max(v + 3, 0), 6) / 6", "0 if v < -3 else 1 if v > 3 else v / 3 + 0.5", 1.5
    ),
    Activation("sigmoid", "Sigmoid", "1 / (1 + exp(-v))", "1 / ((1 + exp(-v)) * (1 + exp(v)))", 0.25),
    Activation(
        "gelu",
        "GELU",
        "0.5 * v * erfc(-v * 0.70710678118654752)",
        "0.5 * erfc(-v * 0.70710678118654752) + 0.39894228040143268 * v * exp(-0.5 * v * v)",
        1.13,
    ),
    Activation(
        "gelu_tanh",
        "GELU",
        f"0.5 * v * (1 + {_TANH})",
        f"0.5 * (1 + {_TANH}) + v * (1 - {_TANH} * {_TANH}) * (0.39894228040143268 + 0.053516125720401413 * v * v)",
        1.13,
        operator="gelu",
        options={"approximate": "tanh"},
    ),
    Activation("leaky_relu", "LeakyReLU", "max(v, 0.01 * v)", "1 if v > 0 else 0.01", 1.0),
)
BY_WORD = {each.word: each for each in ACTIVATIONS}


T = TypeVar("T")


def activated(word: str, v: T, functions: Mapping[str, Callable[..., object]]) -> T:
    """Apply an activation to anything with arithmetic operators; `functions` are the functions in its expression."""
    made: T = eval(_compiled(BY_WORD[word].expression), dict(functions), {"v": v})  # noqa: S307 - the table's own text
    return made


@functools.cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<activation>", "eval")


def in_cpp(expression: str, *, single: bool) -> str:
    """Return an activation's or a derivative's expression of `v` in C++, in float (`single`) or in double."""
    return _in_cpp(ast.parse(expression, mode="eval").body, "f" if single else "")


def _in_cpp(part: ast.expr, suffix: str) -> str:
    match part:
        case ast.Constant(value=number) if isinstance(number, (int, float)):
            return f"{float(number)!r}{suffix}"
        case ast.Name(id=name):
            return name
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return f"-{_in_cpp(inner, suffix)}"
        case ast.BinOp(left=left, op=op, right=right):
            return f"({_in_cpp(left, suffix)} {_OPERATORS[type(op)]} {_in_cpp(right, suffix)})"
        case ast.IfExp(test=ast.Compare(left=left, ops=[ast.Lt() | ast.Gt() as op], comparators=[right])):
            test = f"{_in_cpp(left, suffix)} {'<' if isinstance(op, ast.Lt) else '>'} {_in_cpp(right, suffix)}"
            return f"({test} ? {_in_cpp(part.body, suffix)} : {_in_cpp(part.orelse, suffix)})"
        case ast.Call(func=ast.Name(id=("min" | "max") as name), args=[left, right]) if not suffix:
            one, other = _in_cpp(left, suffix), _in_cpp(right, suffix)
            return f"({one} {'<' if name == 'max' else '>'} {other} ? {other} : {one})"  # unlike fmax, keeps a NaN
        case ast.Call(func=ast.Name(id=name), args=arguments):
            called = f"f{name}" if name in ("min", "max") else name
            return f"{called}{suffix}({', '.join(_in_cpp(each, suffix) for each in arguments)})"
        case _:
            raise ValueError(f"{ast.unparse(part)} is not part of an activation's expression")


_OPERATORS: Mapping[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
