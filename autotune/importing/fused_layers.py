"""A network's convolutions or products of matrices, with what follows them as an epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from autotune.autotune_runtime.conv2d import Problem as ConvProblem
from autotune.autotune_runtime.fusion import Convolution, Graph, MatrixProduct, Operator, fuse, product_epilogue
from autotune.autotune_runtime.fusion import Fused as Epilogue
from autotune.errors import StudyError
from autotune.importing.network import plain
from autotune.operation.registry import operation
from autotune.problem import Conv2dProblem, Problem, make_problem

OPERATIONS = {"conv2d": "convolutions", "gemm": "products of matrices"}
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
        """FLOPs of all convolutions and products of matrices, as far as their sizes are known."""
        return self.served_flops + sum(each.flops or 0 for each in self.left_out)

    @property
    def count(self) -> int:
        """How many of the operation there are, of all kinds."""
        return len(self.fused) + sum(not each.other for each in self.left_out)


def findings(network: Graph, *, op: str = "conv2d", residuals: bool = True) -> Findings:
    """Every convolution of a network, or every product of matrices; without `residuals` none takes an addition."""
    checked = _checked(network)
    fused = {each.at: each for each in fuse(checked, residuals=residuals, all_ranks=True)}
    taken: list[Fused] = []
    left_out: list[Unsupported] = []
    for at, operator in enumerate(checked.operators):
        found: Fused | Unsupported | None = None
        if operator.product is not None:
            found = _product(checked, at, operator.product, op)
        elif operator.convolution is not None:
            found = _convolution(operator.convolution, fused.get(at), op)
        if isinstance(found, Fused):
            taken.append(found)
        elif found is not None:
            left_out.append(found)
    images = network.inputs[0][0] if network.inputs and network.inputs[0] else None
    return Findings(op, images, tuple(taken), tuple(left_out))


def _convolution(found: Convolution, fused: Epilogue | None, op: str) -> Fused | Unsupported:
    if op != "conv2d":
        return Unsupported(plain(found.label), _OTHER.format(OPERATIONS["conv2d"], "conv2d"), found.flops, other=True)
    if fused is None:
        return Unsupported(plain(found.label), plain(found.why_not, 1000), found.flops)
    if found.problem is None:
        return Fused(
            plain(found.label), _beyond_conv2d(found.operation, {**found.sizes, "epilogue": fused.epilogues[0]})
        )
    return Fused(plain(found.label), _problem(replace(found.problem, epilogue=fused.epilogues[0])))


def _product(network: Graph, at: int, found: MatrixProduct, op: str) -> Fused | Unsupported:
    if op != "gemm":
        return Unsupported(plain(found.label), _OTHER.format(OPERATIONS["gemm"], "gemm"), found.flops, other=True)
    if found.why_not:
        return Unsupported(plain(found.label), found.why_not, found.flops)
    words = {"dtype": found.dtype, "transposes": found.transposes, "epilogue": product_epilogue(network, at, found)}
    try:
        return Fused(plain(found.label), make_problem(operation("gemm"), {**found.sizes, **words}))
    except StudyError as error:
        return Unsupported(plain(found.label), plain(str(error), 1000), found.flops)


_OTHER = "{}, which --op {} imports"


def _checked(network: Graph) -> Graph:
    """The network without the problems of convolutions that studies refuse."""
    return replace(network, operators=tuple(map(_checked_operator, network.operators)))


def _checked_operator(operator: Operator) -> Operator:
    found = operator.convolution
    if found is None or (found.problem is None and not found.sizes):
        return operator
    try:
        if found.problem is None:
            _beyond_conv2d(found.operation, found.sizes)
        else:
            _problem(found.problem)
    except StudyError as error:
        return replace(operator, convolution=replace(found, problem=None, why_not=str(error), sizes={}))
    return operator


def _beyond_conv2d(name: str, sizes: Mapping[str, int | str]) -> Problem:
    """Raises StudyError."""
    return make_problem(operation(name), sizes)


def _problem(of: ConvProblem) -> Conv2dProblem:
    """Raises StudyError."""
    return Conv2dProblem(**asdict(of))
