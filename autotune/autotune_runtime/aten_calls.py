"""Calls of ATen's operators, as torch.export or a PyTorch capture lists them."""

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
    """A tensor as an argument."""

    name: str


Argument: TypeAlias = "Ref | str | float | Sequence[Argument] | None"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator."""

    name: str
    """its name in ATen, without the underscore of in-place operators; empty for other operators"""
    arguments: Mapping[str, Argument]
    """by name in the operator's schema; the others have the schema's defaults"""
    writes: tuple[str, ...]
    """tensors"""
    in_place: bool = False
    path: str = ""
    """path of the module that calls it, such as layer1.0.conv1"""
    inner: tuple[str, ...] = ()
    """convolutions inside it, by the paths of their modules"""
    why_not: str = ""
    """why no kernel computes them, or it, if it is a convolution itself"""
    varies: bool = False
    """whether its results differ from call to call although it reads no tensor"""

    def number(self, name: str, default: float) -> float:
        """A number as an argument."""
        value = self.limit(name)
        return default if value is None else value

    def limit(self, name: str) -> float | None:
        """A number as an argument, or None."""
        value = self.arguments.get(name)
        return value if isinstance(value, (int, float)) else None

    def whole(self, name: str, axes: int, default: int) -> tuple[int, ...]:
        """An argument with a number for each axis, or one for all; empty if the network computes one of them."""
        value = self.arguments.get(name)
        given = [value] if isinstance(value, int) else value if isinstance(value, (list, tuple)) else []
        numbers = tuple(each for each in given if isinstance(each, int))
        if len(numbers) < len(given):
            return ()
        return numbers * axes if len(numbers) == 1 else numbers or (default,) * axes

    def floats(self, name: str) -> tuple[float, ...]:
        """An argument that is a list of numbers; empty if it is not."""
        value = self.arguments.get(name)
        given = value if isinstance(value, (list, tuple)) else []
        numbers = tuple(each for each in given if isinstance(each, (int, float)))
        return numbers if len(numbers) == len(given) else ()

    def tensor(self, name: str) -> str:
        """The name of a tensor; empty if the argument is not a tensor."""
        value = self.arguments.get(name)
        return value.name if isinstance(value, Ref) else ""

    @property
    def tensors(self) -> tuple[str, ...]:
        """All arguments, also those in lists."""
        return tuple(refs(self.arguments.values()))

    @property
    def is_convolution(self) -> bool:
        """Whether it is a convolution of any kind."""
        return self.name in _CONVOLUTIONS or self.name.startswith("cudnn_convolution")

    @property
    def trains(self) -> bool:
        """Whether it has its training behaviour."""
        with_statistics = self.name not in NORMS or bool(self.tensor("running_mean"))
        return bool(self.number("training", 0) and with_statistics) or (
            self.name in DROPOUTS and bool(self.number("train", 0))
        )


@dataclass(frozen=True, slots=True)
class TensorType:
    """The properties of a tensor except its values."""

    shape: Shape = ()
    dtype: str = ""
    """a word of a study, or PyTorch's name of one that studies do not have"""
    layouts: frozenset[str] = frozenset()
    """layouts in which it is contiguous; both for images of one pixel or one channel"""


UNKNOWN = TensorType()
"""the type of a tensor that is not described"""


def refs(arguments: Iterable[Argument]) -> Iterator[str]:
    """The names of tensors among arguments, also in lists."""
    for each in arguments:
        if isinstance(each, Ref):
            yield each.name
        elif isinstance(each, (list, tuple)):
            yield from refs(each)
