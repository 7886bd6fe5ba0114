"""The PyTorch operator `autotune_conv2d::conv2d`: a convolution by a kernel of an exported library, for inference.

It is functional, has rules for fake tensors (`torch.compile`) and autocast, runs on the current stream of its input's
device, and may be captured into CUDA graphs. Filters are prepared when a weight is first used with a shape, and again
when it changed.
"""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from .interface import Status
from .library import Conv2dError, Handle, Library, Problem, find_library
from .torch_activations import activated
from .torch_convolution import Convolution, convolution_of
from .torch_example import TrainingMode
from .torch_runtime import Cuda, Runtime

_ALIGNMENT = 16  # bytes: CONV2D_ALIGNMENT


def support(device_type: str, runtime: Runtime) -> None:
    """Let the operator run on a type of device, such as cuda."""
    key = device_type.upper()
    _RUNTIMES[device_type] = runtime
    _REGISTRATIONS.impl("conv2d", _run, key)
    _REGISTRATIONS.impl("conv2d", _under_autocast, f"Autocast{key}")


def runtime_of(device: torch.device) -> Runtime | None:
    """What the operator runs with on a device; None where it does not."""
    return _RUNTIMES.get(device.type)


@functools.cache
def load(path: str) -> Library:
    """A library, loaded once in a process."""
    return Library(path)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    z: Tensor | None = None,
    *,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    activation: str = "",
    channels_last: bool = False,
    library: str | None = None,
) -> Tensor:
    """`torch.nn.functional.conv2d`, z added and then an activation, by the library's kernel for x's shape.

    x, weight, bias and z are of one dtype and on one device, z [N, K, P, Q] of the output's shape; `activation` is a
    word such as relu; both need a bias. `channels_last`: the kernel is one for NHWC, and so is what is returned.
    `library` is a path, None: the one that `find_library` finds. Raises Conv2dError where the library has no kernel,
    TrainingMode where gradients are wanted.
    """
    path = str(find_library()) if library is None else library
    (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w) = stride, padding, dilation
    sizes = (stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups)
    convolution = Convolution(path, *sizes, activation, channels_last)
    made: Tensor = OPERATOR(x, weight, bias, z, convolution.text)
    return made


@dataclass(frozen=True, slots=True)
class _Pass:
    """A kernel with its filters, ready to run for a shape."""

    handle: Handle
    enqueue: Callable[[int, int, int, int, int], None]
    runtime: Runtime
    memory_format: torch.memory_format
    workspace_bytes: int
    y_shape: tuple[int, ...]
    y_strides: tuple[int, ...]


@dataclass(slots=True)
class _Filters:
    """What is prepared of a weight and its bias as they were at some time."""

    of: weakref.ref[Tensor]
    """the weight; when it dies, this is forgotten"""
    stamp: tuple[int, ...]
    weight: Tensor
    """keeps the memory, so that no other tensor comes to have the same address; so does the bias"""
    bias: Tensor | None
    captured: set[Handle]
    """in CUDA graphs, which may be replayed as long as the weight lives; also of earlier values"""
    handles: dict[tuple[object, ...], Handle] = field(default_factory=dict)
    """by shape and kernel"""
    passes: dict[tuple[object, ...], _Pass] = field(default_factory=dict)
    """by shape and number of images"""
    refused: set[tuple[object, ...]] = field(default_factory=set)
    """those of `passes` that PyTorch's convolution runs, since no kernel serves them"""


_PREPARED: dict[int, _Filters] = {}
"""By id of the weight, as long as it lives; looking one up in a `WeakTensorKeyDictionary` takes ten times as long."""
_PREPARING = threading.Lock()
_RUNTIMES: dict[str, Runtime] = {}
_NAMESPACE = (__package__ or "autotune_conv2d").replace(".", "_")
"""autotune_conv2d in an exported folder; autotune's own copy has another, so that both can be in one process."""
_REGISTRATIONS = torch.library.Library(_NAMESPACE, "DEF")
_REGISTRATIONS.define("conv2d(Tensor x, Tensor weight, Tensor? bias, Tensor? z, str convolution) -> Tensor")
OPERATOR = getattr(torch.ops, _NAMESPACE).conv2d.default
"""The operator itself; `conv2d` is the convenient way to it."""


