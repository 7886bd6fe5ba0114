"""Convert ATen's operators, from torch.export or a PyTorch capture, to a `Graph`'s operators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from .aten_calls import CASTS, DROPOUTS, NORMS, UNKNOWN, Call, TensorType
from .convolution import DTYPES, Geometry, Problem, Shape, product
from .elementwise import BINARY, Operand, binary, elementwise
from .fusion import Graph, LayerProblem, MatrixProduct, Operator, convolution, matrix_product
from .network_layers import Layer
from .plain_problems import (
    AvgPoolProblem,
    BatchNormProblem,
    ConcatProblem,
    GateProblem,
    MaxPoolProblem,
    MeanProblem,
    NormProblem,
    concat,
    images_layer,
    norm,
)

_UPSAMPLINGS = ("upsample_nearest2d", "_upsample_nearest_exact2d")
_UNKNOWN = TensorType((None,) * 5)  # type of an undescribed constant; never mistaken for one number per channel
_NONE = frozenset[str]()
_COPIES = ("clone", "contiguous", "detach", "alias", "lift_fresh_copy")
_FLOATS = (*DTYPES, "f64", "float64")
_LEAST_LENGTH = 1e-6
"""Largest accepted minimum length (`clamp_min`) of a written-out norm. Kernels add 1e-12 to the mean square instead, so
they may differ from PyTorch for vectors shorter than the minimum."""
_OWN_STATISTICS = ("layer_norm", "native_layer_norm", "rms_norm", "group_norm")
"""Norms that compute the statistics of their own input."""
_PRODUCTS = {
    "linear": ("input", "weight"),
    "matmul": ("self", "other"),
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "gemm": ("mat1", "mat2"),
}
"""Matrix products -> the names of the arguments that are multiplied. `gemm` is ONNX's and may transpose both."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of operators in a network, in execution order."""

    calls: tuple[Call, ...]
    tensors: Mapping[str, TensorType]
    images: tuple[str, ...]
    """input tensors, which the caller passes"""
    constants: Mapping[str, str]
    """the network's own tensors -> their parameter names in the model"""
    outputs: frozenset[str]
    layout: str | None = None
    """layout of all convolutions; None: each convolution has the layout of its stored images and filters"""

    def graph(self) -> Graph:
        """Convert the calls to a graph. Raises ValueError if they aren't in execution order."""
        return _Reader(self).graph()


