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
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from .library import Conv2dError, Handle, Library, Problem, Status, epilogue_name, find_library
from .torch_activations import BY_WORD, activated
from .torch_layers import DTYPES, TrainingMode
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
    made: Tensor = OPERATOR(x, weight, bias, z, stride, padding, dilation, groups, activation, channels_last, path)
    return made


def problem_of(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *,
    activation: str,
    channels_last: bool,
) -> Problem:
    """The problem that a call of the operator is."""
    epilogue = "none" if bias is None else epilogue_name(residual=z is not None, activation=activation)
    k, _, r, s = weight.shape
    sizes = (*x.shape, k, r, s, *stride, *padding, *dilation, groups)
    return Problem.of(sizes, DTYPES[x.dtype], "nhwc" if channels_last else "nchw", epilogue)


@dataclass(frozen=True, slots=True)
class _Pass:
    """A kernel with its filters, ready to run for a shape."""

    handle: Handle
    workspace_bytes: int
    y_shape: tuple[int, ...]
    y_strides: tuple[int, ...]


@dataclass(slots=True)
class _Filters:
    """What is prepared of a weight and its bias as they were at some time."""

    of: weakref.ref[Tensor]
    """the weight; when it dies, this is forgotten"""
    stamp: tuple[object, ...]
    weight: Tensor
    """keeps the memory, so that no other tensor comes to have the same address; so does the bias"""
    bias: Tensor | None
    captured: set[Handle]
    """in CUDA graphs, which may be replayed as long as the weight lives; also of earlier values"""
    handles: dict[tuple[object, ...], Handle] = field(default_factory=dict)
    """by shape and kernel"""
    passes: dict[tuple[object, ...], _Pass | None] = field(default_factory=dict)
    """by shape and number of images; None: PyTorch's convolution, since no kernel serves them"""


_PREPARED: dict[int, _Filters] = {}
"""By id of the weight, as long as it lives; looking one up in a `WeakTensorKeyDictionary` takes ten times as long."""
_PREPARING = threading.Lock()
_RUNTIMES: dict[str, Runtime] = {}
_REGISTRATIONS = torch.library.Library("autotune_conv2d", "DEF")
_REGISTRATIONS.define(
    "conv2d(Tensor x, Tensor weight, Tensor? bias, Tensor? z, int[2] stride, int[2] padding, int[2] dilation, "
    "int groups, str activation, bool channels_last, str library, bool or_pytorch=False) -> Tensor"
)
OPERATOR = torch.ops.autotune_conv2d.conv2d.default
"""The operator itself; `conv2d` is the convenient way to it."""


def _run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: str,
    channels_last: bool,  # noqa: FBT001 - the dispatcher gives all arguments by position
    library: str,
    or_pytorch: bool = False,  # noqa: FBT001, FBT002
) -> Tensor:
    """The operator on a device. A network of small layers waits for this function, so what can be is done once.

    `or_pytorch`: what no kernel serves is computed by PyTorch's convolution, with one warning.
    """
    _refuse_gradients(x, weight, bias, z)
    if x.shape[0] == 0:  # which the library has no kernels for
        return _fake(x, weight, bias, z, stride, padding, dilation, groups, activation, channels_last, library)
    runtime = _RUNTIMES[x.device.type]
    filters = _filters(weight, bias, runtime)
    rest = (tuple(stride), tuple(padding), tuple(dilation), groups)
    added = None if z is None else (z.shape, z.dtype, z.device)
    asked = (x.shape, x.dtype, x.device, added, rest, activation, channels_last, library, or_pytorch)
    if asked not in filters.passes:
        y_shape = _y_shape(x, weight, stride, padding, dilation)
        _check(x, weight, bias, z, y_shape, groups=groups, activation=activation)
        problem = problem_of(x, weight, bias, z, *rest, activation=activation, channels_last=channels_last)
        with _PREPARING, runtime.current(x.device):
            filters.passes[asked] = _prepare(filters, problem, library, runtime, x.device, or_pytorch=or_pytorch)
    ready = filters.passes[asked]
    if ready is None:
        y = functional.conv2d(x, weight, bias, *rest)
        made = _fake(x, weight, bias, z, *rest, activation, channels_last, library)
        return made.copy_(activated(y if z is None else y.add_(z), activation))
    if runtime.capturing():
        filters.captured.add(ready.handle)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    x = _aligned(x.contiguous(memory_format=memory_format))
    arrays = {"x": x.data_ptr()}
    if z is not None:
        z = _aligned(z.contiguous(memory_format=memory_format))
        arrays["z"] = z.data_ptr()
    y = x.new_empty_strided(ready.y_shape, ready.y_strides)
    workspace = (
        torch.empty(ready.workspace_bytes, dtype=torch.uint8, device=x.device) if ready.workspace_bytes else None
    )
    arrays["y"] = y.data_ptr()
    ready.handle.run(
        x.shape[0],
        arrays,
        0 if workspace is None else workspace.data_ptr(),
        ready.workspace_bytes,
        runtime.stream(x.device),
    )
    return y