def again(x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, convolution: str) -> Tensor | None:
    """The operator where it ran before on such tensors, past PyTorch's dispatcher, which takes half of a call's time.

    None where it did not, or somebody listens at the dispatcher: then `OPERATOR` is to be called.
    """
    if type(x) is not Tensor or _dispatcher_is_watched():
        return None
    return _ran(x, weight, bias, z, convolution)


def _dispatcher_is_watched() -> bool:
    """Whether a mode, a transform, autocast, a tracer or a profiler would miss a call that is not dispatched."""
    c = torch._C
    return bool(
        c._len_torch_dispatch_stack()
        or c._len_torch_function_stack()
        or c._are_functorch_transforms_active()
        or c._is_any_autocast_enabled()
        or c._get_tracing_state()
        or torch.autograd._profiler_enabled()
    )


def _run(x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, convolution: str) -> Tensor:
    """The operator on a device."""
    made = _ran(x, weight, bias, z, convolution)
    if made is None and _prepare(x, weight, bias, z, convolution_of(convolution)):
        made = _ran(x, weight, bias, z, convolution)
    return _by_pytorch(x, weight, bias, z, convolution_of(convolution)) if made is None else made


def _ran(x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, convolution: str) -> Tensor | None:
    """A pass that is prepared; None where it is not. A network of small layers waits for this function."""
    if torch.is_grad_enabled():
        _refuse_gradients(x, weight, bias, z)
    filters = _PREPARED.get(id(weight))
    if filters is None or filters.stamp != _stamp(weight, bias):
        return None
    ready = filters.passes.get(_asked(x, z, convolution))
    if ready is None:
        return None
    runtime, memory_format, size_bytes = ready.runtime, ready.memory_format, ready.workspace_bytes
    if runtime.capturing():
        filters.captured.add(ready.handle)
    if not x.is_contiguous(memory_format=memory_format) or x.data_ptr() % _ALIGNMENT:
        x = _placed(x, memory_format)
    if z is not None and (not z.is_contiguous(memory_format=memory_format) or z.data_ptr() % _ALIGNMENT):
        z = _placed(z, memory_format)
    y = x.new_empty_strided(ready.y_shape, ready.y_strides)
    workspace = torch.empty(size_bytes, dtype=torch.uint8, device=x.device) if size_bytes else None
    ready.enqueue(
        x.data_ptr(),
        y.data_ptr(),
        0 if z is None else z.data_ptr(),
        0 if workspace is None else workspace.data_ptr(),
        runtime.stream(x.device),
    )
    return y


def _asked(x: Tensor, z: Tensor | None, convolution: str) -> tuple[object, ...]:
    """What a pass is known by."""
    if z is None:
        return (convolution, x.shape, x.dtype, x.device)
    return (convolution, x.shape, x.dtype, x.device, z.shape, z.dtype, z.device)


def _stamp(weight: Tensor, bias: Tensor | None) -> tuple[int, ...]:
    """What is another when filters have other values; inference tensors have no version, and are not prepared."""
    version = 0 if weight.is_inference() else weight._version
    if bias is None:
        return (weight.data_ptr(), version)
    return (weight.data_ptr(), version, bias.data_ptr(), 0 if bias.is_inference() else bias._version)


def _filters(weight: Tensor, bias: Tensor | None, runtime: Runtime) -> _Filters:
    """What is prepared of a weight; nothing is where it or its bias changed since."""
    found, stamp = _PREPARED.get(id(weight)), _stamp(weight, bias)
    if found is None or found.stamp != stamp:
        _refuse_capture(runtime)  # also since what was prepared is freed, which waits for the device
        captured = set() if found is None else found.captured
        values = (weight.detach(), None if bias is None else bias.detach())
        key, forget = id(weight), _PREPARED.pop
        of = weakref.ref(weight, lambda _: forget(key, None))
        found = _PREPARED[key] = _Filters(of, stamp, *values, captured)
    return found


