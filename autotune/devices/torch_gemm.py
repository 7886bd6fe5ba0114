"""cuBLAS's matrix products through PyTorch, as contenders for the operation `gemm`.

Bias and activation are part of the product if cuBLASLt has such an epilogue; otherwise, pointwise kernels compute them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from autotune.problem import Problem

if TYPE_CHECKING:
    import torch

    Product: TypeAlias = Callable[..., torch.Tensor]
    """a function of a, b and, if the problem has one, the bias"""

LT_ACTIVATIONS = {"identity": None, "relu": False, "gelu_tanh": True}
"""The cuBLASLt epilogues that PyTorch can call, each with the argument `use_gelu` of `_addmm_activation`."""


def fuses(problem: Problem) -> bool:
    """Return whether cuBLASLt has an epilogue for the problem's bias and activation. Batches aren't supported."""
    names = problem.names()
    return names["batch"] == 1 and names["terms"] == "bias" and names["activation"] in LT_ACTIVATIONS


def inputs(problem: Problem, random: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Make a, b and, if the problem has one, the bias, in the operation's order and shapes, with `random`."""
    return tuple(random(*array.shape) for array in problem.inputs)


def product(problem: Problem, *, fused: bool) -> Product:
    """Return a function that computes y from a, b and bias, with one cuBLASLt call or a product and pointwise
    kernels.
    """
    import torch

    from autotune.autotune_runtime.torch_convolution import activated

    names = problem.names()
    word, single = str(names["activation"]), names["batch"] == 1

    def operands(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = a.mT if names["transposes"] == "tn" else a
        b = b.mT if names["transposes"] == "nt" else b
        return (a[0], b[0]) if single else (a, b)

    def separate(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        y = torch.matmul(*operands(a, b))
        if bias is not None:
            y += bias
        return activated(y, word)

    def in_one(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        gelu = LT_ACTIVATIONS[word]
        if gelu is None:
            return torch.addmm(bias, *operands(a, b))
        return torch._addmm_activation(bias, *operands(a, b), use_gelu=gelu)

    return in_one if fused else separate
