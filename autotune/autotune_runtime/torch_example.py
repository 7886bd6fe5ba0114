"""A network that runs on an example: with which arguments, and what each of its parts is given then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from .torch_runtime import TrainingMode


def refuse_training(module: nn.Module) -> None:
    """Raise TrainingMode where some part of a network trains."""
    for name, part in module.named_modules():
        if part.training:
            where = f"its part {name}" if name else "the network"
            raise TrainingMode(f"{where} is in training mode; call eval() first: tuned kernels have no backward pass")


def example_arguments(module: nn.Module, example: object) -> tuple[object, ...]:
    """The arguments of a call: a tensor, a tuple of arguments, or the sizes of a tensor, which is made of noise.

    The noise is stored channels-last where filters are.
    """
    if isinstance(example, Tensor):
        return (example,)
    if not isinstance(example, (tuple, list)) or not example:
        raise TypeError(f"example: expected a tensor, a tuple of arguments or the sizes of a tensor, got {example!r}")
    if all(isinstance(size, int) for size in example):
        like = next(module.parameters(), torch.empty(0))
        noise = torch.randn(tuple(example), device=like.device, dtype=like.dtype)
        if noise.dim() == 4 and any(is_channels_last(conv.weight) for conv in convolutions(module).values()):
            noise = noise.contiguous(memory_format=torch.channels_last)
        return (noise,)
    return tuple(example)


@dataclass(frozen=True, slots=True)
class ExampleRun:
    """What a run came to: outputs, and what else the network may have written."""

    outputs: object
    arguments: list[Tensor]
    """those that are tensors, as they were afterwards"""
    buffers: dict[str, Tensor]
    """by their paths, as they were afterwards"""


def run(network: nn.Module, arguments: tuple[object, ...]) -> ExampleRun:
    """Run a network on an example: arguments, buffers and random numbers are as they were afterwards."""
    with undisturbed(network, arguments) as given:
        outputs = network(*given)
        return ExampleRun(outputs, tensors_of(given), dict(network.named_buffers()))


@contextmanager
def undisturbed(network: nn.Module, arguments: tuple[object, ...]) -> Iterator[tuple[object, ...]]:
    """Copies of arguments, for a while in which a network has copies of its buffers; random numbers are given back."""
    gpus = {tensor.device for tensor in tensors_of(arguments) if tensor.is_cuda}
    with _copied_buffers(network), torch.random.fork_rng(gpus):
        yield copied(arguments)


def copied(arguments: tuple[object, ...]) -> tuple[object, ...]:
    """The arguments of a call with copies of their tensors; of one that is given twice there is one."""
    copies = {id(tensor): tensor.clone() for tensor in tensors_of(arguments)}
    made: tuple[object, ...] = tree_map(lambda given: copies.get(id(given), given), arguments)
    return made


def tensors_of(value: object) -> list[Tensor]:
    """The tensors in tuples, lists and dictionaries."""
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor)]


@contextmanager
def _copied_buffers(network: nn.Module) -> Iterator[None]:
    """Give a network copies of its buffers for a while."""
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
    """The network with another part in the place of one, by every path; the other itself where the one is all of it."""
    for parent in [*network.modules()]:
        for name, child in [*parent._modules.items()]:
            if child is part:
                setattr(parent, name, other)
    return other if network is part else network


def convolutions(module: nn.Module) -> dict[str, nn.Conv2d]:
    """By their paths, in the order of the network's modules."""
    return {name: part for name, part in module.named_modules() if isinstance(part, nn.Conv2d)}


def has_hooks(part: nn.Module) -> bool:
    """Whether a call of a part of a network runs more than its forward."""
    return bool(part._forward_hooks or part._forward_pre_hooks)


def changes_are_counted(part: nn.Module) -> bool:
    """Whether PyTorch counts changes of a network's tensors: it does not of inference tensors."""
    return not any(each.is_inference() for each in (*part.parameters(), *part.buffers()))


def is_channels_last(x: Tensor) -> bool:
    """Whether a tensor is stored NHWC; one that could be either is NCHW."""
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
