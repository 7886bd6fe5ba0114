"""A call of a library's kernel from PyTorch: its problem, and the tensors that it makes."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import load
from .arrays import TORCH_DTYPES
from .interface import SCALAR, DeclaredProblem, Interface, InterfaceArray, Library, LibraryError
from .prepared import GIVEN, problem_of

DTYPES: Mapping[torch.dtype, str] = {getattr(torch, name): word for name, word in TORCH_DTYPES.items()}
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""PyTorch's memory format with channels last, by the number of dimensions."""
STORED = {word: dtype for dtype, word in DTYPES.items()}
_MOST_AXES = 5
"""axes of the images of conv and conv_transpose; PyTorch's tensors may lack the first spatial ones"""


@dataclass(frozen=True, slots=True)
class Choice:
    """How a call of a network chooses between a library's kernel and PyTorch's operator for each shape."""

    tf32: bool = True
    """whether a kernel may compute in TF32"""
    margin: float | None = None
    """fraction by which a kernel must be faster in a short race in the first call of other sizes than `raced`; None: it
    need not be faster"""
    raced: tuple[tuple[int, ...], ...] = ()
    """the sizes [C, ...] of the first tensor for which it was faster in a conversion's race"""
    linear: bool = False
    """whether PyTorch's operator is a linear layer in place of a convolution"""


