"""A PyTorch operator of an exported library, whatever its operation: what it declares gives schema and fake kernel.

It runs on the current stream of its first tensor's device, for inference: there is no backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from .any_operation import GIVEN, RETURNED, problem_of
from .interface import DeclaredProblem, Interface, InterfaceArray, Library
from .torch_runtime import Cuda, Runtime

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT = 16  # bytes: of every array that the library takes


def schema(interface: Interface) -> str:
    """The operator's schema: tensors that are read or changed, then sizes that no shape says, and words by name."""
    axes = _axes(array for array in _read(interface) if not array.optional)
    perhaps = _axes(_read(interface)) - axes  # what nothing says where an array is left out
    tensors, marks = [], iter("abcdefgh")
    for array in _read(interface):
        kind = f"Tensor({next(marks)}!)" if array.role == "inout" else "Tensor"
        tensors.append(f"{kind}? {array.name}=None" if array.optional else f"{kind} {array.name}")
    tensors.sort(key=lambda each: "=" in each)
    named = [
        f"int? {size.name}=None"
        if size.name in perhaps
        else f"int {size.name}" + ("" if size.default is None else f"={size.default}")
        for size in interface.sizes
        if size.name not in axes
    ]
    named += [f'str {name}="{words[0]}"' for name, words in interface.words.items() if name != "dtype"]
    made = sum(array.role == "out" for array in interface.arrays)
    returns = "Tensor" if made == 1 else f"({', '.join(['Tensor'] * made)})"
    return f"{interface.name}({', '.join((*tensors, *(['*', *named] if named else ())))}) -> {returns}"


def _axes(arrays: Iterable[InterfaceArray]) -> set[str]:
    return {axis for array in arrays for extents in array.axes.values() for axis in extents}


def _read(interface: Interface) -> list[InterfaceArray]:
    return [array for array in interface.arrays if array.role in GIVEN]


class Operator:
    """`torch.ops.autotune_NAME.NAME`: made once in a process; call it with tensors, and sizes and words by name."""

    def __init__(self, library: Library[DeclaredProblem]) -> None:
        self.library = library
        self.interface = library.interface
        namespace = f"autotune_{self.interface.name}"
        self._runtimes: dict[str, Runtime] = {}
        self._registrations = torch.library.Library(namespace, "DEF")
        self._registrations.define(schema(self.interface))
        torch.library.register_fake(f"{namespace}::{self.interface.name}", self._fake, lib=self._registrations)
        self.operator = getattr(getattr(torch.ops, namespace), self.interface.name).default
        self._names = [argument.name for argument in self.operator._schema.arguments]
        self.support("cuda", Cuda())

    def __call__(self, *tensors: Tensor, **named: object) -> object:
        return self.operator(*tensors, **named)

    def support(self, device_type: str, runtime: Runtime) -> None:
        """Let the operator run on a type of device, such as cuda."""
        self._runtimes[device_type] = runtime
        self._registrations.impl(self.interface.name, self._run, device_type.upper())

    def _given(
        self, positional: Sequence[object], named: Mapping[str, object]
    ) -> tuple[dict[str, Tensor], DeclaredProblem]:
        """The tensors by name, and their problem."""
        values = {**dict(zip(self._names, positional, strict=False)), **named}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        sizes = {name: value for name, value in values.items() if isinstance(value, (int, str))}
        shapes = {name: tuple(int(extent) for extent in tensor.shape) for name, tensor in tensors.items()}
        dtypes = {}
        for name, tensor in tensors.items():
            if tensor.dtype not in _NAMES:
                raise ValueError(f"{name}: {tensor.dtype}, expected one of {', '.join(map(str, _NAMES))}")
            dtypes[name] = _NAMES[tensor.dtype]
        return tensors, problem_of(self.interface, shapes, dtypes, sizes)

    def _outputs(self, tensors: Mapping[str, Tensor], problem: DeclaredProblem) -> dict[str, Tensor]:
        """New tensors for what a caller does not have. Raises ValueError for one that has another shape or dtype."""
        device = next(iter(tensors.values())).device
        made = {}
        for array in self.library.array_shapes(problem):
            if array.role not in GIVEN:
                made[array.name] = torch.empty(array.shape, dtype=DTYPES[array.dtype], device=device)
                continue
            given = tensors.get(array.name)
            if given is None:
                raise ValueError(f"{array.name}: missing")
            if tuple(given.shape) != array.shape or given.dtype != DTYPES[array.dtype] or given.device != device:
                found = f"{tuple(given.shape)}, {given.dtype} on {given.device}"
                raise ValueError(f"{array.name}: is {found}, expected {array.shape}, {DTYPES[array.dtype]} on {device}")
        return made

    def _returned(self, made: Mapping[str, Tensor]) -> object:
        outputs = tuple(
            made[array.name] for array in self.interface.arrays if array.role in RETURNED and array.name in made
        )
        return (outputs[0] if len(outputs) == 1 else outputs) if outputs else None

    def _run(self, *positional: object, **named: object) -> object:
        tensors, problem = self._given(positional, named)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors.values()):
            raise RuntimeError(
                f"autotune_{self.interface.name}: a tensor requires gradients, but the kernels have no backward pass; "
                "run under torch.no_grad() or torch.inference_mode()"
            )
        made = self._outputs(tensors, problem)
        device = next(iter(tensors.values())).device
        changed = [array.name for array in self.interface.arrays if array.role == "inout"]
        placed = {name: self._placed(name, tensor, name in changed) for name, tensor in tensors.items()}
        runtime = self._runtimes[device.type]
        with runtime.current(device):
            size_bytes = self.library.workspace_bytes(problem)
            workspace = torch.empty(size_bytes, dtype=torch.uint8, device=device)
            addresses = {name: tensor.data_ptr() for name, tensor in {**placed, **made}.items()}
            self.library.forward(problem, addresses, workspace.data_ptr(), size_bytes, runtime.stream(device))
        return self._returned(made)

    def _placed(self, name: str, tensor: Tensor, changed: bool) -> Tensor:  # noqa: FBT001
        """The tensor, or a copy where the library refuses how it is stored. Raises ValueError for one to be changed."""
        if tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0:
            return tensor
        if changed:
            raise ValueError(f"{name}: is changed in place, and must be contiguous and aligned to {_ALIGNMENT} bytes")
        copy = tensor.contiguous()
        return copy.clone() if copy.data_ptr() % _ALIGNMENT else copy

    def _fake(self, *positional: object, **named: object) -> object:
        """The operator on tensors without data."""
        tensors, problem = self._given(positional, named)
        return self._returned(self._outputs(tensors, problem))
