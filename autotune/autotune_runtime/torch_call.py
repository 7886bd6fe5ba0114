"""Describe a call to a library's kernel from PyTorch: the problem, and the tensors that the call creates."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import load
from .arrays import TORCH_DTYPES
from .interface import SCALAR, DeclaredProblem, Interface, InterfaceArray, Library, LibraryError
from .prepared import GIVEN, problem_of

if TYPE_CHECKING:
    from .torch_new_sizes import NewSizes  # not in the exports of all operations

DTYPES: Mapping[torch.dtype, str] = {getattr(torch, name): word for name, word in TORCH_DTYPES.items()}
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""PyTorch's channels-last memory formats, by number of dimensions."""
STORED = {word: dtype for dtype, word in DTYPES.items()}
NEW_SIZES: dict[Path, NewSizes] = {}
"""The new sizes of networks that were converted without a library, by the folder of their libraries."""
_MOST_AXES = 5
"""number of axes of the images of conv and conv_transpose; PyTorch's tensors may lack the first spatial axes"""


@dataclass(frozen=True, slots=True)
class Choice:
    """How a call chooses between a library's kernel and PyTorch's operator for each shape."""

    tf32: bool = True
    """whether a kernel may compute in TF32"""
    margin: float | None = None
    """fraction by which a kernel must be faster in a short race, which the first call of sizes that are not in `raced`
    runs; None: no race, the kernel is used"""
    raced: tuple[tuple[int, ...], ...] = ()
    """the first tensor's sizes [C, ...] in each race that the kernel won during a conversion"""
    linear: bool = False
    """whether PyTorch's operator is a linear layer instead of a convolution"""


@dataclass(frozen=True, slots=True)
class Call:
    """A call without its tensors.

    It is passed to the operator as a single text argument, because PyTorch's dispatcher takes 0.3 us for each argument,
    and Inductor writes the text into the code that it generates.
    """

    path: str
    """path of the library that contains the kernels"""
    arguments: tuple[tuple[str, int | str], ...]
    """words, and the sizes that no shape determines, by name"""
    torch_shapes: bool = False
    """True: tensors have PyTorch's shapes, with channels as the second axis in every layout, and images with one or two
    spatial axes have only these. False: shapes are in storage order
    """
    choice: Choice | None = None
    """None: only kernels compute the call, so a problem without a kernel is an error"""

    @property
    def text(self) -> str:
        """The call as text, which `call_of` parses."""
        choice = None if self.choice is None else dataclasses.astuple(self.choice)
        return json.dumps([self.path, self.arguments, self.torch_shapes, choice])

    @property
    def library(self) -> Library:
        """The library that contains the kernels."""
        return load(self.path)

    @property
    def _layout(self) -> str:
        words = self.library.interface.words.get("layout", ("",))
        return str(dict(self.arguments).get("layout", words[0]))

    def _axes(self, array: InterfaceArray) -> tuple[str, ...]:
        """Return an array's axes in the order of its tensor's shape."""
        axes = array.axes[self._layout]
        return (axes[0], axes[-1], *axes[1:-1]) if self.channels_last and len(axes) > 1 else axes

    @property
    def channels_last(self) -> bool:
        """Whether tensors have PyTorch's shapes and must be stored channels-last."""
        return self.torch_shapes and self._layout == "nhwc"

    def problem(self, tensors: Mapping[str, Tensor]) -> DeclaredProblem:
        """Return the problem of these tensors, given by name. Raises ValueError if they don't match each other."""
        problem, runtime = self._problem(tensors)
        return problem.with_runtime(*map(int, runtime.values()))

    def _problem(self, tensors: Mapping[str, Tensor]) -> tuple[DeclaredProblem, Mapping[str, int]]:
        """Return the problem and the run-time sizes by name. In the problem, symbolic run-time sizes are 1."""
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
        """Create tensors for outputs and scratch. Raises ValueError if the given tensors don't match each other."""
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
        """Return how a tensor of this shape is stored. Raises ValueError if PyTorch has no such memory format."""
        if not self.channels_last or len(shape) < 3:
            return torch.contiguous_format
        if len(shape) not in LAST:
            raise ValueError(f"PyTorch stores no tensor of {len(shape)} dimensions channels-last; give layout nchw")
        return LAST[len(shape)]

    def _shape(self, name: str, stored: tuple[int, ...], runtime: Mapping[str, int], rank: int) -> tuple[int, ...]:
        """Return the shape of an array's tensor in a call whose first tensor has `rank` dimensions."""
        array = next(array for array in self.library.interface.arrays if array.name == name)
        extents = {**dict(zip(array.axes[self._layout], stored, strict=True)), **runtime}
        shape = tuple(extents[axis] for axis in self._axes(array))
        lacking = _MOST_AXES - rank if self.torch_shapes and len(shape) == _MOST_AXES else 0
        return (*shape[:2], *shape[2 + lacking :])


@torch.compiler.assume_constant_result
def text_of(path: str, arguments: tuple[tuple[str, int | str], ...]) -> str:
    """Return the text of a call whose shapes are in storage order."""
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


def usable_kernel(library: Library, problem: DeclaredProblem, *, tf32: bool, training: bool = False) -> tuple[str, str]:
    """Return the name of a problem's kernel on the current device, and why it can't be used.

    The name is empty if there is no kernel; the reason is empty if it can be used. `tf32`: the kernel may compute in
    TF32. `training`: the kernel must compute the same bits in every run, and read weights that change with each run.
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
    if training and not kernel.deterministic:
        return name, "does not compute the same bits in every run"
    if training and kernel.constant_weights:
        return name, "keeps its filters in constant memory, which each step would have to fill again"
    return name, ""


def given_arrays(interface: Interface) -> list[InterfaceArray]:
    """Return the arrays that the operator takes, with optional arrays last."""
    return sorted((array for array in interface.arrays if array.role in GIVEN), key=lambda array: array.optional)


def scalars_of(interface: Interface) -> list[InterfaceArray]:
    """Return the scalars that the operator takes."""
    return [array for array in interface.arrays if array.role == SCALAR]


def schema(name: str, interface: Interface) -> str:
    """Return an operator's schema: tensors that are read or changed, then scalars, then the text of the call."""
    tensors, marks = [], iter("abcdefgh")
    for array in given_arrays(interface):
        kind = f"Tensor({next(marks)}!)" if array.role == "inout" else "Tensor"
        tensors.append(f"{kind}{'?' if array.optional else ''} {array.name}")
    numbers = [f"{'int' if array.format in 'iq' else 'float'} {array.name}" for array in scalars_of(interface)]
    made = sum(array.role == "out" for array in interface.arrays)
    returns = "Tensor" if made == 1 else f"({', '.join(['Tensor'] * made)})"
    return f"{name}({', '.join((*tensors, *numbers, 'str call'))}) -> {returns}"
