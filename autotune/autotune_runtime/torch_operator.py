"""The PyTorch operator of an exported library, for any operation. It has no backward pass, so it only does inference.

The operator is functional, supports fake tensors (`torch.compile`) and autocast, runs on the current stream of the
tensors' device, and can be captured into CUDA graphs. Weights are prepared when they are first used with a shape, and
again after they have changed.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

import torch
from torch import Tensor, is_grad_enabled
from torch._C import (
    _are_functorch_transforms_active,
    _get_tracing_state,
    _is_any_autocast_enabled,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch.autograd import _profiler_enabled

from .interface import (
    DeclaredProblem,
    Enqueue,
    Handle,
    Interface,
    InterfaceArray,
    Library,
    Number,
)
from .prepared import GIVEN, WEIGHTS
from .torch_call import NEW_SIZES, Call, Choice, call_of, given_arrays, scalars_of, schema, text_of, usable_kernel
from .torch_race import wins_race
from .torch_runtime import Cuda, Runtime, TrainingMode

_ALIGNMENT = 16  # bytes; the library requires this alignment of every array
_INFERENCE = (
    "the weights are inference tensors, whose changes PyTorch does not count; clone them outside inference_mode()"
)

Tensors: TypeAlias = Sequence[Tensor | None]
"""Tensors in the order of the arrays, with None for an array that the problem lacks."""


Instead: TypeAlias = Callable[[Call, Mapping[str, Tensor]], object]
"""A function that computes a call with PyTorch. Its arguments are the call and the tensors by name."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """A kernel with its weights, prepared for a shape."""

    handle: Handle | None
    """handle with the prepared weights; None: each pass takes the weights as arguments"""
    enqueue: Enqueue
    none: tuple[int, ...]
    """one zero for each array of the library: the address of an array without a tensor"""
    last: torch.memory_format | None
    """the memory format of the tensors in a launch, if it is channels-last; None: contiguous"""
    makes: tuple[tuple[int, Callable[[], Tensor]], ...]
    """outputs, then scratch arrays: the position among all arrays, and a function that creates the tensor"""
    workspace: Callable[[], Tensor] | None
    """a function that allocates a workspace; None: the kernel needs none"""
    capturing: Callable[[], bool]
    stream: Callable[[], int]


@dataclass(slots=True)
class _Kept:
    """The kernels prepared for one state of the weights."""

    of: weakref.ref[Tensor] | None
    """the first weight; this entry is removed when that tensor is deleted"""
    stamp: tuple[int, ...]
    weights: dict[str, Tensor]
    """the weights, which keep their memory alive so that no other tensor gets the same address"""
    races: dict[tuple[object, ...], bool | None]
    """whether a kernel computes the call, by the keys of `passes`; still valid after the weights change. None if the
    race was undecided, so that PyTorch computes the call for the weights' current values
    """
    captured: set[Handle]
    """handles in CUDA graphs, including those for earlier values of the weights; graphs may be replayed while the
    weights exist
    """
    handles: dict[tuple[object, ...], Handle] = field(default_factory=dict)
    """handles by library, shape and kernel"""
    passes: dict[tuple[object, ...], _Pass] = field(default_factory=dict)
    """passes by call, and shapes, dtypes and device of the tensors"""


class Operator:
    """The operator `torch.ops.NAMESPACE.NAME`, created once per process."""

    def __init__(
        self, interface: Interface, name: str, instead: Instead | None = None, *, prepares: bool = True
    ) -> None:
        """Register an operator for libraries of all operations that have the arrays of `interface`.

        `instead` computes a call with PyTorch, if the call has a choice. If `prepares` is False, each pass reads the
        weights again, so they may change from pass to pass.
        """
        self.interface, self._operation, self._instead = interface, name, instead
        arrays = given_arrays(interface)
        prepared = WEIGHTS if prepares else ()
        self._launched_at = [at for at, array in enumerate(arrays) if array.role not in prepared]
        self._weights_at = [at for at, array in enumerate(arrays) if array.role in prepared]
        self._prepares = prepares
        self._launched = [arrays[at] for at in self._launched_at]
        self._places = [(at, interface.arrays.index(array)) for at, array in enumerate(self._launched)]
        """position of each tensor among the tensors of a launch, and among all arrays"""
        self._weights = [arrays[at].name for at in self._weights_at]
        of_one_dtype = all(word == stored for array in interface.arrays for word, stored in array.dtypes.items())
        self._casts = bool(self._weights) and of_one_dtype
        """whether autocast casts tensors"""
        scalars = scalars_of(interface)
        self._numbers_at = slice(len(arrays), len(arrays) + len(scalars))
        self._number_places = [interface.arrays.index(array) for array in scalars]
        """position of each scalar among all arrays"""
        new = (array for array in interface.arrays if array.role not in GIVEN and array not in scalars)
        made = [(interface.arrays.index(array), array) for array in new]
        self._makes = [(at, array.name) for at, array in sorted(made, key=lambda each: each[1].role != "out")]
        """position and name of each output, then of each scratch array"""
        self._outputs = sum(array.role == "out" for _, array in made)
        namespace = __name__.rpartition(".")[0].replace(".", "_")  # differs for autotune's own copy of the package
        self._name = __name__.split(".")[-2]
        self._kept: dict[int, _Kept] = {}
        """by the id of the first weight, while that tensor exists; a `WeakTensorKeyDictionary` is ten times slower"""
        self._preparing = threading.Lock()
        self._runtimes: dict[str, Runtime] = {}
        self._registrations = torch.library.Library(namespace, "FRAGMENT")
        self._registrations.define(schema(name, interface))
        torch.library.register_fake(f"{namespace}::{name}", self._fake, lib=self._registrations)
        self.operator = getattr(getattr(torch.ops, namespace), name).default
        self.support("cuda", Cuda())

    def __call__(self, *arguments: object) -> object:
        """Call the operator with its tensors, its scalars and the call's text.

        Pass None for a tensor that the problem lacks.
        """
        return self.operator(*arguments)

    def of(self, library: Library) -> Callable[..., object]:
        """Return a function that calls the operator with a library. Sizes and words are passed by name."""
        names, path = [array.name for array in given_arrays(self.interface)], str(library.path)
        scalars = [array.name for array in scalars_of(self.interface)]

        def call(*tensors: Tensor | None, **named: Tensor | float | str | None) -> object:
            given: dict[str, object] = dict(zip(names, tensors, strict=False))
            given |= {name: value for name, value in named.items() if isinstance(value, Tensor)}
            numbers = [named.pop(name) for name in scalars]
            others = tuple((name, each) for name, each in named.items() if isinstance(each, (int, str)))
            return self.operator(*(given.get(name) for name in names), *numbers, text_of(path, others))

        return call

    def support(self, device_type: str, runtime: Runtime) -> None:
        """Enable the operator on a type of device, such as cuda."""
        self._runtimes[device_type] = runtime
        key = device_type.upper()
        self._registrations.impl(self._operation, self._run, key)
        if self._casts:
            self._registrations.impl(self._operation, self._under_autocast, f"Autocast{key}")

    def runtime_of(self, device: torch.device) -> Runtime | None:
        """Return a device's runtime, or None if the operator doesn't support this type of device."""
        return self._runtimes.get(device.type)

    def call_cached(self, key: Hashable, launched: Tensors, weights: Tensors) -> object:
        """Run a prepared pass directly, without PyTorch's dispatcher, which takes half of the time.

        Returns None if no pass is prepared for such tensors, or if a mode, a transform, autocast, a tracer or a
        profiler is active and would miss the call. In that case, call the operator.
        """
        watched = (
            _len_torch_dispatch_stack()
            or _len_torch_function_stack()
            or _are_functorch_transforms_active()
            or (self._casts and _is_any_autocast_enabled())
            or _get_tracing_state()
            or _profiler_enabled()
        )
        return None if watched or type(launched[0]) is not Tensor else self._ran(key, launched, weights)

    def _split(self, arguments: Sequence[object]) -> tuple[Tensors, Tensors, Sequence[Number], str]:
        """Return a launch's tensors, the weights, the scalars, and the call's text."""
        launched, weights = ([arguments[at] for at in places] for places in (self._launched_at, self._weights_at))
        numbers = cast("Sequence[Number]", arguments[self._numbers_at])
        return cast("Tensors", launched), cast("Tensors", weights), numbers, str(arguments[-1])

    def _run(self, *arguments: object) -> object:
        """Implement the operator on a device."""
        launched, weights, numbers, text = self._split(arguments)
        made = self._ran(text, launched, weights, numbers)
        if made is None:
            kept, call = self._kept.get(id(weights[0]) if weights else 0), call_of(text)
            if kept is not None and kept.races.get(_which(text, launched)) is False:
                made = self._by_pytorch(call, launched, weights)
            else:
                made = self._first(text, launched, weights, numbers, call)
        return made if self._outputs else None

    def _by_pytorch(self, call: Call, launched: Tensors, weights: Tensors) -> object:
        """Compute a call with PyTorch's operators."""
        assert self._instead is not None  # noqa: S101 - otherwise the call has no choice
        return self._instead(call, self._named(launched, weights))

    def _ran(self, key: Hashable, launched: Tensors, weights: Tensors, numbers: Sequence[Number] = ()) -> object:
        """Run a prepared pass, or return None if it isn't prepared. This function's time limits small layers."""
        if is_grad_enabled():
            self._refuse_gradients(launched, weights)
        kept = self._kept.get(id(weights[0]) if weights else 0)
        if kept is None:
            return None
        stamp: tuple[int, ...] = ()
        try:
            for tensor in weights:
                if tensor is not None:
                    stamp += (tensor.data_ptr(), tensor._version)
        except RuntimeError:  # an inference tensor has no version, so no kernel is prepared for it
            return None
        if stamp != kept.stamp:
            return None
        which: tuple[object, ...] = (key,)
        for tensor in launched:
            if tensor is not None:
                which += (tensor.shape, tensor.dtype, tensor.get_device())
        ready = kept.passes.get(which)
        if ready is None:
            return None
        if ready.handle is not None and ready.capturing():
            kept.captured.add(ready.handle)
        return self._launch(ready, launched, numbers)

    def _launch(self, ready: _Pass, launched: Tensors, numbers: Sequence[Number]) -> object:
        """Enqueue a prepared pass and return the outputs."""
        addresses: list[Number] = [*ready.none]
        last, copies = ready.last, []
        for at, place in self._places:
            tensor = launched[at]
            if tensor is None:
                continue
            address = tensor.data_ptr()
            dense = tensor.is_contiguous() if last is None else tensor.is_contiguous(memory_format=last)
            if address % _ALIGNMENT or not dense:
                tensor = _launchable(self._launched[at], tensor, last if tensor.dim() > 2 else None)
                copies.append(tensor)  # keeps the copy alive until the pass is enqueued
                address = tensor.data_ptr()
            addresses[place] = address
        for place, number in zip(self._number_places, numbers, strict=True):
            addresses[place] = number
        made = []
        for place, make in ready.makes:
            tensor = make()
            addresses[place] = tensor.data_ptr()
            made.append(tensor)
        workspace = None if ready.workspace is None else ready.workspace()
        ready.enqueue(ready.stream(), 0 if workspace is None else workspace.data_ptr(), addresses)
        return made[0] if self._outputs == 1 else tuple(made[: self._outputs])

    def _first(
        self, key: Hashable, launched: Tensors, weights: Tensors, numbers: Sequence[Number], call: Call
    ) -> object:
        """Run a pass that isn't prepared yet, and prepare it for later calls."""
        device, tensors = _device(launched), self._named(launched, weights)
        runtime, which = self._runtimes[device.type], _which(key, launched)
        try:
            like, problem = call.made(tensors, torch.device("meta")), call.problem(tensors)
        except ValueError:
            if call.choice is None:
                raise
            return self._by_pytorch(call, launched, weights)  # PyTorch may accept the tensors or raise a better error
        if problem.is_empty:  # the library has no kernels for empty problems; a sum over no images is 0
            return self._returned({name: each.zero_() for name, each in call.made(tensors, device).items()})
        with runtime.current(device):
            if call.choice is None and any(map(_is_inference, weights)):
                return self._once(launched, weights, numbers, call, problem, runtime)
            served = self._served(launched, weights, call, problem, runtime)
            if served is None:
                return self._by_pytorch(call, launched, weights)
            call = served
            with self._preparing:
                kept = self._of_now(weights, runtime)
                if which not in kept.passes and kept.races.get(which, True):
                    if not self._has_kernel(launched, weights, call, problem):
                        kept.races[which] = False
                    else:
                        self._refuse_capture(runtime)
                        made = self._pass(kept, call, problem, runtime, like, device)
                        if which not in kept.races:
                            kept.races[which] = self._wins(made, launched, weights, numbers, call, runtime)
                        if kept.races[which]:
                            kept.passes[which] = made
            if not kept.races[which]:
                return self._by_pytorch(call, launched, weights)
            y = self._ran(key, launched, weights, numbers)  # unless another thread changed the weights since
            return self._once(launched, weights, numbers, call, problem, runtime) if y is None else y

    def _served(
        self, launched: Tensors, weights: Tensors, call: Call, problem: DeclaredProblem, runtime: Runtime
    ) -> Call | None:
        """Return a call with the library that serves it, or None if that library may be built later."""
        if call.choice is None or _is_raced(call.choice, launched):
            return call
        sizes = NEW_SIZES.get(Path(call.path).parent)
        layer = id(weights[0]) if weights else 0
        return call if sizes is None else sizes.serve(call, problem, layer, capturing=runtime.capturing())

    def _has_kernel(self, launched: Tensors, weights: Tensors, call: Call, problem: DeclaredProblem) -> bool:
        """Return whether the library has a kernel for a problem that the call's choice allows.

        Warns if there is none although one was expected for these sizes. Raises LibraryError if there is none and the
        call has no choice.
        """
        if call.choice is None:
            call.library.workspace_bytes(problem)
            return True
        why_not = _INFERENCE if any(map(_is_inference, weights)) else ""
        if not why_not:
            _, why_not = usable_kernel(call.library, problem, tf32=call.choice.tf32)
        if why_not and _is_raced(call.choice, launched):
            words = f"{self._name}: PyTorch's {self._operation} runs instead: {why_not}"
            warnings.warn(words, RuntimeWarning, stacklevel=2)
        return not why_not

    def _wins(
        self,
        made: _Pass,
        launched: Tensors,
        weights: Tensors,
        numbers: Sequence[Number],
        call: Call,
        runtime: Runtime,
    ) -> bool | None:
        """Whether a kernel wins a race against PyTorch on a call's tensors or doesn't have to race. None: undecided."""
        choice = call.choice
        if choice is None or choice.margin is None or _is_raced(choice, launched):
            return True
        by_kernel = partial(self._launch, made, launched, numbers)
        by_pytorch = partial(self._by_pytorch, call, launched, weights)
        return wins_race(by_kernel, by_pytorch, choice.margin, _device(launched), runtime)

    def _of_now(self, weights: Tensors, runtime: Runtime) -> _Kept:
        """Return the kernels prepared for the weights' current values, dropping those for earlier values."""
        key, first = id(weights[0]) if weights else 0, weights[0] if weights else None
        found, stamp = self._kept.get(key), _stamp(weights)
        if found is None or found.stamp != stamp:
            self._refuse_capture(runtime)  # freeing earlier handles also waits for the device
            races, captured = ({}, set()) if found is None else (found.races, found.captured)
            races = {which: wins for which, wins in races.items() if wins is not None}
            forget = self._kept.pop
            of = None if first is None else weakref.ref(first, lambda _: forget(key, None))
            values = {
                name: weight.detach() for name, weight in zip(self._weights, weights, strict=True) if weight is not None
            }
            found = self._kept[key] = _Kept(of, stamp, values, races, captured)
        return found

    def _pass(
        self,
        kept: _Kept,
        call: Call,
        problem: DeclaredProblem,
        runtime: Runtime,
        like: Mapping[str, Tensor],
        device: torch.device,
    ) -> _Pass:
        """Prepare a pass on the current device."""
        library, handle = call.library, self._handle(kept, call, problem, runtime, device) if self._prepares else None
        if handle is None:
            workspace_bytes = library.workspace_bytes(problem)
            enqueue = library.enqueuer(problem, workspace_bytes)
        else:
            workspace_bytes = handle.workspace_bytes(*problem.runtime_sizes)
            enqueue = handle.enqueuer(*problem.runtime_sizes)
        formats = {call.memory_format(tensor.shape) for tensor in like.values()} - {torch.contiguous_format}
        workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device="meta")
        return _Pass(
            handle,
            enqueue,
            (0,) * len(library.interface.arrays),
            next(iter(formats), None),
            tuple((place, _maker(like[name], device)) for place, name in self._makes if name in like),
            _maker(workspace, device) if workspace.numel() else None,
            runtime.capturing,
            partial(runtime.stream, device),
        )

    def _handle(
        self, kept: _Kept, call: Call, problem: DeclaredProblem, runtime: Runtime, device: torch.device
    ) -> Handle:
        """Return the handle of a problem's kernel, preparing the weights unless another run-time size has already done
        so.
        """
        library = call.library
        shape = problem.with_runtime(*(1 for _ in problem.runtime_sizes))
        which = (library.path, shape.numbers, library.kernel_name(problem))
        if which not in kept.handles:
            placed = {name: _placed(weight, call.memory_format(weight.shape)) for name, weight in kept.weights.items()}
            addresses = {name: weight.data_ptr() for name, weight in placed.items()}
            kept.handles[which] = Handle(library, problem, addresses, runtime.stream(device))
            runtime.synchronize(device)  # from now on, any stream may run the handle, and the copies may be freed
        return kept.handles[which]

    def _once(
        self,
        launched: Tensors,
        weights: Tensors,
        numbers: Sequence[Number],
        call: Call,
        problem: DeclaredProblem,
        runtime: Runtime,
    ) -> object:
        """Run a pass on the current device without keeping prepared weights."""
        device, given = _device(launched), self._named(launched, weights)
        arrays = {array.name: array for array in self.interface.arrays}
        tensors = {
            name: _launchable(arrays[name], tensor, call.memory_format(tensor.shape)) for name, tensor in given.items()
        }
        made, size_bytes = call.made(given, device), call.library.workspace_bytes(problem)
        workspace = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        addresses: dict[str, Number] = {name: tensor.data_ptr() for name, tensor in {**tensors, **made}.items()}
        addresses |= {array.name: number for array, number in zip(scalars_of(self.interface), numbers, strict=True)}
        call.library.forward(problem, addresses, workspace.data_ptr(), size_bytes, runtime.stream(device))
        return self._returned(made)

    def _named(self, launched: Tensors, weights: Tensors) -> dict[str, Tensor]:
        """Return the given tensors by name."""
        names = (*(array.name for array in self._launched), *self._weights)
        tensors = zip(names, (*launched, *weights), strict=True)
        return {name: tensor for name, tensor in tensors if tensor is not None}

    def _returned(self, made: Mapping[str, Tensor]) -> object:
        """Return the outputs among the created tensors."""
        outputs = tuple(made[name] for _, name in self._makes[: self._outputs])
        return outputs[0] if self._outputs == 1 else outputs

    def _refuse_gradients(self, *tensors: Tensors) -> None:
        """Raise TrainingMode if gradients are required."""
        if torch.is_grad_enabled() and any(
            each is not None and each.requires_grad for some in tensors for each in some
        ):
            raise TrainingMode(
                f"{self._name}: a tensor requires gradients, but the kernels have no backward pass; run under "
                "torch.no_grad() or torch.inference_mode()"
            )

    def _refuse_capture(self, runtime: Runtime) -> None:
        if runtime.capturing():
            raise RuntimeError(
                f"{self._name}: weights cannot be prepared while a graph is captured; run the network once before, "
                "with the weights and the shapes that are captured"
            )

    def _fake(self, *arguments: object) -> object:
        """Implement the operator for fake tensors."""
        launched, weights, _, text = self._split(arguments)
        self._refuse_gradients(launched, weights)
        call = call_of(text)
        if call.choice is not None:  # PyTorch's operators support symbolic sizes
            return self._by_pytorch(call, launched, weights)
        made = self._returned(call.made(self._named(launched, weights), _device(launched)))
        return made if self._outputs else None

    def _under_autocast(self, *arguments: object) -> object:
        """Implement the operator under autocast by casting a launch's tensors to the weights' dtype.

        The kernel was chosen for that dtype.
        """
        launched, weights, _, _ = self._split(arguments)
        dtype = next((weight.dtype for weight in (*weights, *launched) if weight is not None), None)
        others = {id(weight) for weight in weights}
        same_dtype = [
            given.to(dtype) if isinstance(given, Tensor) and id(given) not in others else given for given in arguments
        ]
        with torch.autocast(_device(launched).type, enabled=False):
            return self.operator(*same_dtype)


