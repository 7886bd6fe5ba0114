"""Convolutions in training: the operator `autotune_runtime::trained_convolution`, which has a backward pass.

Each of the three parts (output, data gradient and filter gradient) is computed either by a library's kernel or by
PyTorch. Kernels read the filters again in each call, because they change in each training step.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from .activations import BY_WORD
from .convolution import Problem, activation_of
from .network_interfaces import BY_NAME
from .torch_call import LAST, STORED, Call, call_of
from .torch_convolution import by_pytorch, convolved, linear, torch_arguments
from .torch_operator import Operator
from .torch_runtime import TrainingMode

Arguments: TypeAlias = tuple[tuple[str, int | str], ...]
Others: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None]
"""what a data gradient's epilogue reads: the gradient z of x's other readers and the mask, or an activation's input"""
NO_OTHERS: Others = (None, None, None)
LINEAR = "linear"
"""The operation of a linear layer in `Parts`. Its rows are the pixels of images, and its filters are [K, C, 1, 1]."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A convolution and the kernels' calls for its parts. A call is empty if PyTorch computes the part."""

    operation: str
    arguments: Arguments
    """the convolution's arguments, as in `Problem.arguments`"""
    output: str = ""
    data: str = ""
    filters: str = ""

    @property
    def epilogue(self) -> str:
        """The epilogue of the data gradient's kernel."""
        return str(dict(call_of(self.data).arguments)["epilogue"]) if self.data else "none"

    @property
    def masked(self) -> bool:
        """Whether the data gradient's kernel adds another gradient and masks the sum."""
        return self.epilogue.startswith("add_masked")

    @property
    def after(self) -> str:
        """The activation before the layer, if the data gradient's kernel multiplies by its derivative; otherwise ""."""
        return activation_of(self.epilogue) if self.epilogue.startswith("derivative") else ""

    @property
    def text(self) -> str:
        """The parts as text, for an argument of the operator."""
        return json.dumps((self.operation, self.arguments, self.output, self.data, self.filters))


@functools.cache
def _parts_of(text: str) -> Parts:
    operation, arguments, *calls = json.loads(text)
    return Parts(operation, tuple((name, value) for name, value in arguments), *calls)


