"""The declarations of the operations by which networks are converted; the exports of each contain this module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .activations import ACTIVATIONS
from .interface import Interface, InterfaceArray, InterfaceSize
from .plain_problems import MOST_TENSORS

_AFTER_RELU = tuple(each.word for each in ACTIVATIONS[1:])  # ReLU's epilogues have the first numbers in the C interface
_STORED = {"f32": "f32", "f16": "f16", "bf16": "bf16"}
_FLOATS = dict.fromkeys(_STORED, "f32")
_WORDS = {
    "dtype": tuple(_STORED),
    "layout": ("nchw", "nhwc"),
    "epilogue": (
        *("none", "bias", "bias_relu", "bias_add", "bias_add_relu"),
        *(f"{terms}_{activation}" for activation in _AFTER_RELU for terms in ("bias", "bias_add")),
    ),
}


def _array(
    name: str, role: str, *extents: str, optional: bool = False, dtypes: Mapping[str, str] = _STORED
) -> InterfaceArray:
    """An array of an operation without layouts."""
    return InterfaceArray(name, role, {"": extents}, dtypes, optional)


def _laid_out(
    name: str, role: str, first: str, second: str, spatial: Sequence[str], *, optional: bool = False
) -> InterfaceArray:
    """An array whose second extent comes last in NHWC."""
    axes = {"nchw": (first, second, *spatial), "nhwc": (first, *spatial, second)}
    return InterfaceArray(name, role, axes, _STORED, optional)


def _interface(
    name: str,
    sizes: str,
    rank: int,
    filters: tuple[str, str],
    more: tuple[InterfaceArray, ...] = (),
    words: Mapping[str, tuple[str, ...]] = _WORDS,
) -> Interface:
    """An operation with these sizes, some with a default, the first two extents of its filters, and `more` arrays."""
    arrays = (
        _laid_out("x", "in", "n", "c", "dhw"[-rank:]),
        _laid_out("w", "weights", *filters, "trs"[-rank:]),
        InterfaceArray("bias", "weights", {"nchw": ("k",), "nhwc": ("k",)}, _STORED, optional=True),
        _laid_out("y", "out", "n", "k", "opq"[-rank:]),
        _laid_out("z", "in", "n", "k", "opq"[-rank:], optional=True),
        *more,
    )
    pairs = (size.partition("=") for size in sizes.split())
    declared = tuple(InterfaceSize(size, int(default) if default else None) for size, _, default in pairs)
    return Interface(name, ("n",), declared, words, arrays)


_OF_CONV2D = """
n c h w k r s
stride_h=1 stride_w=1 pad_h=0 pad_w=0 dilation_h=1 dilation_w=1 groups=1"""
_OF_CONV = """
n c d=1 h=1 w k t=1 r=1 s
stride_d=1 stride_h=1 stride_w=1 cache_d=0 pad_d=0 pad_h=0 pad_w=0 pad_d_end=0 pad_h_end=0 pad_w_end=0
dilation_d=1 dilation_h=1 dilation_w=1 groups=1"""
_OF_CONV_TRANSPOSE = """
n c d=1 h=1 w k t=1 r=1 s
stride_d=1 stride_h=1 stride_w=1 padding_d=0 padding_h=0 padding_w=0
output_padding_d=0 output_padding_h=0 output_padding_w=0 dilation_d=1 dilation_h=1 dilation_w=1 groups=1"""

_MORE_OF_CONV = (
    _laid_out("cache", "in", "n", "c", ("cache_d", "h", "w"), optional=True),
    *(
        InterfaceArray(name, "in", {"nchw": ("n", "c"), "nhwc": ("n", "c")}, _STORED, optional=True)
        for name in ("scale", "shift")
    ),
)
_PROLOGUES = tuple(
    f"{factors}_{activation}" if activation else factors
    for activation in ("", *(each.word for each in ACTIVATIONS))
    for factors in ("scale", "scale_shift")
)

CONV_INTERFACES = (
    _interface("conv2d", _OF_CONV2D, 2, ("k", "c // groups")),
    _interface("conv", _OF_CONV, 3, ("k", "c // groups"), _MORE_OF_CONV, {**_WORDS, "prologue": ("none", *_PROLOGUES)}),
    _interface("conv_transpose", _OF_CONV_TRANSPOSE, 3, ("c", "k // groups")),
)

FILTER_GRADIENT_INTERFACE = Interface(
    "conv_filter_gradient",
    ("n",),
    tuple(size for size in CONV_INTERFACES[1].sizes if size.name != "cache_d"),
    {"dtype": tuple(_STORED), "layout": ("nhwc",)},
    (
        InterfaceArray("x", "in", {"nhwc": ("n", "d", "h", "w", "c")}, _STORED, optional=False),
        InterfaceArray("dy", "in", {"nhwc": ("n", "o", "p", "q", "k")}, _STORED, optional=False),
        InterfaceArray("dw", "out", {"nhwc": ("k", "t", "r", "s", "c // groups")}, _FLOATS, optional=False),
    ),
)

_NORM_EPILOGUES = (
    *("weight_bias", "weight_bias_relu", "weight_bias_silu", "weight_bias_gelu", "weight", "weight_silu", "none"),
    *(f"{terms}_{each.word}" for each in ACTIVATIONS for terms in ("weight", "weight_bias")),
)
NORM_INTERFACE = Interface(
    "norm",
    ("n",),
    (
        InterfaceSize("n", None),
        InterfaceSize("pixels", 1),
        InterfaceSize("c", None),
        InterfaceSize("groups", 1),
        InterfaceSize("eps_e12", 10_000_000),
    ),
    {"dtype": tuple(_STORED), "kind": ("standard", "rms"), "epilogue": tuple(dict.fromkeys(_NORM_EPILOGUES))},
    (
        _array("x", "in", "n", "pixels", "c"),
        _array("weight", "weights", "c", optional=True),
        _array("bias", "weights", "c", optional=True),
        _array("y", "out", "n", "pixels", "c"),
    ),
)
_TENSORS = tuple(_array(f"x{i}", "in", "n", f"c{i}", optional=i > 0) for i in range(MOST_TENSORS))
CONCAT_INTERFACE = Interface(
    "concat",
    ("n",),
    (InterfaceSize("n", None), *(InterfaceSize(f"c{i}", 0 if i else None) for i in range(MOST_TENSORS))),
    {
        "dtype": tuple(_STORED),
        "epilogue": ("none", "weight_bias", *(f"weight_bias_{each.word}" for each in ACTIVATIONS)),
    },
    (
        _TENSORS[0],
        _array("weight", "weights", "c", optional=True, dtypes=_FLOATS),
        _array("bias", "weights", "c", optional=True, dtypes=_FLOATS),
        _array("y", "out", "n", "c"),
        *_TENSORS[1:],
    ),
)
_IMAGES = _array("x", "in", "n", "pixels", "c")
_OF_IMAGES = tuple(InterfaceSize(name, None) for name in ("n", "pixels", "c"))
MEAN_INTERFACE = Interface(
    "pixel_mean",
    ("n",),
    _OF_IMAGES,
    {"dtype": tuple(_STORED)},
    (_IMAGES, _array("y", "out", "n", "c")),
)
GATE_INTERFACE = Interface(
    "gate",
    ("n",),
    _OF_IMAGES,
    {"dtype": tuple(_STORED)},
    (
        _IMAGES,
        _array("gate", "in", "n", "c"),
        _array("y", "out", "n", "pixels", "c"),
    ),
)
MAX_POOL_INTERFACE = Interface(
    "max_pool2d",
    ("n",),
    tuple(
        InterfaceSize(name, default)
        for names, default in (("n c h w r s", None), ("stride_h stride_w", 1), ("pad_h pad_w", 0))
        for name in names.split()
    ),
    {"dtype": tuple(_STORED), "layout": ("nchw", "nhwc")},
    (_laid_out("x", "in", "n", "c", "hw"), _laid_out("y", "out", "n", "c", "pq")),
)
AVG_POOL_INTERFACE = replace(MAX_POOL_INTERFACE, name="avg_pool2d")
PLAIN_INTERFACES = (
    *(NORM_INTERFACE, CONCAT_INTERFACE, MAX_POOL_INTERFACE, AVG_POOL_INTERFACE, MEAN_INTERFACE, GATE_INTERFACE),
)
"""Operations without filters."""
NETWORK_INTERFACES = (*CONV_INTERFACES, FILTER_GRADIENT_INTERFACE, *PLAIN_INTERFACES)
