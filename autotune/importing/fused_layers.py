"""A network's convolutions or matrix products, with what follows them as an epilogue."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.autotune_runtime.convolution import Problem as ConvProblem
from autotune.autotune_runtime.fusion import (
    Convolution,
    Graph,
    MatrixProduct,
    Operator,
    fuse,
    norm_epilogue,
    product_epilogue,
)
from autotune.autotune_runtime.fusion import Fused as Epilogue
from autotune.autotune_runtime.norms import Norm
from autotune.errors import StudyError
from autotune.importing.network import plain
from autotune.operation.registry import operation
from autotune.problem import Problem, make_problem

OPERATIONS = {"conv2d": "convolutions", "gemm": "matrix products", "norm": "norms"}
"""The operation of a study to the operators that it covers in a network."""


@dataclass(frozen=True, slots=True)
class Fused:
    """A convolution or a product that a kernel can compute, with all that the kernel takes in."""

    label: str
    problem: Problem


@dataclass(frozen=True, slots=True)
class Unsupported:
    """An operator that is in no layer of the study, and the reason."""

    label: str
    why: str
    flops: int | None
    other: bool = False
    """whether it is another operation's"""


@dataclass(frozen=True, slots=True)
class Findings:
    """The layers and the unsupported operators of a network, in its order."""

    op: str
    images: int | None
    fused: tuple[Fused, ...]
    left_out: tuple[Unsupported, ...]

    @property
    def served_flops(self) -> int:
        """FLOPs that kernels can compute."""
        return sum(each.problem.flops for each in self.fused)

    @property
    def flops(self) -> int:
        """FLOPs of all convolutions and matrix products, as far as their sizes are known."""
        return self.served_flops + sum(each.flops or 0 for each in self.left_out)

    @property
    def count(self) -> int:
        """How many of the operation there are, of all kinds."""
        return len(self.fused) + sum(not each.other for each in self.left_out)


def findings(network: Graph, *, op: str = "conv2d", residuals: bool = True) -> Findings:
    """Every convolution of a network, or every product of matrices, or every norm by statistics of its input.

    Without `residuals` no convolution takes an addition. Norms are so few FLOPs that they are compared only with norms.
    """
    checked = replace(network, operators=tuple(map(_checked, network.operators)))
    fused = {each.at: each for each in fuse(checked, residuals=residuals)}
    layers: list[Fused] = []
    left_out: list[Unsupported] = []
    for at, operator in enumerate(checked.operators):
        layer: Fused | Unsupported | None = None
        if op == "norm":
            layer = None if operator.norm is None else _norm(checked, at, operator.norm)
        elif operator.product is not None:
            layer = _product(checked, at, operator.product, op)
        elif operator.convolution is not None:
            layer = _convolution(operator.convolution, fused.get(at), op)
        if isinstance(layer, Fused):
            layers.append(layer)
        elif layer is not None:
            left_out.append(layer)
    images = network.inputs[0][0] if network.inputs and network.inputs[0] else None
    return Findings(op, images, tuple(layers), tuple(left_out))


def _convolution(convolution: Convolution, fused: Epilogue | None, op: str) -> Fused | Unsupported:
    label = plain(convolution.label)
    if op != "conv2d":
        return Unsupported(label, _OTHER.format(OPERATIONS["conv2d"], "conv2d"), convolution.flops, other=True)
    if fused is None:
        return Unsupported(label, plain(convolution.why_not, 1000), convolution.flops)
    return Fused(label, _problem(fused.problems[0]))


def _product(network: Graph, at: int, product: MatrixProduct, op: str) -> Fused | Unsupported:
    label = plain(product.label)
    if op != "gemm":
        return Unsupported(label, _OTHER.format(OPERATIONS["gemm"], "gemm"), product.flops, other=True)
    if product.why_not:
        return Unsupported(label, product.why_not, product.flops)
    words = {"dtype": product.dtype, "transposes": product.transposes}
    words["epilogue"] = product_epilogue(network, at, product)
    try:
        return Fused(label, make_problem(operation("gemm"), {**product.sizes, **words}))
    except StudyError as error:
        return Unsupported(label, plain(str(error), 1000), product.flops)


def _norm(network: Graph, at: int, norm: Norm) -> Fused | Unsupported:
    label = plain(norm.label)
    if norm.why_not:
        return Unsupported(label, norm.why_not, norm.flops)
    words = {"epilogue": norm_epilogue(network, at, str(norm.values["epilogue"]))}
    try:
        return Fused(label, make_problem(operation("norm"), {**norm.values, **words}))
    except StudyError as error:
        return Unsupported(label, plain(str(error), 1000), norm.flops)


_OTHER = "{}, which --op {} imports"


def _checked(operator: Operator) -> Operator:
    """The operator, without the problem of its convolution if studies refuse it."""
    convolution = operator.convolution
    if convolution is None or convolution.problem is None:
        return operator
    try:
        _problem(convolution.problem)
    except StudyError as error:
        return replace(operator, convolution=replace(convolution, problem=None, why_not=str(error)))
    return operator


def _problem(of: ConvProblem) -> Problem:
    """Raises StudyError."""
    return make_problem(operation(of.operation), of.values)