@dataclass(frozen=True, slots=True)
class Call:
    """A call without its tensors.

    As text it is one argument of the operator: PyTorch's dispatcher takes 0.3 us for each argument, and Inductor writes
    the text into the code that it generates.
    """

    path: str
    """path of the library"""
    arguments: tuple[tuple[str, int | str], ...]
    """the sizes that no shape determines, and words, by name"""
    torch_shapes: bool = False
    """shapes are PyTorch's: channels stand second, however they are stored, and 1-d and 2-d tensors lack spatial axes;
    False: shapes are as stored
    """
    choice: Choice | None = None
    """None: a problem without a kernel is an error"""

    @property
    def text(self) -> str:
        """As text, which `call_of` parses."""
        choice = None if self.choice is None else dataclasses.astuple(self.choice)
        return json.dumps([self.path, self.arguments, self.torch_shapes, choice])

    @property
    def library(self) -> Library:
        """The library that has the kernels."""
        return load(self.path)

    @property
    def _layout(self) -> str:
        words = self.library.interface.words.get("layout", ("",))
        return str(dict(self.arguments).get("layout", words[0]))

    def _axes(self, array: InterfaceArray) -> tuple[str, ...]:
        """The axes of an array in the order of its tensor's shape."""
        axes = array.axes[self._layout]
        return (axes[0], axes[-1], *axes[1:-1]) if self.channels_last and len(axes) > 1 else axes

    @property
    def channels_last(self) -> bool:
        """Whether tensors of PyTorch's shapes must be stored channels-last."""
        return self.torch_shapes and self._layout == "nhwc"

    def problem(self, tensors: Mapping[str, Tensor]) -> DeclaredProblem:
        """The problem of these tensors, by name. Raises ValueError."""
        problem, runtime = self._problem(tensors)
        return problem.with_runtime(*map(int, runtime.values()))

    def _problem(self, tensors: Mapping[str, Tensor]) -> tuple[DeclaredProblem, Mapping[str, int]]:
        """The problem, with 1 for run-time sizes that are symbols; and the run-time sizes by name."""
        interface = self.library.interface
        arrays = {array.name: array for array in interface.arrays}
        runtime: dict[str, int] = {}
        shapes, dtypes = {}, {}
        for name, tensor in tensors.items():
            if tensor.dtype not in DTYPES:
                raise ValueError(f"{name}: {tensor.dtype}, expected one of {', '.join(map(str, DTYPES))}")
            axes = self._axes(arrays[name])
            shape = tuple(tensor.shape)
            if self.torch_shapes and len(axes) == _MOST_AXES and len(shape) > 2:
                shape = (*shape[:2], *(1,) * (_MOST_AXES - len(shape)), *shape[2:])
            for at, axis in enumerate(axes if len(shape) == len(axes) else ()):
                if axis in interface.runtime and not isinstance(runtime.setdefault(axis, shape[at]), int):
                    shape = (*shape[:at], 1, *shape[at + 1 :])
            shapes[name] = tuple(map(int, shape))
            dtypes[name] = DTYPES[tensor.dtype]
        problem = problem_of(interface, shapes, dtypes, dict(self.arguments), self._axes)
        return problem, {**dict(zip(interface.runtime, problem.runtime_sizes, strict=True)), **runtime}

    def made(self, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """New tensors for outputs and scratch. Raises ValueError if the given tensors do not match each other."""
        problem, runtime = self._problem(tensors)
        first, given, made = next(iter(tensors.values())), dict(tensors), {}
        for array in self.library.array_shapes(problem):
            if array.role == SCALAR:
                continue
            dtype, shape = STORED[array.dtype], self._shape(array.name, array.shape, runtime, first.dim())
            if array.role not in GIVEN:
                memory_format = self.memory_format(shape)
                made[array.name] = torch.empty(shape, dtype=dtype, device=device, memory_format=memory_format)
                continue
            tensor = given.pop(array.name, None)
            if tensor is None:
                raise ValueError(f"{array.name}: missing")
            if tuple(tensor.shape) != shape or tensor.dtype != dtype or tensor.device != first.device:
                actual = f"{tuple(tensor.shape)}, {tensor.dtype} on {tensor.device}"
                raise ValueError(f"{array.name}: is {actual}, expected {shape}, {dtype} on {first.device}")
        for name in given:
            raise ValueError(f"{name}: this problem of {self.library.interface.name} has none")
        return made

    def memory_format(self, shape: Sequence[int]) -> torch.memory_format:
        """How a tensor of this shape is stored. Raises ValueError if PyTorch has no such format."""
        if not self.channels_last or len(shape) < 3:
            return torch.contiguous_format
        if len(shape) not in LAST:
            raise ValueError(f"PyTorch stores no tensor of {len(shape)} dimensions channels-last; give layout nchw")
        return LAST[len(shape)]

    def _shape(self, name: str, stored: tuple[int, ...], runtime: Mapping[str, int], rank: int) -> tuple[int, ...]:
        """The shape of a tensor for an array, in a call whose first tensor has `rank` dimensions."""
        array = next(array for array in self.library.interface.arrays if array.name == name)
        extents = {**dict(zip(array.axes[self._layout], stored, strict=True)), **runtime}
        shape = tuple(extents[axis] for axis in self._axes(array))
        lacking = _MOST_AXES - rank if self.torch_shapes and len(shape) == _MOST_AXES else 0
        return (*shape[:2], *shape[2 + lacking :])


@torch.compiler.assume_constant_result
def text_of(path: str, arguments: tuple[tuple[str, int | str], ...]) -> str:
    """The text of a call with shapes as stored."""
    return _text_of(path, arguments)


@functools.cache
def _text_of(path: str, arguments: tuple[tuple[str, int | str], ...]) -> str:
    return Call(path, arguments).text


@functools.cache
def call_of(text: str) -> Call:
    """Parse a call from its text."""
    path, arguments, torch_shapes, given = json.loads(text)
    choice = None
    if given is not None:
        tf32, margin, raced, linear = given
        choice = Choice(tf32, margin, tuple(map(tuple, raced)), linear)
    return Call(path, tuple((name, value) for name, value in arguments), torch_shapes, choice)


def usable_kernel(
    library: Library, problem: DeclaredProblem, *, tf32: bool, repeatable: bool = False
) -> tuple[str, str]:
    """The kernel for a problem on the current device, or an empty name, and why it cannot be used, or an empty text.

    `tf32`: it may compute in TF32; `repeatable`: it must compute the same bits in every run.
    """
    try:
        library.workspace_bytes(problem)
    except LibraryError as error:
        return "", str(error)
    name = library.kernel_name(problem) or ""
    kernel = next(kernel for kernel in library.kernels() if kernel.name == name)
    if kernel.accuracy == "tf32" and not tf32:
        return name, "computes in TF32, which torch.backends does not allow for it"
    if kernel.accuracy == "fp16-acc16":
        return name, "sums in half precision, which PyTorch's convolution does not"
    if repeatable and not kernel.deterministic:
        return name, "does not compute the same bits in every run"
    return name, ""


def given_arrays(interface: Interface) -> list[InterfaceArray]:
    """The arrays in a call of the operator, beginning with the arrays that every problem has."""
    return sorted((array for array in interface.arrays if array.role in GIVEN), key=lambda array: array.optional)


def scalars_of(interface: Interface) -> list[InterfaceArray]:
    """The numbers in a call of the operator."""
    return [array for array in interface.arrays if array.role == SCALAR]


def schema(name: str, interface: Interface) -> str:
    """An operator's schema: tensors that are read or changed, then numbers, and the call's text."""
    tensors, marks = [], iter("abcdefgh")
    for array in given_arrays(interface):
        kind = f"Tensor({next(marks)}!)" if array.role == "inout" else "Tensor"
        tensors.append(f"{kind}{'?' if array.optional else ''} {array.name}")
    numbers = [f"{'int' if array.format in 'iq' else 'float'} {array.name}" for array in scalars_of(interface)]
    made = sum(array.role == "out" for array in interface.arrays)
    returns = "Tensor" if made == 1 else f"({', '.join(['Tensor'] * made)})"
    return f"{name}({', '.join((*tensors, *numbers, 'str call'))}) -> {returns}"
