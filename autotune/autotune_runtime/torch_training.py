"""Convert networks for training: kernels compute convolutions' outputs and gradients where they beat PyTorch."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from .convolution import FilterGradient, Geometry, Problem, activation_of, data_gradient, filter_gradient
from .fusion import LayerProblem
from .gradient_fusion import MASKED
from .interface import Library
from .layer_names import plain_name, unused_name
from .torch_benchmark import BRIEF, THOROUGH, Effort, Times, timed
from .torch_call import DTYPES, LAST, STORED, Call, Choice
from .torch_convolution import differentiated
from .torch_example import example_arguments, is_channels_last, undisturbed
from .torch_gradients import (
    CHANGING,
    LINEAR,
    NO_OTHERS,
    Others,
    Parts,
    TrainedLayer,
    gradients_of,
    output_of,
    trained_convolution,
)
from .torch_race import agree
from .torch_runtime import Runtime
from .torch_swap import Report, Row, cudnn_benchmark, libraries_of, serves, tf32_is_allowed, with_times
from .torch_untuned import RACES, Races, begin
from .untuned_build import BuiltKernel, UntunedBuild

PARTS = {"output": "output", "data": "data gradient", "filters": "filter gradient"}
"""The parts of a convolution in training: the names of the fields in `Parts` -> their names in reports."""
DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}


@dataclass(frozen=True, slots=True)
class Site:
    """A convolution in a network that has run once."""

    name: str
    problem: Problem
    """problem of the convolution without a bias"""
    has_bias: bool
    wants: tuple[str, ...]
    """the gradients that the network needs: data, filters"""
    weight_dtype: torch.dtype
    device: torch.device
    epilogue: str = "none"
    """what the kernel of the data gradient may compute as well (see `data_epilogues`)"""
    linear: bool = False
    """whether it is a linear layer, whose data gradient alone a kernel may compute, together with the epilogue"""

    def parts(self, **calls: str) -> Parts:
        """Return the parts that these kernels compute."""
        return Parts(LINEAR if self.linear else self.problem.operation, tuple(self.problem.arguments.items()), **calls)

    @property
    def problems(self) -> dict[str, tuple[Problem | FilterGradient, ...]]:
        """The problems that may compute each part, in order of preference."""
        of = self.problem.geometry
        fused = (data_gradient(of, self.epilogue),) * (self.epilogue != "none")
        if self.linear:
            return {"data": fused}
        with_bias = (replace(self.problem, epilogue="bias"),) * self.has_bias
        found: dict[str, tuple[Problem | FilterGradient, ...]] = {"output": (*with_bias, self.problem)}
        found |= {"data": (*fused, data_gradient(of))} if "data" in self.wants else {}
        found |= {"filters": (filter_gradient(of),)} if "filters" in self.wants else {}
        return found


@dataclass(frozen=True, slots=True)
class TrainingReport(Report):
    """A report with a row for every part of every convolution."""

    @property
    def summary(self) -> str:
        """The table's last line."""
        wins = Counter(row.layer.partition(", ")[2] for row in self.rows if row.swapped)
        parts = Counter(row.layer.partition(", ")[2] for row in self.rows)
        said = (f"{wins[name]} of {count} {name}s" for name, count in parts.items())
        return f"tuned kernels compute {', '.join(said)}" if parts else "there is no convolution that kernels may train"


@dataclass(frozen=True, slots=True)
class Training:
    """A copy of a network, and its convolutions by their modules."""

    network: nn.Module
    sites: Mapping[nn.Module, Site]


