"""Calls to ATen operators, as listed by torch.export or a capture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .convolution import Shape

NORMS = ("batch_norm", "_native_batch_norm_legit_no_training")
_CONVOLUTIONS = (
    *("conv1d", "conv2d", "conv3d", "convolution", "_convolution"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
)
CASTS = ("to", "_to_copy", "type_as")
DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is a tensor."""

    name: str


Argument: TypeAlias = "Ref | str | float | Sequence[Argument] | None"


@dataclass(frozen=True, slots=True)
class Call:
    """A call to an ATen operator."""

    name: str
    """the operator's name in ATen, without the underscore of in-place operators; empty for operators outside ATen"""
    arguments: Mapping[str, Argument]
    """arguments by the names in the operator's schema; arguments that are not listed have the schema's defaults"""
    writes: tuple[str, ...]
    """names of the tensors that the call writes"""
    in_place: bool = False
    path: str = ""
    """path of the module that makes the call, such as layer1.0.conv1"""
    inner: tuple[str, ...] = ()
    """names of the convolutions inside the operator, such as in the body of a loop"""
    why_not: str = ""
    """why no kernel computes the call, if it is a convolution, or the convolutions in `inner`"""
    varies: bool = False
    """whether the results differ from call to call although the operator reads no tensor"""

    def number(self, name: str, default: float) -> float:
        """Return an argument that is a number, or a default."""
        value = self.limit(name)
        return default if value is None else value

    def limit(self, name: str) -> float | None:
        """Return an argument that is a number, or None."""
        value = self.arguments.get(name)
        return value if isinstance(value, (int, float)) else None

    def whole(self, name: str, axes: int, default: int) -> tuple[int, ...]:
        """Return an argument as one integer per axis, or nothing if the network computes one of them.

        A single number applies to all axes.
        """
        value = self.arguments.get(name)
        given = [value] if isinstance(value, int) else value if isinstance(value, (list, tuple)) else []
        numbers = tuple(each for each in given if isinstance(each, int))
        if len(numbers) < len(given):
            return ()
        return numbers * axes if len(numbers) == 1 else numbers or (default,) * axes

    def floats(self, name: str) -> tuple[float, ...]:
        """Return an argument that is a list of numbers, or an empty tuple."""
        value = self.arguments.get(name)
        given = value if isinstance(value, (list, tuple)) else []
        numbers = tuple(each for each in given if isinstance(each, (int, float)))
        return numbers if len(numbers) == len(given) else ()

    def tensor(self, name: str) -> str:
        """Return the name of the tensor passed as an argument, or "" if it isn't a tensor."""
        value = self.arguments.get(name)
        return value.name if isinstance(value, Ref) else ""

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of all tensors among the arguments, including those in lists."""
        return tuple(refs(self.arguments.values()))

    @property
    def is_convolution(self) -> bool:
        """Whether the operator is a convolution of any kind."""
        return self.name in _CONVOLUTIONS or self.name.startswith("cudnn_convolution")

    @property
    def trains(self) -> bool:
        """Whether the call runs a batch norm or a dropout in training mode."""
        with_statistics = self.name not in NORMS or bool(self.tensor("running_mean"))
        return bool(self.number("training", 0) and with_statistics) or (
            self.name in DROPOUTS and bool(self.number("train", 0))
        )


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor's shape, dtype and layouts."""

    shape: Shape = ()
    dtype: str = ""
    """a dtype word of studies, or PyTorch's name of a dtype that studies do not support"""
    layouts: frozenset[str] = frozenset()
    """layouts in which the tensor is contiguous; images of one pixel or one channel have both"""


UNKNOWN = TensorType()
"""type of a tensor without a description"""


def refs(arguments: Iterable[Argument]) -> Iterator[str]:
    """Yield the names of all tensors among the arguments, including those in lists."""
    for each in arguments:
        if isinstance(each, Ref):
            yield each.name
        elif isinstance(each, (list, tuple)):
            yield from refs(each)