@dataclass(frozen=True, slots=True)
class TrainedLayer:
    """A convolution in a network that is being trained."""

    x_sizes: tuple[int, ...]
    """sizes [C, ...] of the images that kernels support"""
    dtype: torch.dtype
    """dtype of the kernels"""
    memory_format: torch.memory_format
    """memory format of the filters that the kernels read"""
    parts: Parts
    text: str
    """the parts as text"""

    @classmethod
    def of(cls, problem: Problem, parts: Parts) -> TrainedLayer:
        """Return the layer for a problem whose parts these kernels compute."""
        x, rank = tuple(size or 0 for size in problem.x[1:]), len(problem.x)
        memory_format = LAST[rank] if problem.layout == "nhwc" else torch.contiguous_format
        return cls(x, STORED[problem.dtype], memory_format, parts, parts.text)

    def by_pytorch(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute the layer, and the activation before it, with PyTorch's operators."""
        parts, x = self.parts, applied(self.parts.after, x)
        if parts.operation == LINEAR:
            return linear(x, weight, bias)
        return convolved(x, weight, bias, parts.operation, dict(parts.arguments))


def applied(word: str, x: Tensor) -> Tensor:
    """Apply an activation, or return the tensor if `word` is empty."""
    if not word:
        return x
    made: Tensor = getattr(torch.ops.aten, BY_WORD[word].aten).default(x, **BY_WORD[word].options)
    return made


def _filters_by_pytorch(call: Call, tensors: Mapping[str, Tensor]) -> Tensor:
    """Compute a call of FILTERS with PyTorch's operators. The result has the same layout as a kernel's."""
    x, dy, arguments = tensors["x"], tensors["dy"], dict(call.arguments)
    groups, taps = int(arguments["groups"]), (int(arguments.get(name, 1)) for name in "trs"[5 - x.dim() :])
    filters = dy.new_empty((dy.shape[1], x.shape[1] // groups, *taps))
    dw: Tensor = _by_pytorch(dy, x, filters, "conv_filter_gradient", call.arguments, (False, True))[1]
    return dw.float().contiguous(memory_format=call.memory_format(dw.shape))


def _by_pytorch(
    dy: Tensor, x: Tensor, w: Tensor, operation: str, arguments: Arguments, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Compute the data gradient and the filter gradient, if wanted, with PyTorch.

    The data gradient needs only the sizes of x, and the filter gradient only the sizes of w.
    """
    if operation == LINEAR:
        rows = dy.movedim(1, -1).flatten(0, -2)
        dx = (rows @ w.flatten(1)).view(*x.movedim(1, -1).shape).movedim(-1, 1) if wanted[0] else None
        return dx, (rows.t() @ x.movedim(1, -1).flatten(0, -2)).view_as(w) if wanted[1] else None
    backward = torch.ops.aten.convolution_backward.default
    dx, dw, _ = backward(dy, x, w, None, *_of_torch(x.dim(), operation, arguments), (*wanted, False))
    return dx, dw


@functools.cache
def _of_torch(rank: int, operation: str, arguments: Arguments) -> tuple[list[int] | bool | int, ...]:
    """Return the cached result of `torch_arguments`, which would take a sixth of a call's time."""
    return torch_arguments(rank, operation, dict(arguments))


CHANGING = Operator(BY_NAME["conv_transpose"], "changing_convolution", by_pytorch, prepares=False)
"""The operator for convolutions whose filters may differ in each call. It also computes data gradients."""
FILTERS = Operator(BY_NAME["conv_filter_gradient"], "filter_gradient", _filters_by_pytorch)


def trained_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    layer: TrainedLayer,
    by_pytorch: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    run: Callable[..., object] | None = None,
) -> Tensor:
    """Compute a convolution whose output and gradients are computed by kernels, in autocast's dtype if that is enabled.

    `by_pytorch` computes images with other sizes or another dtype than the layer's. Filters are converted here to the
    kernels' dtype and memory format, once for both the output and the data gradient; filters that already match aren't
    copied. `run` is TRAINED, or `forked` or `after_activation` in a graph that is compiled.
    """
    given, device_type = x, x.device.type
    if torch.is_autocast_enabled(device_type) and x.dtype != torch.float64:
        x = x.to(torch.get_autocast_dtype(device_type))
    if x.shape[1:] != layer.x_sizes or x.dtype != layer.dtype:
        return by_pytorch(given, weight, bias)
    stored = weight.detach()
    if weight.dtype != layer.dtype or not weight.is_contiguous(memory_format=layer.memory_format):
        stored = stored.to(x.dtype).contiguous(memory_format=layer.memory_format)
    run = run or (TRAINED if torch.compiler.is_dynamo_compiling() else _Trained.apply)
    return cast("Tensor", run(x, weight, stored, bias, layer.text))


def _run(operator: Operator, call: str, *tensors: Tensor | None) -> Tensor:
    """Run a kernel that reads all tensors in each call, bypassing PyTorch's dispatcher if possible."""
    made = operator.call_cached(call, tensors, ())
    return cast("Tensor", operator(*tensors, call) if made is None else made)


def output_of(x: Tensor, stored: Tensor, bias: Tensor | None, parts: Parts) -> Tensor:
    """Compute a convolution's output [N, K, ...]; `stored` are the filters in the dtype of x."""
    if bias is not None:
        bias = bias.to(x.dtype)
    if parts.operation == LINEAR:
        return linear(x, stored, bias)
    if not parts.output:
        return torch.convolution(x, stored, bias, *_of_torch(x.dim(), parts.operation, parts.arguments))
    if bias is None or dict(call_of(parts.output).arguments)["epilogue"] != "none":
        return _run(CHANGING, parts.output, x, stored, bias, *NO_OTHERS)
    made = _run(CHANGING, parts.output, x, stored, None, *NO_OTHERS)
    return made.add_(bias.view(-1, *(1,) * (x.dim() - 2)))


def gradients_of(
    dy: Tensor,
    x: Tensor | Sequence[int],
    stored: Tensor | Sequence[int],
    parts: Parts,
    others: Others = NO_OTHERS,
) -> tuple[Tensor | None, Tensor | None]:
    """Compute the data gradient [N, C, ...] and the filter gradient.

    If `stored` is just the filters' shape, the data gradient is None; if `x` is just the images' shape, the filter
    gradient is None. The filter gradient may be in float32.
    """
    dx: Tensor | None = None
    dw: Tensor | None = None
    wants_data, wants_filters = isinstance(stored, Tensor), isinstance(x, Tensor)
    if isinstance(stored, Tensor) and parts.data:
        dx, wants_data = _run(CHANGING, parts.data, dy, stored, None, *others), False
    if isinstance(x, Tensor) and parts.filters:
        signals = x.dim() == len("ncw")  # which PyTorch stores channels-last as images of one row
        read = (dy, x) if parts.operation == "conv_transpose" else (x, dy)
        dw = _run(FILTERS, parts.filters, *(each.unsqueeze(2) if signals else each for each in read))
        dw, wants_filters = dw.squeeze(2) if signals else dw, False
    if wants_data or wants_filters:
        images, filters = (each if isinstance(each, Tensor) else _like(dy, each, parts) for each in (x, stored))
        wanted = (wants_data, wants_filters)
        theirs = _by_pytorch(dy, images, filters, parts.operation, parts.arguments, wanted)
        dx, dw = theirs[0] if wants_data else dx, theirs[1] if wants_filters else dw
    return dx, dw


def _like(dy: Tensor, shape: Sequence[int], parts: Parts) -> Tensor:
    """Return an uninitialized tensor in the convolution's layout, whose values PyTorch's operator doesn't read.

    PyTorch's operator uses this layout for the gradient, and copies tensors with another layout.
    """
    last = dict(parts.arguments).get("layout") == "nhwc"
    return torch.empty(
        *shape, dtype=dy.dtype, device=dy.device, memory_format=LAST[len(shape)] if last else torch.contiguous_format
    )


def _operator(x: Tensor, _: Tensor, stored: Tensor, bias: Tensor | None, parts: str) -> Tensor:
    """Implement the operator. Its second argument is the parameter that gets the filter gradient."""
    return output_of(x, stored, bias, _parts_of(parts))


def _save(
    ctx: FunctionCtx,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor | None, str],
    output: Tensor,  # noqa: ARG001 - named by PyTorch
    *others: Tensor,
) -> None:
    """Save the tensors that are needed for the wanted gradients, and others."""
    x, weight, stored, bias, text = inputs
    wants_data, wants_filters, *_ = ctx.needs_input_grad
    ctx.save_for_backward(x if wants_filters else None, stored if wants_data else None, *others)
    ctx.shapes, ctx.dtypes = (x.shape, weight.shape), (weight.dtype, None if bias is None else bias.dtype)
    ctx.parts = _parts_of(text)


def _backward(
    ctx: FunctionCtx, dy: Tensor, run: Callable[..., tuple[Tensor | None, Tensor | None]] = gradients_of
) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        raise TrainingMode(f"{_NAMESPACE}: a tuned convolution has no second derivatives; do not use create_graph=True")
    x, stored, *_ = ctx.saved_tensors
    x_shape, w_shape = ctx.shapes
    dx = dw = db = None
    if x is not None or stored is not None:
        dx, dw = run(dy, x_shape if x is None else x, w_shape if stored is None else stored, ctx.parts)
    of_weight, of_bias = ctx.dtypes
    if ctx.needs_input_grad[3]:
        db = dy.sum([0, *range(2, dy.dim())], dtype=torch.float32).to(of_bias)
    return dx, None if dw is None else dw.to(of_weight), None, db, None


class _Trained(torch.autograd.Function):
    """The operator without PyTorch's dispatcher, which takes longer than the rest of a call."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, stored: Tensor, bias: Tensor | None, parts: str) -> Tensor:
        output = _operator(x, weight, stored, bias, parts)
        _save(ctx, (x, weight, stored, bias, parts), output)
        return output

    @staticmethod
    def backward(ctx: FunctionCtx, dy: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(ctx, dy)


class _Forked(torch.autograd.Function):
    """The operator with the images as a second output, for their other readers. The sum of all gradients is masked."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, weight: Tensor, stored: Tensor, bias: Tensor | None, parts: str
    ) -> tuple[Tensor, Tensor]:
        output = TRAINED(x, weight, stored, bias, parts)
        _save(ctx, (x, weight, stored, bias, parts), output)
        return output, x.view_as(x)

    @staticmethod
    def backward(ctx: FunctionCtx, dy: Tensor, z: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(ctx, dy, functools.partial(_by_operator, others=(z, ctx.saved_tensors[0], None)))


class _AfterActivation(torch.autograd.Function):
    """An activation and the operator. The data gradient's kernel multiplies by the activation's derivative."""

    @staticmethod
    def forward(ctx: FunctionCtx, v: Tensor, weight: Tensor, stored: Tensor, bias: Tensor | None, parts: str) -> Tensor:
        word = _parts_of(parts).after
        x = applied(word, v)
        output = TRAINED(x, weight, stored, bias, parts)
        _save(ctx, (x, weight, stored, bias, parts), output, x if word == "relu" else v)
        return output

    @staticmethod
    def backward(ctx: FunctionCtx, dy: Tensor) -> tuple[Tensor | None, ...]:
        others = (None, None, ctx.saved_tensors[-1])
        return _backward(ctx, dy, functools.partial(_by_operator, others=others))


forked, after_activation = _Forked.apply, _AfterActivation.apply


def _by_operator(
    dy: Tensor,
    x: Tensor | torch.Size,
    stored: Tensor | torch.Size,
    parts: Parts,
    others: Others = NO_OTHERS,
) -> tuple[Tensor | None, Tensor | None]:
    """Call `gradients_of` as one operator of a compiled graph. If there were two, Inductor would store dy for each."""
    images, filters = (each if isinstance(each, Tensor) else None for each in (x, stored))
    shapes = (each.shape if isinstance(each, Tensor) else each for each in (x, stored))
    dx, dw = _GRADIENTS(dy, images, filters, *shapes, parts.text, *others)
    return None if filters is None else dx, None if images is None else dw


def _gradients(
    dy: Tensor,
    x: Tensor | None,
    stored: Tensor | None,
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    parts: str,
    *others: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Implement the operator for both gradients. A gradient that isn't wanted is an empty tensor."""
    images, filters = x_shape if x is None else x, w_shape if stored is None else stored
    made = gradients_of(dy, images, filters, _parts_of(parts), cast("Others", others))
    dx, dw = (dy.new_empty(0) if each is None else each for each in made)
    return dx, dw


_NAMESPACE = __name__.rpartition(".")[0].replace(".", "_")  # differs for each copy of the package
_LIBRARY = torch.library.Library(_NAMESPACE, "FRAGMENT")


def _define(name: str, signature: str, run: Callable[..., object]) -> torch._ops.OpOverload:
    """Register an operator for this copy of the package. `run` handles fake tensors too."""
    _LIBRARY.define(name + signature)
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{_NAMESPACE}::{name}", run, lib=_LIBRARY)
    return cast("torch._ops.OpOverload", getattr(getattr(torch.ops, _NAMESPACE), name).default)


TRAINED = _define(
    "trained_convolution", "(Tensor x, Tensor weight, Tensor stored, Tensor? bias, str parts) -> Tensor", _operator
)
_GRADIENTS = _define(
    "trained_gradients",
    "(Tensor dy, Tensor? x, Tensor? stored, SymInt[] x_shape, SymInt[] w_shape, str parts, "
    "Tensor? z, Tensor? mask, Tensor? saved) -> (Tensor, Tensor)",
    _gradients,
)
_backward_of_operator = functools.partial(_backward, run=_by_operator)
torch.library.register_autograd(
    f"{_NAMESPACE}::trained_convolution", _backward_of_operator, setup_context=_save, lib=_LIBRARY
)
