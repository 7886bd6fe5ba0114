"""The declaration of conv2d: its problems and their arrays. The export of another operation has its own here."""

from __future__ import annotations

from .activations import ACTIVATIONS
from .interface import Interface, InterfaceArray, InterfaceSize

_AFTER_RELU = tuple(each.word for each in ACTIVATIONS[1:])  # ReLU's epilogues have the first numbers in the C interface
_STORED = {"f32": "f32", "f16": "f16", "bf16": "bf16"}
_SIZES = dict.fromkeys(("n", "c", "h", "w", "k", "r", "s"))
_DEFAULTS = {"stride_h": 1, "stride_w": 1, "pad_h": 0, "pad_w": 0, "dilation_h": 1, "dilation_w": 1, "groups": 1}


def _array(name: str, role: str, nchw: str, nhwc: str, *, optional: bool = False) -> InterfaceArray:
    axes = {"nchw": tuple(nchw.split(", ")), "nhwc": tuple(nhwc.split(", "))}
    return InterfaceArray(name, role, axes, _STORED, optional)


INTERFACE = Interface(
    name="conv2d",
    runtime="n",
    sizes=tuple(InterfaceSize(name, default) for name, default in (_SIZES | _DEFAULTS).items()),
    words={
        "dtype": tuple(_STORED),
        "layout": ("nchw", "nhwc"),
        "epilogue": (
            *("none", "bias", "bias_relu", "bias_add", "bias_add_relu"),
            *(f"{terms}_{activation}" for activation in _AFTER_RELU for terms in ("bias", "bias_add")),
        ),
    },
    arrays=(
        _array("x", "in", "n, c, h, w", "n, h, w, c"),
        _array("w", "weights", "k, c // groups, r, s", "k, r, s, c // groups"),
        _array("bias", "weights", "k", "k", optional=True),
        _array("y", "out", "n, k, p, q", "n, p, q, k"),
        _array("z", "in", "n, k, p, q", "n, p, q, k", optional=True),
    ),
)
