"""Compute convolutions of PyTorch tensors, with PyTorch or with the operator `autotune_runtime::convolution`.

Shapes are PyTorch's in every layout: x [N, C, ...], filters [K, C/groups, ...] or, if transposed, [C, K/groups, ...],
with one to three spatial axes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import find_library, load
from .activations import BY_WORD
from .convolution import Problem, activation_of, epilogue_name, prologue_activation, sizes
from .fusion import LayerProblem
from .network_interfaces import BY_NAME
from .torch_call import Call, Choice
from .torch_exact import at_pixels, chosen_pixels, sums
from .torch_operator import Operator
from .torch_runtime import TunedModule

_ANY = Choice()
"""The default choice: a kernel for every shape that the library supports."""


def activated(y: Tensor, word: str) -> Tensor:
    """Apply an activation in place, or return the tensor unchanged if `word` isn't one, such as identity."""
    if word not in BY_WORD:
        return y
    made: Tensor = _in_place(word)(y, **BY_WORD[word].options)
    return made


@functools.cache
def _in_place(word: str) -> Callable[..., Tensor]:
    """Return an overload of PyTorch's in-place operator, so that calls don't have to look it up."""
    overload: Callable[..., Tensor] = getattr(torch.ops.aten, f"{BY_WORD[word].aten}_").default
    return overload


def differentiated(dy: Tensor, word: str, saved: Tensor) -> Tensor:
    """Multiply dy by an activation's derivative at `saved`."""
    of = torch.ops.aten
    match word:
        case "relu":
            made = of.threshold_backward.default(dy, saved, 0)
        case "relu6":
            made = of.hardtanh_backward.default(dy, saved, 0, 6)
        case "leaky_relu":
            made = of.leaky_relu_backward.default(dy, saved, 0.01, False)  # noqa: FBT003 - PyTorch's signature
        case "sigmoid":
            made = of.sigmoid_backward.default(dy, saved.sigmoid())
        case _:
            made = getattr(of, f"{BY_WORD[word].aten}_backward").default(dy, saved, **BY_WORD[word].options)
    return cast("Tensor", made)


def convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, operation: str, arguments: Mapping[str, int | str]
) -> Tensor:
    """Compute a convolution with PyTorch, given an operation's arguments.

    If an axis is padded differently at its two ends, x is copied into a padded tensor.
    """
    stride, before, *others = torch_arguments(x.dim(), operation, arguments)
    after = _by_axis("pad_{}_end", 0, x.dim(), arguments) if operation == "conv" else before
    if before != after:
        x = functional.pad(x, [pad for ends in zip(reversed(before), reversed(after), strict=True) for pad in ends])
        before = [0] * len(before)
    made: Tensor = torch.convolution(x, weight, bias, stride, before, *others)
    return made


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply PyTorch's linear layer to the pixels of x [N, C, H, W]; filters are [K, C, 1, 1]."""
    return functional.linear(x.movedim(1, -1), weight.flatten(1), bias).movedim(-1, 1)


def torch_arguments(
    rank: int, operation: str, arguments: Mapping[str, int | str]
) -> tuple[list[int], list[int], list[int], bool, list[int], int]:
    """Convert an operation's arguments to `torch.convolution`'s, for tensors with `rank` dimensions.

    The result contains the padding at the beginning of each axis.
    """
    of, transposed = functools.partial(_by_axis, rank=rank, arguments=arguments), operation == "conv_transpose"
    padding, groups = of("padding_{}" if transposed else "pad_{}", 0), int(arguments.get("groups", 1))
    return of("stride_{}", 1), padding, of("dilation_{}", 1), transposed, of("output_padding_{}", 0), groups


def _by_axis(name: str, default: int, rank: int, arguments: Mapping[str, int | str]) -> list[int]:
    return [int(arguments.get(name.format(axis), default)) for axis in "dhw"[5 - rank :]]


def by_pytorch(call: Call, tensors: Mapping[str, Tensor]) -> Tensor:
    """Compute a call with PyTorch's operators. The output has the same layout as a kernel's."""
    arguments, z, mask, saved = dict(call.arguments), *(tensors.get(name) for name in ("z", "mask", "saved"))
    w, bias = tensors["w"], tensors.get("bias")
    cache, scale, shift = (tensors.get(name) for name in ("cache", "scale", "shift"))
    x = prepared(tensors["x"], cache, scale, shift, str(arguments.get("prologue", "")))
    if call.choice is not None and call.choice.linear:
        y = linear(x, w, bias)
    else:
        y = convolved(x, w, bias, call.library.interface.name, arguments)
    y, word = y if z is None else y.add_(z), activation_of(str(arguments["epilogue"]))
    y = activated(y, word) if saved is None else differentiated(y, word, saved)
    y = y if mask is None else torch.where(mask > 0, y, 0)
    memory_format = call.memory_format(y.shape)
    if type(y) is Tensor and y.is_contiguous(memory_format=memory_format):
        return y
    return torch.empty_like(y, memory_format=memory_format).copy_(y)  # also without data, whose sizes may be symbols


