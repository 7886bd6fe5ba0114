"""A network's convolutions with what follows them: batch norm folded, bias, residual and activation as an epilogue."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.autotune_conv2d.conv2d import epilogue_name
from autotune.importing.network import Network
from autotune.importing.pointwise import activation_behind
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


def findings(network: Network, *, residuals: bool) -> Findings:
    """Every convolution of a network; without `residuals` none takes an addition.

    Of two convolutions that meet in an addition the one that is computed last takes it: the other is its residual.
    """
    fused: list[Fused] = []
    left_out: list[LeftOut] = []
    taken: set[str] = set()
    for operator in reversed(network.operators):
        if operator.product_flops:
            left_out.append(LeftOut(operator.label, NO_CONVOLUTION, operator.product_flops))
        if operator.convolution is None:
            continue
        found = operator.convolution
        if found.problem is None:
            left_out.append(LeftOut(found.label, found.why_not, found.flops))
        else:
            epilogue = _epilogue(network, operator.writes[0], found.problem, taken, residuals=residuals)
            fused.append(Fused(found.label, replace(found.problem, epilogue=epilogue)))
    return Findings(tuple(reversed(fused)), tuple(reversed(left_out)))


def _epilogue(network: Network, tensor: str, of: Conv2dProblem, taken: set[str], *, residuals: bool) -> str:
    """What a kernel does behind a convolution's sums; additions that it takes are noted.

    Where something follows a convolution without a bias, the kernel's bias is zeros, as `convert` has it.
    """
    biased, residual = of.epilogue != "none", False
    while not (word := activation_behind(network, tensor)):
        reader = network.only_reader(tensor)
        if reader is None:
            break
        if reader.kind == "affine" and not residual:
            biased = True
        elif reader.kind == "addition" and residuals and not residual and reader.writes[0] not in taken:
            residual = True
            taken.add(reader.writes[0])
        elif reader.kind != "copy":
            break
        tensor = reader.writes[0]
    return epilogue_name(residual=residual, activation=word) if biased or residual or word else "none"
