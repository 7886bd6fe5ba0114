"""Time a tuned layer and PyTorch's alternatives for the same work, interleaved, in CUDA graphs and with cold caches.

A contender's passes are recorded in one CUDA graph. Each pass has its own images, filters and outputs, and the caches
are overwritten before the graph is replayed, so neither Python nor launches nor data cached by an earlier pass affect
the time.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from .activations import BY_WORD
from .convolution import Problem
from .fusion import LayerProblem
from .network_layers import LINEAR
from .torch_call import LAST, STORED
from .torch_convolution import Convolution, TunedConvolution, activated
from .torch_plain import Plain
from .torch_race import agree
from .torch_runtime import Runtime

SAMPLE_US = 400.0  # total duration of the passes in one sample, long enough to make a graph's launch negligible
MOST_BYTES = 1 << 30  # maximum total size of the arrays of all passes


@dataclass(frozen=True, slots=True)
class Work:
    """The work that every contender in a race has to do."""

    kernel: LayerProblem
    """the problem that the library's kernel computes; PyTorch's kernels compute the rest of the work"""
    residual: bool
    """whether a tensor of the output's shape is added after the layer"""
    activation: str
    """word of the activation after the layer and the residual; empty if there is none"""
    compiled: bool = False
    """whether Inductor compiles the operators that the library's kernels do not compute"""
    linear: bool = False
    """whether the layer is a linear layer in the network"""

    @property
    def words(self) -> str:
        """What follows the layer, in words."""
        parts = [
            *(["residual"] if self.residual else []),
            *([BY_WORD[self.activation].name] if self.activation else []),
        ]
        return f" with its {' and '.join(parts)}" if parts else ""


@dataclass(frozen=True, slots=True)
class Effort:
    """The length of a race. Most of the time goes to the passes, because each one has its own arrays and kernel."""

    rounds: int
    """number of rounds; a race's result is the median"""
    passes: int
    """maximum number of passes in a sample"""


THOROUGH = Effort(rounds=21, passes=32)
BRIEF = Effort(rounds=7, passes=8)  # for an untuned network, because the user waits for the races


@dataclass(frozen=True, slots=True)
class Times:
    """Each contender's median time per pass, in microseconds."""

    tuned_us: float
    rivals: tuple[tuple[str, float], ...]
    """names and times of PyTorch's alternatives, fastest first"""


@dataclass(frozen=True, slots=True)
class Arrays:
    """A pass's inputs: images, PyTorch's layer, the tuned layer with the same weights, and the residual."""

    x: Tensor
    others: tuple[Tensor, ...]
    """the problem's other inputs, such as all tensors of a concatenation except the first"""
    layer: Convolution | Plain
    tuned: nn.Module
    z: Tensor


Pass: TypeAlias = Callable[[Arrays], Tensor]
Inputs = TypeVar("Inputs")


def race(
    work: Work, layer: Convolution | Plain, library: str | Path, runtime: Runtime, effort: Effort = THOROUGH
) -> Times | None:
    """Time a library's kernel and PyTorch's alternatives, or return None if the kernel disagrees with PyTorch."""
    device = layer.device
    first = _arrays(work, layer, library)
    expected = _separate(work, first)
    contenders: dict[str, Pass] = {"tuned": partial(_tuned, work), **_rivals(work)}
    if not agree(contenders["tuned"](first), expected):
        return None
    each_bytes = sum(tensor.nbytes for tensor in (first.x, *first.others, *layer.parameters(), expected, first.z))
    return timed(contenders, first, partial(_arrays, work, layer, library), each_bytes, device, runtime, effort)


def race_apart(
    work: Work,
    layer: Convolution,
    library: str | Path,
    inner: nn.Module,
    alone: TunedConvolution,
    runtime: Runtime,
    effort: Effort,
) -> Times:
    """Time a convolution's kernel that also computes another operator against separate kernels for the two.

    `inner` computes the operator: a layer in front of the convolution, or a pixel shuffle after it.
    """
    first, rest = _arrays(work, layer, library), replace(work, kernel=alone.problem)

    def apart(arrays: Arrays) -> Tensor:
        z = arrays.z
        if layer.problem.shuffle > 1:
            return activated(inner(alone(arrays.x)), work.activation)
        if layer.problem.cache_d:
            (frame,) = arrays.others
            x, z = inner(frame.squeeze(2), arrays.x.squeeze(2)), z.squeeze(2) if work.residual else z
        else:
            x = inner(arrays.x, *arrays.others)
        return _tuned(rest, replace(arrays, x=x, others=(), tuned=alone, z=z))

    contenders: dict[str, Pass] = {"tuned": partial(_tuned, work), "kernels for each": apart}
    each_bytes = 2 * first.x.nbytes + apart(first).nbytes + first.z.nbytes
    return timed(contenders, first, partial(_arrays, work, layer, library), each_bytes, layer.device, runtime, effort)