def prepared(x: Tensor, cache: Tensor | None, scale: Tensor | None, shift: Tensor | None, prologue: str) -> Tensor:
    """Return the convolution's actual input: a video joined with the frames before it, or images after the prologue."""
    x = x if cache is None else torch.cat((cache, x), 2)
    if scale is None:
        return x
    ones = (1,) * (x.dim() - 2)
    scale, shift = (None if each is None else each.view(*each.shape, *ones) for each in (scale, shift))
    x = x * scale if shift is None else torch.addcmul(shift, x, scale)
    return activated(x, prologue_activation(prologue))


CONVOLUTION = Operator(BY_NAME["conv"], "convolution", by_pytorch)
"""The operator for libraries of conv2d, conv and conv_transpose. It takes the arrays of `conv`, which include the other
two operations' arrays. The function `convolution` has a more convenient signature.
"""


class Convolution(nn.Module):
    """A convolution computed by PyTorch, with one to three spatial axes, transposed or not."""

    operator = CONVOLUTION

    def __init__(
        self, problem: Problem, weight: nn.Parameter, bias: nn.Parameter | None, factors: Tensor | None = None
    ) -> None:
        """Use these parameters. `factors` [2, N, C] are the scale and shift of a batch norm in front of the layer."""
        super().__init__()
        self.weight, self.bias = weight, bias
        self.register_buffer("factors", factors, persistent=False)
        self.problem = problem
        """the convolution; this module does not compute the problem's epilogue"""
        self._operation, self._arguments = problem.operation, problem.arguments
        self.eval()

    def forward(self, input: Tensor, *others: Tensor) -> Tensor:  # noqa: A002 - as in PyTorch's convolutions
        """Compute y [N, K, ...] from the tensors described by `problem.inputs`, the first of which is x [N, C, ...]."""
        return self.with_bias(self.prepared(input, *others), self.bias)

    def prepared(self, x: Tensor, *others: Tensor) -> Tensor:
        """Return the tensor that the filters are applied to."""
        return prepared(x, *self.optional(len(x), others), self.problem.prologue)

    def optional(self, n: int, others: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the frames before n images and the scale and shift [N, C] of their channels, if the problem has them.

        The kernels read factors of each image. A batch norm's are repeated for as many images as the problem has.
        """
        if (factors := self._buffers["factors"]) is not None:
            scale, shift = factors if n <= factors.shape[1] else factors[:, :1].expand(-1, n, -1).contiguous()
            return None, scale[:n], shift[:n]
        given = iter(others)
        cache = next(given) if self.problem.cache_d else None
        gate = next(given, None)
        return cache, None if gate is None else gate.flatten(1), None

    def with_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve an input returned by `prepared`, with this bias."""
        return convolved(x, self.weight, bias, self._operation, self._arguments)

    def first_sizes(self, problem: LayerProblem) -> tuple[int, ...]:
        """Return the sizes [C, ...] of the images that the operator gets for a problem."""
        return tuple(size or 0 for size in problem.x[1:])

    @property
    def device(self) -> torch.device:
        """The device of the filters."""
        return self.weight.device

    def tuned(self, epilogue: str, library: str | Path, choice: Choice = _ANY) -> TunedConvolution:
        """Return the same convolution, with this epilogue and computed by a library's kernels."""
        return TunedConvolution(self, replace(self.problem, epilogue=epilogue), library, choice)

    def extra_repr(self) -> str:
        """Return the text that `print` shows in parentheses."""
        of = self.problem.geometry
        kind = "transposed, " if of.transposed else ""
        return f"{kind}x {sizes(of.x)}, filters {sizes(of.w)}, stride {of.stride}, padding {of.before}"


class LinearLayer(Convolution):
    """A linear layer applied to the pixels of channels-last images, which a kernel computes as a 1x1 convolution."""

    def with_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Compute y [N, K, H, W] from x [N, C, H, W] with this bias."""
        return linear(x, self.weight, bias)


class UpsampledConvolution(Convolution):
    """A 3x3 convolution after nearest upsampling by 2, which a kernel computes as a transposed convolution."""

    def with_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Compute y [N, K, 2 H, 2 W] from x [N, C, H, W] with this bias."""
        upsampled = functional.interpolate(x, scale_factor=2.0)
        made: Tensor = torch.conv2d(upsampled, self.weight, bias, padding=1, groups=self.problem.geometry.groups)
        return made

    def tuned(self, epilogue: str, library: str | Path, choice: Choice = _ANY) -> TunedConvolution:
        """Return the equivalent transposed convolution, with this epilogue and a library's kernels."""
        weight = nn.Parameter(upsampled_filters(self.weight, self.problem.geometry.groups), requires_grad=False)
        return Convolution(self.problem, weight, self.bias).tuned(epilogue, library, choice)


class JoinedConvolution(Convolution):
    """A 2-D convolution of two concatenated tensors, which a kernel computes as a 3-D convolution of two frames.

    The tensors are [N, C, 1, H, W], and the filters [K, 2 C, R, S].
    """

    def prepared(self, x: Tensor, *others: Tensor) -> Tensor:
        """Concatenate the two tensors. The frame in front of x comes first."""
        return torch.cat((*others, x), 1)

    def with_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Compute y [N, K, 1, P, Q] with this bias."""
        return super().with_bias(x.squeeze(2), bias).unsqueeze(2)

    def tuned(self, epilogue: str, library: str | Path, choice: Choice = _ANY) -> TunedConvolution:
        """Return the 3-D convolution that computes the same, with this epilogue and a library's kernels."""
        frames = self.weight.unflatten(1, (2, -1)).movedim(1, 2).contiguous(memory_format=torch.channels_last_3d)
        weight = nn.Parameter(frames, requires_grad=False)
        return Convolution(self.problem, weight, self.bias).tuned(epilogue, library, choice)


class ShuffledConvolution(Convolution):
    """A convolution and a pixel shuffle after it, which a kernel computes as a transposed convolution."""

    def with_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Compute y [N, K, factor H, factor W] from x [N, C, H, W] with this bias [factor^2 K]."""
        of, factor = self.problem.geometry, self.problem.shuffle
        padding = [taps - 1 - pad // factor for taps, pad in zip(self.weight.shape[2:], of.before, strict=True)]
        return functional.pixel_shuffle(torch.conv2d(x, self.weight, bias, padding=padding), factor)

    def tuned(self, epilogue: str, library: str | Path, choice: Choice = _ANY) -> TunedConvolution:
        """Return the equivalent transposed convolution, with this epilogue and a library's kernels."""
        weight = nn.Parameter(shuffled_filters(self.weight, self.problem.shuffle), requires_grad=False)
        conv = Convolution(self.problem, weight, None)
        return TunedShuffle(conv, self.bias, replace(self.problem, epilogue=epilogue), library, choice)


def shuffled_filters(weight: Tensor, factor: int) -> Tensor:
    """Convert a convolution's filters [factor^2 K, C, R, S] to those [C, K, factor R, factor S] of the transposed
    convolution that also computes the pixel shuffle after it.

    The transposed convolution has a stride of `factor`. Pixel i and tap factor * u + a add to output phase a, so the
    flipped filters of phase a are every `factor`-th tap.
    """
    phases = weight.flip((2, 3)).unflatten(0, (-1, factor, factor))  # [K, a, b, C, R, S]
    made = phases.permute(3, 0, 4, 1, 5, 2).flatten(4, 5).flatten(2, 3)
    last = weight.is_contiguous(memory_format=torch.channels_last)
    return made.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def upsampled_filters(weight: Tensor, groups: int) -> Tensor:
    """Convert 3x3 filters after nearest upsampling by 2 to a transposed convolution's filters [C, K/groups, 4, 4].

    The transposed convolution has a stride of 2 and a padding of 1. Tap a of a row adds pixel i to output 2 i + a - 1,
    so it is the sum of those taps of the 3x3 filter that read pixel i for this output. Sums are rounded once.
    """
    taps = torch.tensor([[0, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0]], dtype=torch.float64, device=weight.device)
    grouped = weight.double().unflatten(0, (groups, -1))
    summed = torch.einsum("ar,bs,gkcrs->gckab", taps, taps, grouped).flatten(0, 1).to(weight.dtype)
    last = weight.is_contiguous(memory_format=torch.channels_last)
    return summed.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


class TunedConvolution(TunedModule, Convolution):
    """A convolution computed by a library's kernels, or by PyTorch for shapes without a kernel.

    If the problem has a residual, the module takes it as the second argument and adds it before the activation. Further
    arguments are the frames before a video, or the factors of each image's channels [N, C, 1, ...]. The operator
    chooses a kernel in the first call with a given shape. PyTorch computes images on another type of device,
    and all images once the filters have been cast to another dtype (`network.half()`). The module notices when
    parameters change in place or through `load_state_dict`, but not through `.data`.
    """

    def __init__(self, conv: Convolution, problem: Problem, library: str | Path, choice: Choice = _ANY) -> None:
        """Use the parameters of `conv`; `problem` determines the layout and the epilogue."""
        super().__init__(problem, conv.weight, conv.bias, conv.factors)
        of = problem.geometry
        zeros = conv.weight.new_zeros(of.k) if conv.bias is None and problem.epilogue != "none" else None
        self.register_buffer("zeros", zeros, persistent=False)  # the bias for a kernel that requires one
        self._dtype = conv.weight.dtype
        self._call = Call(str(library), tuple(problem.arguments.items()), torch_shapes=True, choice=choice).text

    def forward(self, input: Tensor, z: Tensor | None = None, *others: Tensor) -> Tensor:  # noqa: A002
        """Compute y [N, K, ...] from x [N, C, ...], the residual z [N, K, ...] and the problem's other inputs."""
        x, own = input, self._parameters
        weight, bias = own.get("weight"), own.get("bias")  # reading each as an attribute would take 0.8 us
        if weight is None or bias is None:
            weight, bias = self.weight, self.zeros if self.bias is None else self.bias
        read: tuple[Tensor | None, ...] = (x, z, None, None, None)
        if others or self._buffers["factors"] is not None:
            read = (x, z, *self.optional(len(x), others))
        if not torch.compiler.is_dynamo_compiling():
            y: Tensor | None = CONVOLUTION.call_cached(self._call, read, (weight, bias))
            if y is not None:
                return y
        if self._call and weight.dtype == self._dtype and CONVOLUTION.runtime_of(x.device) is not None:
            return cast("Tensor", CONVOLUTION(x, weight, bias, *read[1:], self._call))
        return self.by_pytorch(x, z, *others)

    def by_pytorch(self, x: Tensor, z: Tensor | None = None, *others: Tensor) -> Tensor:
        """Compute the same result with PyTorch's operators."""
        plain = self.with_bias(self.prepared(x, *others), self.bias)
        return activated(plain if z is None else plain + z, self.problem.activation)

    def error(
        self, x: Tensor, z: Tensor | None = None, *others: Tensor, y: Tensor, bounds: tuple[float, float]
    ) -> float:
        """Return the largest error in results y as a fraction of the allowed error.

        Results are compared with float64 at all pixels, or at random ones if there are many. The allowed error of a sum
        is `bounds[0]` times the sum of its terms' magnitudes. Where padding leaves few terms, this factor grows up to
        `bounds[1]`, as in autotune's verification. The activation multiplies this error, and rounding adds to it.
        """
        of = self.problem.geometry
        pixels = chosen_pixels(y, self.weight, of.groups)
        scaled = x if self.problem.prologue == "none" else x.float()
        exact, size, left = sums(self.prepared(scaled, *others), self.weight, pixels, of)
        for added in (self.bias, None if z is None else at_pixels(z, pixels)):
            if added is not None:
                exact, size = exact.add_(added), size.add_(added.abs())
        allowed = (bounds[0] / left.sqrt()).clamp(max=max(bounds)) * size
        word, rounding = self.problem.activation, torch.finfo(y.dtype)
        exact = activated(exact, word)
        if word:
            allowed = BY_WORD[word].steepest * allowed + 8 * 2.0**-24 * (exact.abs() + size.clamp(max=1.0))
        allowed += rounding.eps / 2 * exact.abs() + rounding.tiny * rounding.eps
        ratio = (at_pixels(y, pixels) - exact).abs().div_(allowed).amax()
        return float(ratio.nan_to_num(nan=torch.inf))

    def extra_repr(self) -> str:
        """Return the text that `print` shows in parentheses."""
        return f"{super().extra_repr()}, tuned for {self.problem.geometry.layout}, epilogue {self.problem.epilogue}"


class TunedShuffle(TunedConvolution):
    """A convolution and a pixel shuffle, computed by a library's kernels.

    Each output phase has its own biases, so the kernel reads an image of biases as a residual.
    """

    def __init__(
        self, conv: Convolution, biases: nn.Parameter | None, problem: Problem, library: str | Path, choice: Choice
    ) -> None:
        """Use the transposed filters of `conv` and the biases [factor^2 K] of the convolution."""
        super().__init__(conv, problem, library, choice)
        self.biases = biases
        self._last: tuple[object, Tensor] | None = None
        """the last image of biases, and what it depends on"""
        self._captured: dict[object, Tensor] = {}
        """images of biases that CUDA graphs read"""

    def forward(self, input: Tensor, *_: Tensor | None) -> Tensor:  # noqa: A002
        """Compute y [N, K, factor H, factor W] from x [N, C, H, W]."""
        return super().forward(input, self.residual(input))

    def residual(self, x: Tensor) -> Tensor | None:
        """Return the image of biases [N, K, factor H, factor W] for x, or None if the convolution has no bias."""
        if self.biases is None:
            return None
        if torch.compiler.is_dynamo_compiling():
            return self._image_of_biases(x)
        version = 0 if self.biases.is_inference() else self.biases._version
        depends, last = (x.shape, x.dtype, x.device, version), self._last
        capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
        if last is None or last[0] != depends:
            image = self._image_of_biases(x)
            if capturing:
                return image  # the graph makes it again in each replay
            if x.is_cuda:
                torch.cuda.current_stream(x.device).synchronize()  # for other streams
            last = self._last = (depends, image)
        if capturing:
            self._captured[depends] = last[1]
        return last[1]

    def _image_of_biases(self, x: Tensor) -> Tensor:
        assert self.biases is not None  # noqa: S101 - the caller has tested it
        factor, of = self.problem.shuffle, self.problem.geometry
        ends = zip(x.shape[2:], self.weight.shape[2:], of.before, strict=True)
        sizes = [size - 1 + (taps - 2 * pad) // factor for size, taps, pad in ends]
        image = functional.pixel_shuffle(self.biases.view(1, -1, 1, 1).expand(len(x), -1, *sizes), factor)
        last = self.problem.layout == "nhwc"
        return image.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)

    def error(self, x: Tensor, *_: Tensor | None, y: Tensor, bounds: tuple[float, float]) -> float:
        """Return the largest error in results y as a fraction of the allowed error."""
        return super().error(x, self.residual(x), y=y, bounds=bounds)


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    z: Tensor | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    activation: str = "",
    channels_last: bool = False,
    library: str | Path | None = None,
) -> Tensor:
    """Compute PyTorch's convolution, then add z and apply an activation, with the library's kernel for x's shape.

    A conv_transpose library computes transposed convolutions, which are the only ones that take an `output_padding`. x,
    weight, bias and z have the same dtype and device, and z has the output's shape. `activation` is a word such as
    relu. Both z and an activation require a bias. `channels_last` means that the kernel and the output are NHWC.
    `library` is a path, or None for the library found by `find_library`. Raises LibraryError if the library has no
    kernel for the problem, and TrainingMode if gradients are required.
    """
    path = str(find_library() if library is None else library)
    numbers = tuple(
        tuple(given) if isinstance(given, (list, tuple)) else (given,) * (x.dim() - 2)
        for given in (stride, padding, dilation, output_padding)
    )
    if bias is None and (activation or z is not None):
        raise ValueError(f"{activation or 'z'} needs a bias: the library has no such epilogue without one")
    epilogue = "none" if bias is None else epilogue_name(residual=z is not None, activation=activation)
    k = weight.shape[1] * groups
    text = _text_of(path, numbers, k, groups, epilogue, "nhwc" if channels_last else "nchw")
    return cast("Tensor", CONVOLUTION(x, weight, bias, z, None, None, None, text))


