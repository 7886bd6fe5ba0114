"""Run a network on an example without side effects on its state, and inspect its parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_flatten, tree_map

from .torch_call import LAST
from .torch_runtime import TrainingMode


def refuse_training(module: nn.Module) -> None:
    """Raise TrainingMode if any part of a network is in training mode."""
    for name, part in module.named_modules():
        if part.training:
            where = f"its part {name}" if name else "the network"
            raise TrainingMode(f"{where} is in training mode; call eval() first: tuned kernels have no backward pass")


def examples_of(example: object) -> list[object]:
    """Return the examples in a list of several, or a single example as a list."""
    several = isinstance(example, list) and not all(isinstance(each, int) for each in example)
    return [*example] if several and isinstance(example, list) else [example]


def example_arguments(module: nn.Module, example: object) -> tuple[object, ...]:
    """Return a call's arguments from a tensor, a tuple of arguments, or the sizes of a tensor of random noise.

    If the filters of a convolution are channels-last, so is the noise. Raises TypeError for other examples.
    """
    if isinstance(example, Tensor):
        return (example,)
    if not isinstance(example, (tuple, list)) or not example:
        raise TypeError(f"example: expected a tensor, a tuple of arguments or the sizes of a tensor, got {example!r}")
    if all(isinstance(size, int) for size in example):
        like = next(module.parameters(), torch.empty(0))
        noise = torch.randn(tuple(example), device=like.device, dtype=like.dtype)
        if noise.dim() in LAST and any(is_channels_last(conv.weight) for conv in convolutions(module).values()):
            noise = noise.contiguous(memory_format=LAST[noise.dim()])
        return (noise,)
    return tuple(example)


@dataclass(frozen=True, slots=True)
class ExampleRun:
    """The result of a run: the outputs, and other tensors that the network may have written."""

    outputs: object
    arguments: list[Tensor]
    """the tensors among the arguments, after the run"""
    buffers: dict[str, Tensor]
    """buffers by path, after the run"""


def run(network: nn.Module, arguments: tuple[object, ...]) -> ExampleRun:
    """Run a network on an example, leaving arguments, buffers and the random state unchanged."""
    with undisturbed(network, arguments) as given:
        outputs = network(*given)
        return ExampleRun(outputs, tensors_of(given), dict(network.named_buffers()))


@contextmanager
def undisturbed(network: nn.Module, arguments: tuple[object, ...]) -> Iterator[tuple[object, ...]]:
    """Yield copies of the arguments for a block in which the network has copies of its buffers.

    After the block, the random state is restored.
    """
    gpus = {tensor.device for tensor in tensors_of(arguments) if tensor.is_cuda}
    with _copied_buffers(network), torch.random.fork_rng(gpus):
        yield copied(arguments)


def copied(arguments: tuple[object, ...]) -> tuple[object, ...]:
    """Return a call's arguments with copies of their tensors. A tensor that occurs twice is copied once."""
    copies = {id(tensor): tensor.clone() for tensor in tensors_of(arguments)}
    made: tuple[object, ...] = tree_map(lambda given: copies.get(id(given), given), arguments)
    return made


def tensors_of(value: object) -> list[Tensor]:
    """Return the tensors in nested tuples, lists and dictionaries."""
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor)]


@contextmanager
def _copied_buffers(network: nn.Module) -> Iterator[None]:
    """Give a network copies of its buffers inside the block."""
    places = [
        (part._buffers, name, buffer)
        for part in network.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    copies = {id(buffer): buffer.clone() for _, _, buffer in places}
    for buffers, name, buffer in places:
        buffers[name] = copies[id(buffer)]
    try:
        yield
    finally:
        for buffers, name, buffer in places:
            buffers[name] = buffer


def replaced(network: nn.Module, part: nn.Module, other: nn.Module) -> nn.Module:
    """Replace a part of the network with another module, at every path, and return the changed network.

    If the part is the whole network, the other module itself is returned.
    """
    for parent in [*network.modules()]:
        for name, child in [*parent._modules.items()]:
            if child is part:
                setattr(parent, name, other)
    return other if network is part else network


def convolutions(module: nn.Module) -> dict[str, _ConvNd]:
    """Return a network's convolutions by path, in the order of its modules."""
    return {name: part for name, part in module.named_modules() if isinstance(part, _ConvNd)}


def has_hooks(part: nn.Module) -> bool:
    """Return whether calling a part of a network runs forward hooks."""
    return bool(part._forward_hooks or part._forward_pre_hooks)


def has_hooked_leaf(network: nn.Module) -> bool:
    """Whether any part without children has forward hooks."""
    return any(has_hooks(part) and not [*part.children()] for part in network.modules())


def changes_are_counted(part: nn.Module) -> bool:
    """Return whether PyTorch counts changes to a module's tensors, which requires that none is an inference tensor."""
    return not any(each.is_inference() for each in (*part.parameters(), *part.buffers()))


def is_channels_last(x: Tensor) -> bool:
    """Return whether a tensor is stored channels-last and isn't contiguous in both layouts."""
    return x.dim() in LAST and x.is_contiguous(memory_format=LAST[x.dim()]) and not x.is_contiguous()