def _filters(weight: Tensor, bias: Tensor | None, runtime: Runtime) -> _Filters:
    """What is prepared of a weight; nothing is where it or its bias changed since."""
    stamp = (_stamp(weight), None if bias is None else _stamp(bias))
    found = _PREPARED.get(id(weight))
    if found is None or found.stamp != stamp:
        _refuse_capture(runtime)  # also since what was prepared is freed, which waits for the device
        captured = set() if found is None else found.captured
        values = (weight.detach(), None if bias is None else bias.detach())
        key, forget = id(weight), _PREPARED.pop
        of = weakref.ref(weight, lambda _: forget(key, None))
        found = _PREPARED[key] = _Filters(of, stamp, *values, captured)
    return found


def _stamp(tensor: Tensor) -> tuple[int, int]:
    """What is another when a tensor has other values; of an inference tensor PyTorch does not count the changes."""
    return (tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)


def _prepare(
    filters: _Filters, problem: Problem, path: str, runtime: Runtime, device: torch.device, *, or_pytorch: bool
) -> _Pass | None:
    """The pass for a problem on the current device, its filters prepared unless another number of images did it.

    Without a kernel that serves it, Conv2dError is raised, or None returned if PyTorch's convolution may do instead.
    """
    _refuse_capture(runtime)
    library = load(path)
    try:
        library.workspace_bytes(problem)
    except Conv2dError as error:
        if not or_pytorch or error.status not in (Status.UNSUPPORTED, Status.WRONG_DEVICE):
            raise
        warnings.warn(f"autotune_conv2d: PyTorch's convolution runs instead: {error}", RuntimeWarning, stacklevel=2)
        return None
    which = (path, problem.with_n(1), library.kernel_name(problem))
    memory_format = torch.channels_last if problem.layout == "nhwc" else torch.contiguous_format
    if which not in filters.handles:
        weight = _aligned(filters.weight.contiguous(memory_format=memory_format))
        bias = None if filters.bias is None else _aligned(filters.bias.contiguous())
        addresses = {"w": weight.data_ptr()}
        if bias is not None:
            addresses["bias"] = bias.data_ptr()
        filters.handles[which] = library.prepare(problem, addresses, runtime.stream(device))
        runtime.synchronize(device)  # from now on any stream may run it, and the copies may go
    handle = filters.handles[which]
    y_shape = (problem.n, problem.k, problem.p, problem.q)
    y_strides = torch.empty(y_shape, device="meta", memory_format=memory_format).stride()
    return _Pass(handle, handle.workspace_bytes(problem.n), y_shape, y_strides)


