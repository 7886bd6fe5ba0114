"""Concatenations along the channels in PyTorch, by PyTorch and by the operator `autotune_runtime::concat`.

The operator's tensors are [n, channels], as the kernels have them; the modules take images [N, C, ...].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from .concats import MOST_TENSORS, ConcatProblem
from .network_interfaces import CONCAT_INTERFACE
from .torch_call import STORED, Call
from .torch_convolution import activated
from .torch_exact import MOST_ELEMENTS
from .torch_operator import Operator
from .torch_runtime import TrainingMode

_EPS = 1e-5  # of a batch norm, which must not be 0
_TOLERANCE = 1e-5  # of kernels, before the output is rounded: `errors` of the operation's declaration


def concatenated(tensors: tuple[Tensor, ...], weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """PyTorch's concatenation of tensors [N, C, ...], and a batch norm of it."""
    y = torch.cat(tensors, 1)
    if weight is None:
        return y
    mean, variance = torch.zeros_like(weight), torch.full_like(weight, 1 - _EPS)
    return functional.batch_norm(y, mean, variance, weight, bias, eps=_EPS)


def _by_pytorch(call: Call, tensors: Mapping[str, Tensor]) -> Tensor:
    """A call by PyTorch's operators."""
    given = tuple(tensors[name] for i in range(MOST_TENSORS) if (name := f"x{i}") in tensors)
    problem = ConcatProblem((), (), "", str(dict(call.arguments)["epilogue"]))
    return activated(concatenated(given, tensors.get("weight"), tensors.get("bias")), problem.activation)


CONCAT = Operator(CONCAT_INTERFACE, "concat", _by_pytorch)


class Concat(nn.Module):
    """A concatenation, and a batch norm of known statistics, that PyTorch computes, without the activation after it."""

    operator = CONCAT

    def __init__(
        self, problem: ConcatProblem, weight: nn.Parameter | None, bias: nn.Parameter | None, device: torch.device
    ) -> None:
        super().__init__()
        self.weight, self.bias, self.device = weight, bias, device
        self.problem = problem
        self.eval()

    def forward(self, *tensors: Tensor) -> Tensor:
        """Compute y [N, C, ...] from tensors [N, C_i, ...]."""
        return concatenated(tensors, self.weight, self.bias)

    def tuned(self, epilogue: str, library: str | Path) -> TunedConcat:
        """The same concatenation by a library's kernel, with this epilogue."""
        return TunedConcat(self, replace(self.problem, epilogue=epilogue), library)

    def extra_repr(self) -> str:
        """What `print` shows."""
        return ", ".join(self.problem.shapes)


class TunedConcat(Concat):
    """A concatenation that runs a library's kernel on images of the shapes it was made for, any number of them.

    PyTorch computes images of other shapes or dtypes or on another type of device, and, with one warning, more images
    at once than the kernel supports. Changes of the parameters are noticed as by a TunedConvolution.
    """

    def __init__(self, concat: Concat, problem: ConcatProblem, library: str | Path) -> None:
        """Take over a concatenation's parameters; `problem` determines shapes and epilogue."""
        super().__init__(problem, concat.weight, concat.bias, concat.device)
        self._sizes: tuple[tuple[int, ...], ...] | None = tuple(shape[1:] for shape in problem.inputs)
        self._dtype = STORED[problem.dtype]
        self._call = Call(str(library), tuple(problem.arguments.items()), or_pytorch=True).text

    def forward(self, *tensors: Tensor) -> Tensor:
        """Compute y [N, C, ...] from tensors [N, C_i, ...]."""
        first, weights = tensors[0], (self.weight, self.bias)
        fits = tuple(each.shape[1:] for each in tensors) == self._sizes
        fits = fits and all(each.dtype == self._dtype and len(each) == len(first) for each in tensors)
        fits = fits and all(each is None or each.dtype == torch.float32 for each in weights)
        if not fits or CONCAT.runtime_of(first.device) is None:
            return self.by_pytorch(*tensors)
        rows: list[Tensor | None] = [each.movedim(1, -1).reshape(-1, each.shape[1]) for each in tensors]
        rows += [None] * (MOST_TENSORS - len(rows))
        y: object = None
        if not torch.compiler.is_dynamo_compiling():
            y = CONCAT.call_cached(self._call, rows, weights)
        if y is None:
            y = CONCAT(rows[0], *weights, *rows[1:], self._call)
        return cast("Tensor", y).view(len(first), *first.shape[2:], self.problem.x[1]).movedim(-1, 1)

    def by_pytorch(self, *tensors: Tensor) -> Tensor:
        """Compute the same with PyTorch's operators."""
        return activated(super().forward(*tensors), self.problem.activation)

    def error(self, *tensors: Tensor, y: Tensor, bound: float) -> float:
        """The largest error of results y, compared with PyTorch's in float64, relative to what is allowed there.

        Before rounding, a result may be wrong by `bound` times the tolerance of the operation.
        """
        step = max(1, MOST_ELEMENTS // max(1, y[0].numel()))
        parts = zip(*(each.split(step) for each in (*tensors, y)), strict=True)
        return max(self._error(*part, bound=bound) for part in parts)

    def _error(self, *tensors: Tensor, bound: float) -> float:
        *inputs, y = tensors
        weight, bias = (None if each is None else each.double() for each in (self.weight, self.bias))
        exact = concatenated(tuple(each.double() for each in inputs), weight, bias)
        exact, of = activated(exact, self.problem.activation), torch.finfo(y.dtype)
        allowed = (exact.abs() + 1).mul_(bound * _TOLERANCE) + of.eps / 2 * exact.abs() + of.tiny * of.eps
        return float((y.double() - exact).abs().div_(allowed).amax().nan_to_num(nan=torch.inf))

    def leave_to_pytorch(self) -> None:
        """Run PyTorch's operators from now on."""
        self._sizes = None

    def train(self, mode: bool = True) -> TunedConcat:  # noqa: FBT001, FBT002 - as nn.Module has it
        """Raise TrainingMode unless `mode` is False."""
        if mode:
            raise TrainingMode("a TunedConcat is for inference alone: train the network that it was converted from")
        return super().train(mode)

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{super().extra_repr()}, tuned, epilogue {self.problem.epilogue}"