class _Reader:
    def __init__(self, network: Calls) -> None:
        self._network = network
        written = {call.tensors[0] for call in network.calls if call.in_place and call.tensors}
        self._constants: dict[str, tuple[str, ...]] = {
            name: (name,) for name in network.constants if name not in written
        }
        """tensors that don't depend on the images -> the network's own tensors that they are computed from"""
        self._known = {*network.constants, *network.images}
        self._writers: dict[str, Call] = {}
        self._now: dict[str, str] = {}
        """tensors that were written in place -> the results of the calls that wrote them"""
        given = (self._type(name) for call in network.calls if call.is_convolution for name in call.tensors)
        last = any(each.layouts == {"nhwc"} for each in given)
        self._either = network.layout or ("nhwc" if last else "nchw")
        """the layout of tensors that are contiguous in both layouts"""

    def graph(self) -> Graph:
        operators = tuple(each for call in self._network.calls for each in self._operators(call))
        inputs = tuple(self._shape(name) for name in self._network.images)
        outputs = frozenset(self._latest(name) for name in self._network.outputs)
        dtypes = {name: each.dtype for name, each in self._network.tensors.items()}
        return Graph(operators, outputs, inputs, self._either, dtypes)

    def _operators(self, call: Call) -> Iterator[Operator]:
        for label in call.inner:
            yield Operator((), (), layer=Layer("convolution", label, None, call.why_not, None))
        if not call.writes:
            return  # the call reads a size or asserts something
        if not {*call.tensors} <= self._known or not self._known.isdisjoint(call.writes):
            raise ValueError(f"{call.name} reads a tensor that is not written yet, or writes one again")
        self._known.update(call.writes)
        self._writers |= dict.fromkeys(call.writes, call)
        reads = tuple(self._latest(name) for name in call.tensors if name not in self._constants)
        constants = tuple(each for name in call.tensors for each in self._constants.get(name, ()))
        if not reads and not call.varies:
            self._constants.update(dict.fromkeys(call.writes, constants))
            return
        yield self._operator(call, reads, constants)
        if call.in_place and call.tensors[0] not in self._constants:
            self._now[self._latest(call.tensors[0])] = call.writes[0]

    def _latest(self, name: str) -> str:
        """Return the tensor that currently occupies another tensor's memory."""
        latest = name
        while latest in self._now:
            latest = self._now[latest]
        while name != latest:  # shorten the path for the next lookup
            self._now[name], name = latest, self._now[name]
        return latest

    def _operator(self, call: Call, reads: tuple[str, ...], constants: tuple[str, ...]) -> Operator:
        if call.is_convolution:
            found = self._convolution(call)
            return Operator(reads, call.writes, "convolution", None, constants, layer=found)
        if (made := self._product(call)) is not None:
            linear = self._linear(call)
            of = "other" if linear is None else "convolution"
            return Operator(reads, call.writes, of, None, constants, layer=linear, product=made)
        if call.name in _OWN_STATISTICS:
            return Operator(reads, call.writes, constants=constants, layer=self._norm(call))
        if call.name == "div" and (parts := self._parts_of_norm(call)) is not None:
            *inside, x = parts
            return Operator(reads, call.writes, layer=self._written_out(call, x), inside=tuple(inside), source=x)
        if call.name in BINARY and call.limit("alpha") in (None, 1) and "rounding_mode" not in call.arguments:
            other = "exponent" if call.name == "pow" else "other"
            operands = (self._operand(call, "self"), self._operand(call, other))
            shape = self._shape(call.writes[0])
            return self._gated(call, binary(BINARY[call.name], operands, call.writes[0], shape, constants))
        if call.name in _COPIES or (call.name in DROPOUTS and not call.trains):
            return Operator(reads, call.writes, "copy", lambda x: x)
        if call.name in NORMS and len(reads) == 1 and not call.number("training", 0):
            return Operator(reads, call.writes, "affine", None, constants, amounts=(1,), layer=self._batch_norm(call))
        if (kind := self._moved(call)) is not None:
            joined = self._concat(call) if kind[0] == "joining" else None
            return Operator(reads, call.writes, kind[0], constants=constants, amounts=kind[1], layer=joined)
        function = elementwise(call) if len(call.tensors) == 1 else None
        return Operator(reads, call.writes, function=function, constants=constants, layer=self._pool(call))

    def _moved(self, call: Call) -> tuple[str, tuple[int, ...]] | None:
        """Return the kind and amounts of an operator that moves, repeats or casts pixels, or None for other operators.

        `Operator` describes kinds and amounts.
        """
        made = self._shape(call.writes[0])
        given = [self._type(name) for name in call.tensors]
        floats = all(self._type(name).dtype in _FLOATS for name in (*call.tensors[:1], *call.writes))
        if call.name in CASTS and floats and given[0].shape == made:
            return "cast", ()
        if call.name == "permute" and len(made) > 2:
            first = (0, len(made) - 1, *range(1, len(made) - 1))
            given_axes = call.whole("dims", 0, 0)
            return ("channels_first", ()) if tuple(each % len(made) for each in given_axes) == first else None
        if call.name in ("pad", "constant_pad_nd"):
            pads = call.whole("pad", 0, 0)
            zeros = call.number("value", 0) == 0 and call.arguments.get("mode", "constant") == "constant"
            ends = [pads[at : at + 2] for at in range(0, len(pads), 2)]
            ends = [*ends, *[(0, 0)] * (len(made) - len(ends))]
            return ("padding", tuple(each for pair in reversed(ends) for each in pair)) if zeros and pads else None
        if call.name == "cat" and not {*call.tensors} & {*self._constants}:
            axis = int(call.number("dim", 0)) % max(len(made), 1)
            sizes = [each.shape[axis] if axis < len(each.shape) else None for each in given]
            known = [size for size in sizes if size is not None]
            return ("joining", (axis, *known)) if len(known) == len(given) else None
        if call.name == "pixel_shuffle" and (factor := int(call.number("upscale_factor", 1))) > 1:
            return "shuffle", (factor,)
        if call.name in _UPSAMPLINGS:
            scales = call.floats("scale_factors") or (call.limit("scales_h"), call.limit("scales_w"))
            twice = made[2:] == tuple(2 * (size or 0) for size in given[0].shape[2:])
            return ("upsampling", ()) if twice and {*scales} == {2.0} else None  # no scale: upsampled to a given size
        return None

    def _concat(self, call: Call) -> Layer[ConcatProblem] | None:
        """Return the layer for a concatenation of channels-last images along the channels, or None for other calls."""
        given = [self._type(name) for name in call.tensors]
        stored = self._network.layout == "nhwc" or all("nhwc" in each.layouts for each in given)
        one_dtype = len({each.dtype for each in given}) == 1
        if not stored or not one_dtype or call.number("dim", 0) not in (1, 1 - len(given[0].shape)):
            return None
        return concat(call.writes[0], [each.shape for each in given], given[0].dtype)

    def _batch_norm(self, call: Call) -> Layer[BatchNormProblem] | None:
        """Return the layer for a batch norm of channels-last images, or None for other batch norms."""
        name = call.tensor("input")
        x, dtype = self._images(name), self._type(name).dtype
        if x is None or self._type(call.writes[0]).dtype != dtype:
            return None
        problem = BatchNormProblem(x=x, dtype=dtype, channels=x[1:2])
        return images_layer(self._label(call), problem, 2 * math.prod(x))

    def _gated(self, call: Call, operator: Operator) -> Operator:
        """Make a gate from a product of channels-last images and a factor per image and channel.

        The gate reads the images first. Other operators are returned unchanged.
        """
        if call.name != "mul" or call.in_place or len(operator.reads) != 2:
            return operator
        made = self._shape(call.writes[0])
        reads = sorted(operator.reads, key=lambda name: self._shape(name) != made)
        x = self._images(reads[0])
        if x is None or self._shape(reads[1]) != (*x[:2], *(1,) * (len(x) - 2)) or math.prod(x[2:]) == 1:
            return operator
        dtype = self._type(reads[0]).dtype
        if self._type(reads[1]).dtype != dtype:
            return operator
        layer = images_layer(call.writes[0], GateProblem(x=x, dtype=dtype), math.prod(x))
        return replace(operator, kind="gate", reads=tuple(reads), layer=layer)

    def _pool(self, call: Call) -> Layer[LayerProblem] | None:
        """Return the layer for a pool or mean of channels-last images, or None for other calls."""
        x = self._images(call.tensor("self"))
        if x is None:
            return None
        label, dtype, made = call.path or call.writes[0], self._type(call.tensor("self")).dtype, call.writes[0]
        if self._type(made).dtype != dtype:
            return None
        averages = call.name == "mean" and {at % len(x) for at in call.whole("dim", 0, 0)} == {*range(2, len(x))}
        if averages or (call.name.startswith("adaptive_avg_pool") and {*self._shape(made)[2:]} == {1}):
            mean = MeanProblem(x=x, dtype=dtype, keeps_axes=len(self._shape(made)) == len(x))
            return images_layer(label, mean, math.prod(x))
        kind = {"max_pool2d": MaxPoolProblem, "avg_pool2d": AvgPoolProblem}.get(call.name)
        window, pads = call.whole("kernel_size", 2, 1), call.whole("padding", 2, 0)
        if kind is None or len(x) != 4 or {*call.whole("dilation", 2, 1)} != {1} or not (window and pads):
            return None
        rows, columns = window
        strides = call.whole("stride", 0, 0) or window
        (before, left), (down, right) = pads, strides * 2 if len(strides) == 1 else strides
        pool = kind(x=x, dtype=dtype, window=(rows, columns), stride=(down, right), padding=(before, left))
        fits = pool.y == self._shape(made)  # False if `ceil_mode` adds windows that reach past the end
        if kind is AvgPoolProblem:
            counts_padding = before == left == 0 or bool(call.number("count_include_pad", 1))
            fits = fits and counts_padding and call.number("divisor_override", rows * columns) == rows * columns
        return images_layer(label, pool, math.prod(pool.y) * rows * columns) if fits else None

    def _images(self, name: str) -> tuple[int, ...] | None:
        """Return the shape [N, C, ...] of channels-last images, or None for other tensors or if a size is unknown."""
        kind = self._type(name)
        known = tuple(size for size in kind.shape if size is not None)
        stored = self._network.layout == "nhwc" or "nhwc" in kind.layouts
        return known if stored and len(known) == len(kind.shape) > 3 else None

    def _shape(self, name: str) -> Shape:
        return self._type(name).shape

    def _type(self, name: str) -> TensorType:
        return self._network.tensors.get(name, UNKNOWN)

    def _operand(self, call: Call, name: str) -> Operand:
        tensor = call.tensor(name)
        if tensor and tensor not in self._constants:
            kind = self._type(tensor)
            if self._network.layout is not None:  # applies to all images, regardless of the layout in the capture
                kind = replace(kind, layouts=_NONE)
            return Operand(self._latest(tensor), kind)
        return Operand("", self._network.tensors.get(tensor, _UNKNOWN) if tensor else UNKNOWN, call.limit(name))

    def _label(self, call: Call) -> str:
        """Return a layer's name: its weight parameter's name without `weight`, or else the module's path."""
        filters = self._network.constants.get(call.tensor("weight"), "")
        return filters.removesuffix("weight").removesuffix(".") or call.path or call.writes[0]

    def _convolution(self, call: Call) -> Layer[Problem]:
        x, w, y = (self._shape(name) for name in (call.tensor("input"), call.tensor("weight"), call.writes[0]))
        axes = max(len(w) - 2, 0)
        dilation = call.whole("dilation", axes, 1)
        before = call.whole("padding", axes, 0)
        after = call.whole("padding_end", axes, 0) if "padding_end" in call.arguments else before
        if call.arguments.get("padding") == "same":
            totals = [apart * ((taps or 1) - 1) for apart, taps in zip(dilation, w[2:], strict=False)]
            before, after = tuple(each // 2 for each in totals), tuple(each - each // 2 for each in totals)
        stride = call.whole("stride", axes, 1)
        geometry = Geometry(
            *(x, w, y, stride, before, after, dilation, int(call.number("groups", 1))),
            transposed="transpose" in call.name or bool(call.number("transposed", 0)),
            dtype=self._type(call.tensor("input")).dtype,
            layout=self._network.layout or self._layout(call),
        )
        given = [each for each in (call.tensor("weight"), call.tensor("bias")) if each]
        why_not = call.why_not
        if not {*given} <= {*self._constants}:
            why_not = why_not or "its filters are computed by the network"
        elif any(len(each) < axes for each in (stride, before, after, dilation)):
            why_not = why_not or "its padding or strides are computed by the network"
        return convolution(self._label(call), geometry, bias=bool(call.tensor("bias")), why_not=why_not)

    def _linear(self, call: Call) -> Layer[Problem] | None:
        """Return a linear layer as a 1x1 convolution of channels-last images [N, C, H, W], or None for other calls.

        The layer's rows are [N, H, W, C], or [N, T, C] (images of height 1). Layers with rows [N, C], such as
        classifiers, have few rows and aren't converted.
        """
        x, w, y = (self._type(name) for name in (call.tensor("input"), call.tensor("weight"), call.writes[0]))
        given = {call.tensor("weight"), call.tensor("bias")} - {""}
        ranks = (len(x.shape), len(w.shape))
        if call.name != "linear" or ranks not in ((3, 2), (4, 2)) or not given <= {*self._constants}:
            return None
        if "nchw" not in x.layouts:
            return None
        k, c = w.shape if call.number("transB", 1) else w.shape[::-1]
        images = [(rows[0], rows[-1], *(1,) * (4 - len(rows)), *rows[1:-1]) for rows in (x.shape, y.shape)]
        geometry = Geometry(
            *(images[0], (k, c, 1, 1), images[1], (1, 1), (0, 0), (0, 0), (1, 1), 1), dtype=x.dtype, layout="nhwc"
        )
        return convolution(self._label(call), geometry, bias=bool(call.tensor("bias")), axis=len(x.shape) - 1)

    def _layout(self, call: Call) -> str:
        """Return a convolution's layout. If its filters are contiguous in both layouts, this is the network's
        layout.
        """
        images, filters = (self._type(call.tensor(name)).layouts for name in ("input", "weight"))
        if {"nhwc"} in (images, filters):
            return "nhwc"
        return self._either if filters == {"nchw", "nhwc"} else "nchw"

    def _norm(self, call: Call) -> Layer[NormProblem]:
        x, given = call.tensor("input"), [call.tensor("weight"), call.tensor("bias")]
        kind, grouped = self._type(x), call.name == "group_norm"
        rows = call.whole("normalized_shape", 1, 1)
        why_not = ""
        if not rows:
            why_not = "its normalized shape is computed by the network"
        elif not {*filter(None, given)} <= {*self._constants}:
            why_not = "its weights are computed by the network"
        elif any(self._type(each).dtype != kind.dtype for each in given if each):
            why_not = f"its weights are not in {kind.dtype} like its input"
        elif given[1] and not given[0]:
            why_not = "it has a bias without weights"
        elif grouped and len(kind.shape) > 2 and (self._network.layout or self._either) != "nhwc":
            why_not = "its images are NCHW; kernels of group norms need channels-last ones (--layout nhwc)"
        return norm(
            self._label(call),
            kind.shape,
            kind.dtype,
            channels=(kind.shape[1] or 1) if grouped else math.prod(rows),
            groups=int(call.number("num_groups", 1)) if grouped else None,
            eps=call.limit("eps") if "eps" in call.arguments or call.name == "rms_norm" else 1e-5,
            rms=call.name == "rms_norm",
            terms="weight_bias" if given[1] else "weight" if given[0] else "none",
            why_not=why_not,
        )

    def _parts_of_norm(self, call: Call) -> tuple[str, ...] | None:
        """Return the tensors inside a division of x by its length along axis 1, followed by x, or None for other calls.

        This is how `functional.normalize` is captured.
        """
        x, length = call.tensor("self"), call.tensor("other")
        parts: list[str] = []
        for name in ("expand", "clamp_min", "linalg_vector_norm"):
            made = self._writers.get(length)
            if made is None or made.name.removesuffix("_as") != name:
                return None
            parts.append(length)
            length = made.tensor("self")
            if name == "clamp_min" and not made.number("min", 1) <= _LEAST_LENGTH:
                return None
            if name == "linalg_vector_norm" and not (
                made.number("ord", 2) == 2 and made.whole("dim", 1, 0) == (1,) and made.number("keepdim", 0)
            ):
                return None
        cast = self._writers.get(x)
        if cast is not None and cast.name in CASTS and self._type(x).dtype == "f32":
            parts.append(x)
            return (*parts, cast.tensor("self")) if length == x else None
        return (*parts, x) if length == x else None

    def _written_out(self, call: Call, x: str) -> Layer[NormProblem]:
        """Return a division of x by its length along axis 1 as an RMS norm of each pixel's channels.

        The norm's result is larger by a factor of sqrt(C), which the weights have to remove.
        """
        kind = self._type(x)
        last = (self._network.layout or self._either) == "nhwc"
        why_not = "" if last else "its images are NCHW; kernels of norms need channels-last ones (--layout nhwc)"
        channels = kind.shape[1] if len(kind.shape) > 1 else None
        return norm(
            self._label(call),
            kind.shape,
            kind.dtype,
            channels=channels or 1,
            eps=1e-12,
            rms=True,
            second=True,
            terms="weight_bias",
            why_not=why_not,
        )

    def _product(self, call: Call) -> MatrixProduct | None:
        """Return the matrix product that a call computes, or None for other operators or if a size is unknown."""
        made, label = self._shape(call.writes[0]), self._label(call)
        if call.name == "scaled_dot_product_attention":
            query, key = (self._shape(call.tensor(name)) for name in ("query", "key"))
            both = [product((2, *each, key[-2])) for each in (query, made)] if len(key) > 1 else []
            return MatrixProduct(
                label, sum(each or 0 for each in both), why_not="attention, whose products one kernel computes"
            )
        if call.name not in _PRODUCTS:
            return None
        a, b = (call.tensor(name) for name in _PRODUCTS[call.name])
        first, second = call.number("transA", 0), call.number("transB", call.name == "linear")
        x = self._shape(a)[::-1] if first else self._shape(a)
        transposes = "tn" if first else "nt" if second else "nn"
        scaled = call.number("alpha", 1) != 1 or call.number("beta", 1) != 1
        added = call.tensor("bias") or (call.tensor("self") if call.name == "addmm" else "")
        why_not = "both matrices are transposed" if first and second else ""
        if scaled or call.name == "baddbmm" or len(self._shape(added)) > 1:
            why_not = "adds a matrix, or scales"
        sizes, dtype = (x, self._shape(b), made), self._type(a).dtype
        return matrix_product(label, *sizes, transposes, dtype, bias=bool(added), why_not=why_not)