def _device(launched: Tensors) -> torch.device:
    return next(tensor.device for tensor in launched if tensor is not None)


def _is_raced(choice: Choice, launched: Tensors) -> bool:
    """Return whether a kernel computes tensors of these sizes without another race."""
    first = next(tensor for tensor in launched if tensor is not None)
    return choice.margin is None or tuple(first.shape[1:]) in choice.raced


def _which(key: Hashable, launched: Tensors) -> tuple[object, ...]:
    """Return a pass's key. `_ran` computes the same key inline."""
    which = [key]
    for tensor in launched:
        if tensor is not None:
            which += (tensor.shape, tensor.dtype, tensor.get_device())
    return tuple(which)


def _is_inference(weight: Tensor | None) -> bool:
    return weight is not None and weight.is_inference()


def _stamp(weights: Tensors) -> tuple[int, ...]:
    """Return the weights' addresses and versions. `_ran` duplicates this inline.

    An inference tensor, whose changes PyTorch doesn't count, has version -1.
    """
    given = [weight for weight in weights if weight is not None]
    return tuple(of for each in given for of in (each.data_ptr(), -1 if each.is_inference() else each._version))


def _maker(like: Tensor, device: torch.device) -> Callable[[], Tensor]:
    """Return a function that creates tensors with the same shape, strides and dtype as `like`.

    Passing the dtype as a keyword in each call would take longer than everything else.
    """
    return partial(torch.empty(0, dtype=like.dtype, device=device).new_empty_strided, like.shape, like.stride())


def _placed(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    """Return a tensor in this memory format and aligned, copied only if necessary."""
    placed = tensor.contiguous(memory_format=memory_format)
    return placed.clone() if placed.data_ptr() % _ALIGNMENT else placed


def _launchable(array: InterfaceArray, tensor: Tensor, memory_format: torch.memory_format | None) -> Tensor:
    """Return a tensor that the library accepts, copied if necessary.

    Raises ValueError if the kernel changes the tensor in place and it would have to be copied.
    """
    placed = _placed(tensor, memory_format or torch.contiguous_format)
    if placed is not tensor and array.role == "inout":
        raise ValueError(f"{array.name}: is changed in place, and must be contiguous and aligned to {_ALIGNMENT} bytes")
    return placed
