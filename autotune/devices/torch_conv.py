"""Convolutions and filter gradients by PyTorch's operators, for `torch_baseline` to time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from autotune.problem import Problem
from autotune.trial import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


def inputs(problem: Problem, layout: str, random: Callable[..., torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    """Make the inputs in a layout, in the shapes that PyTorch's operator takes: x, w, bias, z, cache, scale, shift.

    For a filter gradient, they are x, w and dy; for a data gradient with an epilogue, x, w, no bias, z, the mask and
    the activation's input.
    """
    import torch

    axes = _axes(problem.names())
    sizes = {name: int(value) for name, value in problem.names().items() if isinstance(value, int)}
    last = torch.channels_last_3d if len(axes) == 3 else torch.channels_last
    memory_format = last if layout == "nhwc" else torch.contiguous_format

    def laid_out(first: int, second: int, extents: str) -> torch.Tensor:
        shape = (first, second, *(sizes[extents[3 - len(axes) + place]] for place in range(len(axes))))
        return random(*shape).contiguous(memory_format=memory_format)

    x = laid_out(sizes["n"], sizes["c"], "dhw")
    first, second = ("c", "k") if problem.names().get("transposed") else ("k", "c")
    w = laid_out(sizes[first], sizes[second] // sizes["groups"], "trs")
    if problem.has("dw"):
        return x, w, laid_out(sizes["n"], sizes["k"], "opq")
    bias = random(sizes["k"]) if problem.has("bias") else None
    z = laid_out(sizes["n"], sizes["k"], "opq") if problem.has("z") else None
    if problem.has("mask") or problem.has("saved"):
        read = laid_out(sizes["n"], sizes["k"], "opq")
        return x, w, bias, z, *((read, None) if problem.has("mask") else (None, read))
    cache = None
    if problem.has("cache"):
        cache = random(sizes["n"], sizes["c"], sizes["cache_d"], sizes["h"], sizes["w"])
        cache = cache.contiguous(memory_format=memory_format)
    factors = (random(sizes["n"], sizes["c"]) if problem.has(name) else None for name in ("scale", "shift"))
    before = (cache, *factors)
    return (x, w, bias, z, *before) if any(each is not None for each in before) else (x, w, bias, z)


def operators(problem: Problem, *, fused: bool) -> Callable[..., torch.Tensor]:
    """Return a function that calls cuDNN through PyTorch: one fused operator, or a convolution and pointwise kernels.

    Inductor calls the same fused operator. As in PyTorch's own code, unequal padding is a copy with `pad`. Frames
    before x are a copy with `cat`.
    """
    import torch
    from torch.nn import functional

    from autotune.autotune_runtime.torch_convolution import activated, prepared

    names = problem.names()
    axes, activation = _axes(names), str(names.get("activation", ""))
    sizes = {name: int(value) for name, value in names.items() if isinstance(value, int)}
    stride, dilation = ([sizes[f"{name}_{axis}"] for axis in axes] for name in ("stride", "dilation"))
    if names.get("transposed"):
        return _transposed(sizes, axes, stride, dilation, activation)
    front, behind = ([sizes[f"pad_{axis}{end}"] for axis in axes] for end in ("", "_end"))
    pad = [min(pair) for pair in zip(front, behind, strict=True)]
    more = [each - common for *sides, common in reversed(list(zip(front, behind, pad, strict=True))) for each in sides]
    convolution = functional.conv3d if len(axes) == 3 else functional.conv2d
    groups = sizes["groups"]

    def filter_gradient(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(x, more) if any(more) else x
        of = (stride, pad, dilation, False, [0] * len(axes), groups)
        _, dw, _ = torch.ops.aten.convolution_backward(dy, padded, w, None, *of, [False, True, False])
        gradient: torch.Tensor = dw
        return gradient

    def separate(
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None,
        z: torch.Tensor | None,
        cache: torch.Tensor | None = None,
        scale: torch.Tensor | None = None,
        shift: torch.Tensor | None = None,
    ) -> torch.Tensor:
        x = prepared(x, cache, scale, shift, str(names.get("prologue", "")))
        y = convolution(functional.pad(x, more) if any(more) else x, w, bias, stride, pad, dilation, groups)
        if z is not None:
            y += z
        return activated(y, activation)

    def in_one(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, z: torch.Tensor | None) -> torch.Tensor:
        if z is not None:
            return torch.cudnn_convolution_add_relu(x, w, z, 1.0, bias, stride, pad, dilation, groups)
        return torch.cudnn_convolution_relu(x, w, bias, stride, pad, dilation, groups)

    if problem.has("dw"):
        return filter_gradient
    return in_one if fused else separate


def _transposed(
    sizes: Mapping[str, int], axes: str, stride: Sequence[int], dilation: Sequence[int], activation: str
) -> Callable[..., torch.Tensor]:
    """Return a function that calls PyTorch's transposed convolution, followed by pointwise kernels."""
    import torch
    from torch.nn import functional

    from autotune.autotune_runtime.torch_convolution import activated, differentiated

    padding, output_padding = ([sizes[f"{name}_{axis}"] for axis in axes] for name in ("padding", "output_padding"))
    convolution = functional.conv_transpose3d if len(axes) == 3 else functional.conv_transpose2d
    groups = sizes["groups"]

    def separate(
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None,
        z: torch.Tensor | None,
        mask: torch.Tensor | None = None,
        saved: torch.Tensor | None = None,
    ) -> torch.Tensor:
        y = convolution(x, w, bias, stride, padding, output_padding, groups, dilation)
        if z is not None:
            y += z
        y = activated(y, activation) if saved is None else differentiated(y, activation, saved)
        return y if mask is None else torch.where(mask > 0, y, 0)

    return separate


def _axes(names: Mapping[str, Value]) -> str:
    """Return the axes of PyTorch's operator. As in PyTorch, a 1-D convolution uses two axes."""
    return "dhw" if names["deep"] else "hw"
