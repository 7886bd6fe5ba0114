"""Layer, group and RMS norms in PyTorch, by PyTorch and by the operator `autotune_runtime::norm`.

The operator's x is [n, pixels, C], as the kernels have it; the modules take PyTorch's shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from .activations import BY_WORD
from .network_interfaces import NORM_INTERFACE
from .norms import NormProblem
from .torch_call import STORED, Call
from .torch_convolution import activated
from .torch_exact import MOST_ELEMENTS
from .torch_operator import Operator
from .torch_runtime import TrainingMode

_TOLERANCE = 2e-5  # of kernels, before the output is rounded: `errors` of the operation's declaration


def normalised(x: Tensor, weight: Tensor | None, bias: Tensor | None, problem: NormProblem) -> Tensor:
    """PyTorch's norm of x [N, C, ...], or of rows of x [..., C] if the problem has no groups."""
    eps = problem.eps_e12 * 1e-12
    if problem.groups is not None:
        return functional.group_norm(x, problem.groups, weight, bias, eps)
    if problem.second:
        rows = normalised(x.movedim(1, -1), weight, bias, replace(problem, second=False))
        return rows.movedim(-1, 1)
    rows, shape = x.reshape(-1, problem.channels), (problem.channels,)
    if problem.kind == "rms":
        y = functional.rms_norm(rows, shape, weight, eps).view(x.shape)
        return y if bias is None else y + bias
    return functional.layer_norm(rows, shape, weight, bias, eps).view(x.shape)


def _by_pytorch(call: Call, tensors: Mapping[str, Tensor]) -> Tensor:
    """A call by PyTorch's operators."""
    x, named = tensors["x"], dict(call.arguments)
    images = x.movedim(-1, 1)  # rows are images of one pixel
    words = ("", str(named["kind"]), str(named["epilogue"]))
    groups = None if named["kind"] == "rms" else int(named["groups"])
    problem = NormProblem(tuple(images.shape), x.shape[-1], groups, int(named["eps_e12"]), *words)
    y = normalised(x if groups is None else images, tensors.get("weight"), tensors.get("bias"), problem)
    return activated(y if groups is None else y.movedim(1, -1).contiguous(), problem.activation)


NORM = Operator(NORM_INTERFACE, "norm", _by_pytorch)


class Norm(nn.Module):
    """A norm that PyTorch computes, without the activation after it."""

    operator = NORM

    def __init__(
        self, problem: NormProblem, weight: nn.Parameter | None, bias: nn.Parameter | None, device: torch.device
    ) -> None:
        super().__init__()
        self.weight, self.bias, self.device = weight, bias, device
        self.problem = problem
        self.eval()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in PyTorch's norms, by which it may be called
        """Compute y from x, both [N, C, ...] or [..., C]."""
        return normalised(input, self.weight, self.bias, self.problem)

    def tuned(self, epilogue: str, library: str | Path) -> TunedNorm:
        """The same norm by a library's kernel, with this epilogue."""
        return TunedNorm(self, replace(self.problem, epilogue=epilogue), library)

    def extra_repr(self) -> str:
        """What `print` shows."""
        of = self.problem
        return ", ".join((*filter(None, of.shapes), of.kind, f"eps {of.eps_e12 * 1e-12:g}"))


class TunedNorm(Norm):
    """A norm that runs a library's kernel on inputs of the shape it was made for, with any first size.

    PyTorch's norm computes inputs of another shape or dtype or on another type of device, and, with one warning, more
    rows or images at once than the kernel supports. Changes of the parameters are noticed as by a TunedConvolution.
    """

    def __init__(self, norm: Norm, problem: NormProblem, library: str | Path) -> None:
        """Take over a norm's parameters; `problem` determines shapes and epilogue."""
        super().__init__(problem, norm.weight, norm.bias, norm.device)
        self._sizes: tuple[int, ...] | None = problem.x[1:]
        self._dtype = STORED[problem.dtype]
        self._call = Call(str(library), tuple(problem.arguments.items()), or_pytorch=True).text

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Compute y from x, both [N, C, ...] or [..., C]."""
        x, weights, of = input, (self.weight, self.bias), self.problem
        same_dtype = all(each is None or each.dtype == self._dtype for each in (x, *weights))
        if x.shape[1:] != self._sizes or not same_dtype or NORM.runtime_of(x.device) is None:
            return self.by_pytorch(x)
        last = x.movedim(1, -1) if of.layout == "nhwc" else x
        stored = last.reshape(-1, 1, of.channels) if of.groups is None else last.reshape(len(x), -1, of.channels)
        y: object = None
        if not torch.compiler.is_dynamo_compiling():
            y = NORM.call_cached(self._call, (stored,), weights)
        if y is None:
            y = NORM(stored, *weights, self._call)
        made = cast("Tensor", y).view(last.shape)
        return made.movedim(-1, 1) if of.layout == "nhwc" else made

    def by_pytorch(self, x: Tensor) -> Tensor:
        """Compute the same with PyTorch's operators."""
        return activated(super().forward(x), self.problem.activation)

    def error(self, x: Tensor, *, y: Tensor, bound: float) -> float:
        """The largest error of results y, compared with PyTorch's in float64, relative to what is allowed there.

        Before its activation and rounding a result may be wrong by `bound` times the tolerance of the operation.
        """
        step = max(1, MOST_ELEMENTS // max(1, x[0].numel()))
        return max(self._error(*part, bound) for part in zip(x.split(step), y.split(step), strict=True))

    def _error(self, x: Tensor, y: Tensor, bound: float) -> float:
        one = torch.ones((), dtype=torch.float64, device=x.device)
        weight, bias = (None if each is None else each.double() for each in (self.weight, self.bias))
        exact = normalised(x.double(), weight, bias, self.problem)
        axes = (-1, *(1,) * (x.dim() - 2)) if self.problem.layout == "nhwc" else (-1,)
        sizes = [each.abs().view(axes) for each in (one if weight is None else weight, bias) if each is not None]
        allowed, of, word = (
            sum(sizes, exact.abs()).mul_(bound * _TOLERANCE),
            torch.finfo(y.dtype),
            self.problem.activation,
        )
        if word:
            exact = activated(exact, word)
            allowed = BY_WORD[word].steepest * allowed + 8 * 2.0**-24
        allowed += of.eps / 2 * exact.abs() + of.tiny * of.eps
        return float((y.double() - exact).abs().div_(allowed).amax().nan_to_num(nan=torch.inf))

    def leave_to_pytorch(self) -> None:
        """Run PyTorch's operators from now on."""
        self._sizes = None

    def train(self, mode: bool = True) -> TunedNorm:  # noqa: FBT001, FBT002 - as nn.Module has it
        """Raise TrainingMode unless `mode` is False."""
        if mode:
            raise TrainingMode("a TunedNorm is for inference alone: train the network that it was converted from")
        return super().train(mode)

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{super().extra_repr()}, tuned, epilogue {self.problem.epilogue}"