def _prepare(x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, convolution: Convolution) -> bool:
    """Make a pass ready, its filters prepared unless another number of images did it.

    False where PyTorch's convolution runs instead, of no images for example. Raises Conv2dError where it may not.
    """
    like = convolution.empty_output(x, weight, bias, z, "meta")
    if x.shape[0] == 0:  # which the library has no kernels for
        return False
    runtime = _RUNTIMES[x.device.type]
    asked = _asked(x, z, convolution.text)
    with _PREPARING, runtime.current(x.device):
        filters = _filters(weight, bias, runtime)
        if asked in filters.refused:
            return False
        if asked in filters.passes:  # by another thread
            return True
        _refuse_capture(runtime)
        library = load(convolution.library)
        problem = convolution.problem(x, weight, bias=bias is not None, residual=z is not None)
        try:
            _refuse_inference_tensors(weight, bias)
            library.workspace_bytes(problem)
        except Conv2dError as error:
            if not convolution.or_pytorch or error.status not in (Status.UNSUPPORTED, Status.WRONG_DEVICE):
                raise
            warnings.warn(f"autotune_conv2d: PyTorch's convolution runs instead: {error}", RuntimeWarning, stacklevel=2)
            filters.refused.add(asked)
            return False
        handle = _handle(filters, library, problem, runtime, x.device)
        filters.passes[asked] = _Pass(
            handle,
            handle.enqueuer(problem.n),
            runtime,
            convolution.memory_format,
            handle.workspace_bytes(problem.n),
            tuple(like.shape),
            like.stride(),
        )
    return True


def _handle(filters: _Filters, library: Library, problem: Problem, runtime: Runtime, device: torch.device) -> Handle:
    """The kernel for a problem on the current device with its filters."""
    which = (library.path, problem.with_n(1), library.kernel_name(problem))
    if which not in filters.handles:
        memory_format = torch.channels_last if problem.layout == "nhwc" else torch.contiguous_format
        tensors = {"w": _placed(filters.weight, memory_format)}
        if filters.bias is not None:
            tensors["bias"] = _placed(filters.bias, torch.contiguous_format)
        addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        filters.handles[which] = library.prepare(problem, addresses, runtime.stream(device))
        runtime.synchronize(device)  # from now on any stream may run it, and the copies may go
    return filters.handles[which]


def _by_pytorch(x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, convolution: Convolution) -> Tensor:
    """The same by PyTorch's operators, stored as a kernel would store it."""
    made = convolution.empty_output(x, weight, bias, z, x.device)
    if x.shape[0] == 0:  # which the library has no kernels for
        return made
    y = functional.conv2d(x, weight, bias, *convolution.sizes)
    return made.copy_(activated(y if z is None else y.add_(z), convolution.activation))


def _refuse_capture(runtime: Runtime) -> None:
    if runtime.capturing():
        raise RuntimeError(
            "autotune_conv2d: filters cannot be prepared while a graph is captured; run the network once before, "
            "with the filters and the shapes that are captured"
        )


def _refuse_inference_tensors(weight: Tensor, bias: Tensor | None) -> None:
    """Raise Conv2dError for filters whose changes would go unnoticed."""
    if weight.is_inference() or (bias is not None and bias.is_inference()):
        raise Conv2dError(
            Status.UNSUPPORTED,
            "the filters are inference tensors, whose changes PyTorch does not count; clone them outside of "
            "torch.inference_mode()",
        )


def _placed(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    """The tensor, or a copy where the library refuses how it is stored."""
    if not tensor.is_contiguous(memory_format=memory_format):
        tensor = tensor.contiguous(memory_format=memory_format)
    return tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor


def _refuse_gradients(x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None) -> None:
    """Raise TrainingMode where gradients are wanted."""
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (x, weight, bias, z)):
        raise TrainingMode(
            "autotune_conv2d: a tensor requires gradients, but the kernels have no backward pass; run under "
            "torch.no_grad() or torch.inference_mode()"
        )


@torch.library.register_fake(f"{_NAMESPACE}::conv2d", lib=_REGISTRATIONS)
def _fake(x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, convolution: str) -> Tensor:
    """The operator on tensors without data."""
    _refuse_gradients(x, weight, bias, z)
    return convolution_of(convolution).empty_output(x, weight, bias, z, x.device)


def _under_autocast(x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, convolution: str) -> Tensor:
    """The operator where autocast is on: images are cast to the filters' dtype, for which the kernel was chosen."""
    with torch.autocast(x.device.type, enabled=False):
        cast = None if z is None else z.to(weight.dtype)
        made: Tensor = OPERATOR(x.to(weight.dtype), weight, bias, cast, convolution)
    return made


support("cuda", Cuda())