def _refuse_capture(runtime: Runtime) -> None:
    if runtime.capturing():
        raise RuntimeError(
            "autotune_conv2d: filters cannot be prepared while a graph is captured; run the network once before, "
            "with the filters and the shapes that are captured"
        )


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where it begins at an address that the library refuses."""
    return tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor


def _refuse_gradients(x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None) -> None:
    wanted = torch.is_grad_enabled() and (
        x.requires_grad
        or weight.requires_grad
        or (bias is not None and bias.requires_grad)
        or (z is not None and z.requires_grad)
    )
    if wanted:
        raise TrainingMode(
            "autotune_conv2d: a tensor requires gradients, but the kernels have no backward pass; run under "
            "torch.no_grad() or torch.inference_mode()"
        )


def _check(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None,
    y_shape: tuple[int, ...],
    *,
    groups: int,
    activation: str,
) -> None:
    """Raise ValueError where arguments do not fit each other."""
    tensors = [tensor for tensor in (x, weight, bias, z) if tensor is not None]
    if any(tensor.dtype != weight.dtype for tensor in tensors) or x.dtype not in DTYPES:
        dtypes = ", ".join(str(tensor.dtype) for tensor in tensors)
        raise ValueError(
            f"autotune_conv2d: x, weight, bias and z must be of one dtype of {', '.join(map(str, DTYPES))}: {dtypes}"
        )
    if any(tensor.device != x.device for tensor in tensors):
        raise ValueError(f"autotune_conv2d: not on one device: {', '.join(str(tensor.device) for tensor in tensors)}")
    if x.shape[1] != weight.shape[1] * groups:
        raise ValueError(f"autotune_conv2d: x has not the channels of weight in {groups} groups: {_sizes(tensors)}")
    if activation and activation not in BY_WORD:
        raise ValueError(
            f"autotune_conv2d: activation {activation!r}: expected one of {', '.join(BY_WORD)}, or nothing"
        )
    if bias is None and (activation or z is not None):
        what = activation or "z"
        raise ValueError(f"autotune_conv2d: {what} needs a bias: the library has no epilogue with it that has none")
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f"autotune_conv2d: expected bias [K], got {_sizes(tensors)}")
    if z is not None and z.shape != y_shape:
        raise ValueError(f"autotune_conv2d: expected z as large as the output, {[*y_shape]}, got {[*z.shape]}")


def _y_shape(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> tuple[int, int, int, int]:
    """[N, K, P, Q]. Raises ValueError for other than four dimensions."""
    if x.dim() != 4 or weight.dim() != 4:
        raise ValueError(
            f"autotune_conv2d: expected x [N, C, H, W] and weight [K, C/groups, R, S], got {_sizes((x, weight))}"
        )
    p, q = (
        (x.shape[axis + 2] + 2 * padding[axis] - dilation[axis] * (weight.shape[axis + 2] - 1) - 1) // stride[axis] + 1
        for axis in (0, 1)
    )
    return (x.shape[0], weight.shape[0], p, q)


def _sizes(tensors: Sequence[Tensor]) -> str:
    return ", ".join(str(list(tensor.shape)) for tensor in tensors)


@torch.library.register_fake("autotune_conv2d::conv2d", lib=_REGISTRATIONS)
def _fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: str,
    channels_last: bool,  # noqa: FBT001
    library: str,  # noqa: ARG001
    or_pytorch: bool = False,  # noqa: ARG001, FBT001, FBT002
) -> Tensor:
    """The operator on tensors without data."""
    _refuse_gradients(x, weight, bias, z)
    y_shape = _y_shape(x, weight, stride, padding, dilation)
    _check(x, weight, bias, z, y_shape, groups=groups, activation=activation)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(y_shape, dtype=x.dtype, device=x.device, memory_format=memory_format)


def _under_autocast(x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, *rest: object) -> Tensor:
    """The operator where autocast is on: images are cast to the filters' dtype, for which the kernel was chosen."""
    with torch.autocast(x.device.type, enabled=False):
        cast = None if z is None else z.to(weight.dtype)
        made: Tensor = OPERATOR(x.to(weight.dtype), weight, bias, cast, *rest)
    return made


support("cuda", Cuda())