@torch.compiler.assume_constant_result
def _text_of(path: str, numbers: tuple[tuple[int, ...], ...], k: int, groups: int, epilogue: str, layout: str) -> str:
    """Return a call's text. `numbers` are PyTorch's stride, padding, dilation and output padding."""
    return _known_text_of(path, numbers, k, groups, epilogue, layout)


@functools.cache
def _known_text_of(
    path: str, numbers: tuple[tuple[int, ...], ...], k: int, groups: int, epilogue: str, layout: str
) -> str:
    operation = load(path).interface.name
    stride, padding, dilation, output_padding = numbers
    named = {"stride_{}": stride, "dilation_{}": dilation}
    if operation == "conv_transpose":
        named |= {"padding_{}": padding, "output_padding_{}": output_padding}
    else:
        named |= {"pad_{}": padding} | ({"pad_{}_end": padding} if operation == "conv" else {})
    arguments: dict[str, int | str] = {"k": k} if operation == "conv_transpose" else {}
    for name, sizes_of in named.items():
        axes = zip("dhw"[-len(sizes_of) :], sizes_of, strict=True)
        arguments |= {name.format(axis): size for axis, size in axes}
    arguments |= {"groups": groups, "layout": layout, "epilogue": epilogue}
    return Call(path, tuple(arguments.items()), torch_shapes=True).text