def timed(
    contenders: Mapping[str, Callable[[Inputs], object]],
    first: Inputs,
    another: Callable[[], Inputs],
    each_bytes: int,
    device: torch.device,
    runtime: Runtime,
    effort: Effort,
) -> Times:
    """Time contenders, one of which is called `tuned`, on the same inputs.

    The inputs are `first` and further ones from `another`. `each_bytes` is the size of the tensors that a pass reads
    and writes.
    """
    once_us = min(_once_us(partial(run, first), device, runtime) for run in contenders.values())
    count = max(1, min(effort.passes, MOST_BYTES // each_bytes, math.ceil(SAMPLE_US / once_us)))
    sets = [first, *(another() for _ in range(count - 1))]
    for inputs in sets:
        contenders["tuned"](inputs)  # the first use prepares the filters, which a capture does not allow
    samples = {name: _sample(run, sets, device, runtime) for name, run in contenders.items()}
    times = [{name: sample() for name, sample in samples.items()} for _ in range(effort.rounds)]
    medians = {name: statistics.median(each[name] for each in times) for name in samples}
    tuned_us = medians.pop("tuned")
    return Times(tuned_us, tuple(sorted(medians.items(), key=lambda rival: rival[1])))


def choose_algorithms(work: Work, conv: Convolution) -> None:
    """Run PyTorch's alternatives once, so that cuDNN has chosen their algorithms before a later race.

    cudnn.benchmark must be on.
    """
    arrays = _arrays(work, conv)
    for run in _rivals(work).values():
        run(arrays)


def _rivals(work: Work) -> dict[str, Pass]:
    """Return PyTorch's alternatives by name: an eager network's operators and, if `work.compiled`, compiled ones."""
    of = work.kernel
    plain = LINEAR if work.linear else of.kind
    found: dict[str, Pass] = {f"PyTorch's{work.words or f' {plain}'}": partial(_separate, work)}
    if work.compiled and isinstance(of, Problem) and (work.residual or work.activation):
        found[f"PyTorch's {plain} and one kernel for the rest"] = partial(_then_one_kernel, work)
    return found


def _arrays(work: Work, layer: Convolution | Plain, library: str | Path | None = None) -> Arrays:
    """Make random inputs and a copy of the layer in the problem's layout.

    Without a library, PyTorch computes the tuned layer too.
    """
    of = work.kernel
    formats = LAST if of.layout == "nhwc" else {}
    own = copy.deepcopy(layer)
    if isinstance(own, Convolution):
        weight = own.weight.data
        own.weight.data = weight.contiguous(memory_format=formats.get(weight.dim(), torch.contiguous_format))
    memory_format = formats.get(len(of.x), torch.contiguous_format)
    options = {"dtype": STORED[of.dtype], "device": layer.device, "memory_format": memory_format}
    x, *others = (torch.empty(shape, **options).normal_() for shape in of.inputs)
    z = torch.empty(0)
    if work.residual:
        z = torch.empty_like(own(x, *others), memory_format=memory_format).normal_()
    return Arrays(x, tuple(others), own, own if library is None else own.tuned(of.epilogue, library), z)


def _tuned(work: Work, arrays: Arrays) -> Tensor:
    """Run the tuned layer, followed by PyTorch's kernels for operators that it doesn't fuse."""
    kernel = work.kernel
    z = (arrays.z if kernel.has_residual else None,) if isinstance(kernel, Problem) else ()
    y: Tensor = arrays.tuned(arrays.x, *z, *arrays.others)
    added = work.residual and not kernel.has_residual
    return _followed(y, arrays.z if added else None, "" if kernel.activation else work.activation)


def _separate(work: Work, arrays: Arrays) -> Tensor:
    """Run the network's own operators, in place if possible."""
    y = arrays.layer(arrays.x, *arrays.others)
    return _followed(y, arrays.z if work.residual else None, work.activation)


def _followed(y: Tensor, z: Tensor | None, activation: str) -> Tensor:
    return activated(y if z is None else y.add_(z), activation)


def _then_one_kernel(work: Work, arrays: Arrays) -> Tensor:
    """Run a stand-in for `torch.compile`'s code: cuDNN's convolution, then a single in-place kernel for the rest.

    Compiling that kernel would take longer than all races, so it is replaced by a PyTorch operator with the same reads
    and writes. The result therefore lacks the bias and, after a residual, the activation.
    """
    y = arrays.layer.with_bias(arrays.layer.prepared(arrays.x, *arrays.others), None)
    return y.add_(arrays.z) if work.residual else activated(y, work.activation)


def _once_us(run: Callable[[], object], device: torch.device, runtime: Runtime) -> float:
    """Return a pass's approximate time in microseconds, including Python.

    The first pass, in which cudnn.benchmark chooses algorithms, isn't timed.
    """

    def passed() -> None:
        run()

    passed()
    return 1000 * min(runtime.time_ms(device, passed) for _ in range(3))


def _sample(
    run: Callable[[Inputs], object], sets: list[Inputs], device: torch.device, runtime: Runtime
) -> Callable[[], float]:
    """Return a function that measures the time per pass in microseconds, with one pass for each set of arrays."""
    body = runtime.recorded(device, lambda: [run(inputs) for inputs in sets])
    runtime.time_ms(device, body)
    return lambda: 1000 * runtime.time_ms(device, body) / len(sets)