def read_training(module: nn.Module, example: object) -> Training:
    """Copy a network, run the copy on an example without changing its mode, and find its convolutions.

    `example_arguments` describes valid examples.
    """
    network = copy.deepcopy(module)
    found: dict[nn.Module, Site] = {}
    names = {part: name for name, part in network.named_modules()}

    def called(conv: nn.Module, inputs: tuple[Tensor, ...], named: Mapping[str, object], y: Tensor) -> None:
        if conv in found or not isinstance(conv, _ConvNd) or conv.padding_mode != "zeros" or len(inputs) != 1 or named:
            return
        arguments = {name: getattr(conv, name) for name in DEFAULTS}
        site = site_of(names[conv], (inputs[0], conv.weight, conv.bias, y), arguments, transposed=conv.transposed)
        if site is not None:
            found[conv] = site

    hooks = [part.register_forward_hook(called, with_kwargs=True) for part in names if type(part) in TRAINED]
    try:
        with torch.enable_grad(), undisturbed(network, example_arguments(network, example)) as arguments:
            network(*arguments)
    finally:
        for hook in hooks:
            hook.remove()
    return Training(network, found)


def train(
    training: Training, libraries: Mapping[str, Library] | None, started: UntunedBuild | None, margin: float
) -> tuple[nn.Module, TrainingReport]:
    """Make kernels compute a network's convolutions, and return the changed network and a report.

    Without libraries, the network runs the build's libraries, and this function waits for the build.
    """
    layers, report = judged([*training.sites.values()], libraries, started, margin)
    for conv, layer in zip(training.sites, layers, strict=True):
        if layer is not None:
            conv.__class__ = TRAINED[type(conv)]
            conv.layer = layer
    return training.network, report


class _Trained(_ConvNd):
    """Base class for the modules that replace convolutions."""

    layer: TrainedLayer

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: A002 - as PyTorch's
        return trained_convolution(input, weight, bias, self.layer, super()._conv_forward)


class TrainedConv1d(_Trained, nn.Conv1d):
    """`nn.Conv1d` with kernels for training."""


class TrainedConv2d(_Trained, nn.Conv2d):
    """`nn.Conv2d` with kernels for training."""


class TrainedConv3d(_Trained, nn.Conv3d):
    """`nn.Conv3d` with kernels for training."""


class _TrainedTranspose(_ConvTransposeNd):
    """Base class for the modules that replace transposed convolutions."""

    layer: TrainedLayer

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:  # noqa: A002 - as PyTorch's
        forward = super().forward
        if output_size is not None:
            return cast("Tensor", forward(input, output_size))
        return trained_convolution(input, self.weight, self.bias, self.layer, lambda x, *_: forward(x))


class TrainedConvTranspose1d(_TrainedTranspose, nn.ConvTranspose1d):
    """`nn.ConvTranspose1d` with kernels for training."""


class TrainedConvTranspose2d(_TrainedTranspose, nn.ConvTranspose2d):
    """`nn.ConvTranspose2d` with kernels for training."""


class TrainedConvTranspose3d(_TrainedTranspose, nn.ConvTranspose3d):
    """`nn.ConvTranspose3d` with kernels for training."""


TRAINED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: TrainedConv1d,
    nn.Conv2d: TrainedConv2d,
    nn.Conv3d: TrainedConv3d,
    nn.ConvTranspose1d: TrainedConvTranspose1d,
    nn.ConvTranspose2d: TrainedConvTranspose2d,
    nn.ConvTranspose3d: TrainedConvTranspose3d,
}


