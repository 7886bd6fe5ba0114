"""The activations of `[parts.epilogue]` as PyTorch's operators, for what is timed beside kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def activation(word: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """PyTorch's operator, in place where there is such a one."""
    import torch.nn.functional as f

    operators: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "identity": lambda y: y,
        "relu": lambda y: f.relu(y, inplace=True),
        "relu6": lambda y: f.relu6(y, inplace=True),
        "silu": lambda y: f.silu(y, inplace=True),
        "hardswish": lambda y: f.hardswish(y, inplace=True),
        "sigmoid": lambda y: y.sigmoid_(),
        "gelu": f.gelu,
        "gelu_tanh": lambda y: f.gelu(y, approximate="tanh"),
        "leaky_relu": lambda y: f.leaky_relu(y, inplace=True),
    }
    return operators[word]
