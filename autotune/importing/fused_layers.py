"""A network's convolutions with what follows them: batch norm folded, bias, residual and activation as an epilogue."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from autotune.autotune_runtime.conv2d import Problem
from autotune.autotune_runtime.fusion import Graph, Operator, fuse
from autotune.errors import StudyError
from autotune.importing.network import plain
from autotune.problem import Conv2dProblem


@dataclass(frozen=True, slots=True)
class Fused:
    """A convolution that a kernel can compute, with all that the kernel takes in."""

    label: str
    problem: Conv2dProblem


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What no kernel computes."""

    label: str
    why: str
    flops: int | None


@dataclass(frozen=True, slots=True)
class Findings:
    """What a network consists of, in its order."""

    fused: tuple[Fused, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def served_flops(self) -> int:
        """FLOPs of the convolutions that a kernel can compute."""
        return sum(each.problem.flops for each in self.fused)

    @property
    def flops(self) -> int:
        """FLOPs of all convolutions and products of matrices, as far as their sizes are known."""
        return self.served_flops + sum(each.flops or 0 for each in self.left_out)

    @property
    def convolutions(self) -> int:
        """How many there are, of all kinds."""
        return len(self.fused) + sum(each.why != NO_CONVOLUTION for each in self.left_out)


NO_CONVOLUTION = "products of matrices, no convolutions"


def findings(network: Graph, *, residuals: bool) -> Findings:
    """Every convolution of a network; without `residuals` none takes an addition."""
    checked = _checked(network)
    fused = {each.at: each for each in fuse(checked, residuals=residuals)}
    taken: list[Fused] = []
    left_out: list[LeftOut] = []
    for at, operator in enumerate(checked.operators):
        if operator.product is not None:
            left_out.append(LeftOut(plain(operator.product.label), NO_CONVOLUTION, operator.product.flops))
        found = operator.convolution
        if found is None:
            continue
        label = plain(found.label)
        if found.problem is None:
            left_out.append(LeftOut(label, plain(found.why_not, 1000), found.flops))
        else:
            taken.append(Fused(label, _problem(replace(found.problem, epilogue=fused[at].epilogues[0]))))
    return Findings(tuple(taken), tuple(left_out))


def _checked(network: Graph) -> Graph:
    """The network without the problems of convolutions that studies refuse."""
    return replace(network, operators=tuple(map(_checked_operator, network.operators)))


def _checked_operator(operator: Operator) -> Operator:
    found = operator.convolution
    if found is None or found.problem is None:
        return operator
    try:
        _problem(found.problem)
    except StudyError as error:
        return replace(operator, convolution=replace(found, problem=None, why_not=str(error)))
    return operator


def _problem(of: Problem) -> Conv2dProblem:
    """Raises StudyError."""
    return Conv2dProblem(**asdict(of))