def site_of(
    name: str, tensors: Sequence[Tensor | None], arguments: Mapping[str, object], *, transposed: bool
) -> Site | None:
    """Describe the convolution that computes y from x, weight and bias, or return None if no kernel can compute it.

    `tensors` contains x, weight, bias and y in this order.
    """
    x, weight, bias, y = tensors
    assert x is not None and weight is not None and y is not None  # noqa: PT018, S101 - as PyTorch declares
    axes = weight.dim() - 2
    stride, dilation = (_of_axes(arguments[name], axes) for name in ("stride", "dilation"))
    taps = weight.shape[2:]
    padding = arguments["padding"]
    if isinstance(padding, str):
        ends = [step * (size - 1) if padding == "same" else 0 for step, size in zip(dilation, taps, strict=True)]
        if any(end % 2 for end in ends):  # padding that differs between the two ends of an axis
            return None
        padding = [end // 2 for end in ends]
    before = _of_axes(padding, axes)
    layout = "nhwc" if is_channels_last(x) or is_channels_last(weight) else "nchw"
    of_x, of_w, of_y = (tuple(map(number, each.shape)) for each in (x, weight, y))
    groups = arguments["groups"]
    assert isinstance(groups, int)  # noqa: S101 - as PyTorch declares
    dtype = DTYPES.get(y.dtype, str(y.dtype))  # autocast's dtype if autocast is enabled
    geometry = Geometry(of_x, of_w, of_y, stride, before, before, dilation, groups, transposed, dtype, layout)
    if geometry.why_not or not geometry.has_gradients or weight.is_inference():
        return None
    wants = {"data": x.requires_grad, "filters": weight.requires_grad}
    parts = tuple(part for part, wanted in wants.items() if wanted)
    return Site(name, Problem(geometry), bias is not None, parts, weight.dtype, weight.device)


def _of_axes(given: object, axes: int) -> tuple[int, ...]:
    """Expand a convolution's argument to a number for each axis."""
    numbers = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    return numbers if len(numbers) == axes else numbers * axes


def number(size: int | torch.SymInt) -> int:
    """Return a size as a number, replacing a symbolic size by its current value."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else size


def judged(
    sites: Sequence[Site], libraries: Mapping[str, Library] | None, started: UntunedBuild | None, margin: float
) -> tuple[list[TrainedLayer | None], TrainingReport]:
    """Decide about all sites. Returns a report, and for each site a layer, or None if PyTorch computes all of its
    parts.
    """
    built: Mapping[str, BuiltKernel] = {}
    races = None
    if libraries is None and (build := begin(started, _problems(sites))) is not None:
        built, races = build.wait(), Races(build.folder / RACES)
        libraries = libraries_of(build.folder)
    judge = _Judge(libraries or {}, margin, *((THOROUGH, {}) if races is None else (BRIEF, races.times)))
    layers: list[TrainedLayer | None] = []
    rows: list[Row] = []
    with torch.no_grad(), cudnn_benchmark():
        for site in sites:
            calls: dict[str, str] = {}
            for part, problems in site.problems.items():
                row, calls[part] = judge.row(site, part, problems)
                rows.append(replace(row, origin=built[row.kernel].origin if row.kernel in built else ""))
            layers.append(TrainedLayer.of(site.problem, site.parts(**calls)) if any(calls.values()) else None)
    report = TrainingReport(tuple(rows))
    if races is not None:
        races.keep()
        print(f"autotune: {report.summary}", file=sys.stderr)
    return layers, report


def _problems(sites: Iterable[Site]) -> dict[LayerProblem | FilterGradient, str]:
    """Return the problems that need kernels, with names."""
    found: dict[LayerProblem | FilterGradient, str] = {}
    taken: set[str] = set()
    for site in sites:
        for part, (problem, *_) in site.problems.items():
            if problem not in found:
                ending = "" if part == "output" else f"-{part}"
                found[problem] = unused_name(plain_name(site.name) or "layer", taken, ending)
    return found


@dataclass(frozen=True, slots=True)
class _Tensors:
    """The tensors that a convolution and its gradients read."""

    x: Tensor
    stored: Tensor
    bias: Tensor | None
    dy: Tensor
    others: Others
    """what the data gradient's epilogue reads; the gradient of the other readers of x is already masked"""


class _Judge:
    """Decides which parts kernels compute. Parts with the same problem are timed once."""

    def __init__(
        self, libraries: Mapping[str, Library], margin: float, effort: Effort, times: dict[str, Times | None]
    ) -> None:
        self._libraries, self._margin, self._effort, self._times = libraries, margin, effort, times

    def row(self, site: Site, part: str, problems: Sequence[Problem | FilterGradient]) -> tuple[Row, str]:
        """Decide about a part. Returns a row and the kernel's call, which is empty if PyTorch computes the part."""
        name, runtime = f"{site.name}, {PARTS[part]}", CHANGING.runtime_of(site.device)
        if runtime is None:
            why = f"is on {site.device}, not on a GPU"
            return Row(name, problems[0], "", None, None, swapped=False, why=why), ""
        options = {"tf32": tf32_is_allowed(), "training": True}
        with runtime.current(site.device):
            answers = [(problem, *serves(self._libraries, problem, **options)) for problem in problems]
        problem, kernel, why_not = next((each for each in answers if not each[2]), answers[0])
        if why_not:
            return Row(name, problem, kernel, None, None, swapped=False, why=why_not), ""
        path, arguments = str(self._libraries[problem.operation].path), tuple(problem.arguments.items())
        call = Call(path, arguments, torch_shapes=True, choice=Choice()).text
        key = repr((part, problem, site.has_bias, site.weight_dtype, site.linear))
        if key not in self._times:
            draw = partial(_tensors, site, problem.epilogue if part == "data" else "none")
            self._times[key] = _race(site, part, call, draw, runtime, self._effort)
        row = Row(name, problem, kernel, None, None, swapped=False, why="")
        row = with_times(row, self._times[key], self._margin)
        return row, call if row.swapped else ""


def _race(
    site: Site, part: str, call: str, draw: Callable[[], _Tensors], runtime: Runtime, effort: Effort
) -> Times | None:
    """Time the kernel and PyTorch's operator for a part, or return None if they disagree."""
    first, plain = draw(), site.parts()

    def run(tensors: _Tensors, parts: Parts) -> Tensor:
        if part == "output":
            return output_of(tensors.x, tensors.stored, tensors.bias, parts)
        x = tensors.x if part == "filters" else tensors.x.shape
        stored = tensors.stored if part == "data" else tensors.stored.shape
        dx, dw = gradients_of(tensors.dy, x, stored, parts, tensors.others)
        made = dx if dw is None else dw.to(site.weight_dtype)
        assert made is not None  # noqa: S101 - one of them is wanted
        z, mask, saved = tensors.others
        if z is not None and not parts.data:
            return torch.addcmul(z, made, mask)  # has the reads and writes of the kernel that Inductor would generate
        return made if saved is None or parts.data else differentiated(made, activation_of(site.epilogue), saved)

    tuned: Callable[[_Tensors], Tensor] = partial(run, parts=site.parts(**{part: call}))
    theirs: Callable[[_Tensors], Tensor] = partial(run, parts=plain)
    if not agree(tuned(first), theirs(first)):
        return None
    read = 1 + sum(each is not None for each in first.others)
    each_bytes = read * first.x.nbytes + first.stored.nbytes + 2 * first.dy.nbytes
    contenders = {"tuned": tuned, f"PyTorch's {PARTS[part]}": theirs}
    return timed(contenders, first, draw, each_bytes, site.device, runtime, effort)


def _tensors(site: Site, epilogue: str) -> _Tensors:
    of, dtype = site.problem.geometry, STORED[site.problem.dtype]

    def noise(shape: tuple[int | None, ...]) -> Tensor:
        memory_format = LAST[len(of.x)] if of.layout == "nhwc" else torch.contiguous_format
        return torch.empty(shape, dtype=dtype, device=site.device, memory_format=memory_format).normal_()

    bias = torch.zeros(of.k, dtype=dtype, device=site.device) if site.has_bias else None
    others = NO_OTHERS
    if epilogue == MASKED:
        mask = noise(of.x).sign_().relu_()
        others = (noise(of.x).mul_(mask), mask, None)
    elif activation_of(epilogue):
        others = (None, None, noise(of.x))
    return _Tensors(noise(of.x), noise(of.w), bias, noise(of.y), others)
