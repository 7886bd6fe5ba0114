"""A tuned layer timed interleaved with what PyTorch would run otherwise: the same work, from CUDA graphs, cold caches.

A contender's passes are recorded in one CUDA graph, each on images, filters and outputs of its own, and the caches are
written over before it is replayed. So neither Python nor launches nor what an earlier pass left in a cache is timed.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from .activations import BY_WORD
from .conv2d import Problem
from .torch_convolution import activated
from .torch_runtime import Runtime

ROUNDS = 21  # of a race; its result is their median
SAMPLE_US = 400.0  # that the passes of one sample take together: the launch of a graph is noise then
MOST_PASSES = 32  # in a sample
MOST_BYTES = 1 << 30  # that the arrays of all passes may take
WRONG = 0.05  # difference as a fraction of the largest output: more than any accuracy class rounds


@dataclass(frozen=True, slots=True)
class Work:
    """What every contender of a race computes."""

    kernel: Problem
    """what the library's kernel does of it; PyTorch's kernels do the rest behind it"""
    residual: bool
    """a tensor of the output's shape is added behind the convolution"""
    activation: str
    """the word of what follows then; empty: nothing"""

    @property
    def words(self) -> str:
        """What comes with the convolution."""
        parts = [
            *(["residual"] if self.residual else []),
            *([BY_WORD[self.activation].name] if self.activation else []),
        ]
        return f" with its {' and '.join(parts)}" if parts else ""


@dataclass(frozen=True, slots=True)
class Times:
    """Median microseconds of a pass of each contender."""

    tuned_us: float
    rivals: tuple[tuple[str, float], ...]
    """what PyTorch can run instead, by name, the fastest first"""


@dataclass(frozen=True, slots=True)
class Arrays:
    """What one pass reads: images, PyTorch's layer and the tuned one on filters of their own, and what is added."""

    x: Tensor
    conv: nn.Conv2d
    tuned: nn.Module
    z: Tensor


Pass: TypeAlias = Callable[[Arrays], Tensor]


def race(work: Work, conv: nn.Conv2d, tune: Callable[[nn.Conv2d], nn.Module], runtime: Runtime) -> Times | None:
    """Time a convolution's tuned layer, which `tune` makes, and PyTorch's ways; None where it disagrees with PyTorch.

    Operators that PyTorch lacks here, or that compute something else, are left out.
    """
    device = conv.weight.device
    first = _arrays(work, conv, tune)
    expected = _separate(work, first).float()

    def agrees(run: Pass, *, clipped: bool = False) -> bool:
        wanted = torch.relu(expected) if clipped else expected
        return bool((run(first).float() - wanted).abs().max() <= WRONG * wanted.abs().max())

    contenders: dict[str, Pass] = {
        "tuned": partial(_tuned, work),
        f"PyTorch's{work.words or ' convolution'}": partial(_separate, work),
    }
    if not agrees(contenders["tuned"]):
        return None
    fused, followed = _fused(work), _with_one_kernel_behind(work, runtime)
    if fused is not None:
        with suppress(RuntimeError):  # cuDNN has no such kernel for this layer, or there is no cuDNN
            if agrees(fused, clipped=True):
                contenders[f"cuDNN's fused{work.words}{'' if work.activation else ' with a ReLU besides'}"] = fused
    if followed is not None:
        with suppress(RuntimeError):  # there is no Triton
            if agrees(followed):
                contenders[f"torch.compile's{work.words}"] = followed
    once_us = min(_once_us(partial(run, first), device, runtime) for run in contenders.values())
    each_bytes = sum(tensor.nbytes for tensor in (first.x, conv.weight, expected, first.z))
    count = max(1, min(MOST_PASSES, MOST_BYTES // each_bytes, math.ceil(SAMPLE_US / once_us)))
    sets = [first, *(_arrays(work, conv, tune) for _ in range(count - 1))]
    for arrays in sets:
        contenders["tuned"](arrays)  # filters are prepared with their first use, which a capture does not allow
    samples = {name: _sample(run, sets, device, runtime) for name, run in contenders.items()}
    rounds = [{name: sample() for name, sample in samples.items()} for _ in range(ROUNDS)]
    medians = {name: statistics.median(times[name] for times in rounds) for name in samples}
    tuned_us = medians.pop("tuned")
    return Times(tuned_us, tuple(sorted(medians.items(), key=lambda rival: rival[1])))


def _arrays(work: Work, conv: nn.Conv2d, tune: Callable[[nn.Conv2d], nn.Module]) -> Arrays:
    """Random images, and copies of the layer, all in the problem's layout."""
    p = work.kernel
    memory_format = torch.channels_last if p.layout == "nhwc" else torch.contiguous_format
    dtype, device = conv.weight.dtype, conv.weight.device
    own = copy.deepcopy(conv)
    own.weight.data = own.weight.data.contiguous(memory_format=memory_format)
    x = torch.empty((p.n, p.c, p.h, p.w), dtype=dtype, device=device, memory_format=memory_format).normal_()
    z = torch.empty(0)
    if work.residual:
        z = torch.empty_like(own(x), memory_format=memory_format).normal_()
    return Arrays(x, own, tune(copy.deepcopy(own)), z)


def _tuned(work: Work, arrays: Arrays) -> Tensor:
    """The tuned layer; what it does not fuse are PyTorch's kernels behind it."""
    kernel = work.kernel
    y: Tensor = arrays.tuned(arrays.x, arrays.z) if kernel.has_residual else arrays.tuned(arrays.x)
    added = work.residual and not kernel.has_residual
    return _followed(y, arrays.z if added else None, "" if kernel.activation else work.activation)


def _separate(work: Work, arrays: Arrays) -> Tensor:
    """The network's own operators, in place where they can be."""
    return _followed(arrays.conv(arrays.x), arrays.z if work.residual else None, work.activation)


def _followed(y: Tensor, z: Tensor | None, activation: str) -> Tensor:
    return activated(y if z is None else y.add_(z), activation)


def _fused(work: Work) -> Pass | None:
    """cuDNN's operator that does all of the work at once, which `torch.compile` takes; None where there is none.

    It always has a ReLU, which costs it nothing: work without an activation races against it, too.
    """

    def options(conv: nn.Conv2d) -> tuple[object, ...]:
        pad = (work.kernel.pad_h, work.kernel.pad_w)
        return (conv.stride, pad, conv.dilation, conv.groups)

    def relu(arrays: Arrays) -> Tensor:
        conv = arrays.conv
        made: Tensor = torch.cudnn_convolution_relu(arrays.x, conv.weight, conv.bias, *options(conv))
        return made

    def add_relu(arrays: Arrays) -> Tensor:
        conv = arrays.conv
        made: Tensor = torch.cudnn_convolution_add_relu(arrays.x, conv.weight, arrays.z, 1.0, conv.bias, *options(conv))
        return made

    alone = work.kernel.epilogue == "none" and not work.residual and not work.activation
    if alone or work.activation not in ("", "relu"):
        return None
    return add_relu if work.residual else relu


def _with_one_kernel_behind(work: Work, runtime: Runtime) -> Pass | None:
    """As `torch.compile` runs it: cuDNN's convolution, then bias, residual and activation in one kernel, in place.

    None where cuDNN has an operator for all of it.
    """
    if work.activation in ("", "relu"):
        return None

    def behind(y: Tensor, bias: Tensor | None, z: Tensor | None) -> Tensor:
        made = y if bias is None else y + bias.view(-1, 1, 1)
        return y.copy_(activated(made if z is None else made + z, work.activation))

    behind_at_once = runtime.at_once(behind)

    def run(arrays: Arrays) -> Tensor:
        conv = arrays.conv
        y = functional.conv2d(arrays.x, conv.weight, None, conv.stride, conv.padding, conv.dilation, conv.groups)
        return behind_at_once(y, conv.bias, arrays.z if work.residual else None)

    return run


def _once_us(run: Callable[[], Tensor], device: torch.device, runtime: Runtime) -> float:
    """Microseconds of a pass, about: in the first, cudnn.benchmark chooses its algorithm."""
    for _ in range(3):
        run()
    body = runtime.recorded(device, run)
    return 1000 * min(runtime.time_ms(device, body) for _ in range(3))


def _sample(run: Pass, sets: list[Arrays], device: torch.device, runtime: Runtime) -> Callable[[], float]:
    """A function that measures microseconds of a pass over as many passes as there are sets of arrays."""
    body = runtime.recorded(device, lambda: [run(arrays) for arrays in sets])
    runtime.time_ms(device, body)
    return lambda: 1000 * runtime.time_ms(device, body) / len(sets)
