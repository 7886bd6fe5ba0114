"""PyTorch's alternatives to a kernel, as contenders on a CUDA device: cuDNN, Inductor, cuBLAS.

A plain matrix product serves as a cross-check of the device's rates.

PyTorch and `devices.cuda` share the device's primary context and the default stream, so the same events time both. A
contender is timed under the best conditions that a user could have: recorded in a CUDA graph, with `cudnn.benchmark`,
with arrays in its own layout, with the problem's bias and activation, and with separate arrays for each pass.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias

from autotune.devices import torch_conv, torch_gemm
from autotune.devices.device import BASELINES, Baseline, Passes
from autotune.devices.graphs import torch_graph
from autotune.errors import DeviceError
from autotune.problem import Conv2dProblem, Problem

if TYPE_CHECKING:
    import torch

    Forward: TypeAlias = Callable[..., torch.Tensor]
    """a function that takes a layer's inputs in the operation's order"""

WRONG = 0.05  # maximum difference as a fraction of the largest output; no accuracy class has such a rounding error
_MAX_MESSAGE = 160


def baselines_of(library: str, problem: Problem, admitted: Collection[str] = ()) -> tuple[Baseline, ...]:
    """Return a library's baselines for a problem, in all layouts and with all operators.

    Baselines for f32 data use TF32 or not, but if TF32 is among the `admitted` accuracy classes, all use it: PyTorch
    then chooses the faster of its kernels, and strict float32 can take ten times as long. `cudnn` is tried in both
    layouts, `inductor` in the layer's layout. PyTorch's fused operator always includes a ReLU, which costs nothing, so
    a conv2d layer with only a bias is compared with the fused operator as well. Other activations are pointwise
    kernels. The result is empty if the library does not support the operation.
    """
    tf32 = (False,) if problem.dtype != "f32" else (True,) if "tf32" in admitted else (False, True)
    if problem.operation.name not in BASELINES[library]:
        return ()
    if library == "cublas":
        calls = (False, True) if torch_gemm.fuses(problem) else (False,)
        transposes = str(problem.names()["transposes"])
        return tuple(Baseline("cublas", transposes, tf32=allowed, fused=in_one) for allowed in tf32 for in_one in calls)
    names = problem.names()
    if library == "inductor":
        return tuple(Baseline("inductor", str(names["layout"]), tf32=allowed) for allowed in tf32)
    relu = names.get("terms", "none") != "none" and names["activation"] in ("identity", "relu")
    fused = (False, True) if relu and isinstance(problem, Conv2dProblem) else (False,)
    return tuple(
        Baseline("cudnn", layout, tf32=allowed, fused=in_one)
        for allowed in tf32
        for layout in ("nchw", "nhwc")
        for in_one in fused
    )


def require_torch() -> None:
    """Raise DeviceError if PyTorch isn't installed."""
    if importlib.util.find_spec("torch") is None:
        raise DeviceError("--baseline needs PyTorch in this environment: pip install torch, or leave --baseline out")


def record_baselines(
    baselines: Sequence[Baseline], problem: Problem, device_number: int, passes: int, *, cold: bool
) -> tuple[Passes | str, ...]:
    """Record `passes` passes of each baseline as a graph, or return why the baseline can't run the problem.

    With `cold`, each pass has its own arrays; otherwise, all passes share them. Raises DeviceError if PyTorch is
    missing or has no CUDA support.
    """
    require_torch()
    import torch

    if not torch.cuda.is_available():
        raise DeviceError("--baseline needs PyTorch with CUDA support")
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda", device_number)
    pool = torch.cuda.graph_pool_handle()  # graphs run one after another, and the outputs are not read
    arrays = {
        layout: _arrays(problem, device, layout, passes if cold else 1) * (1 if cold else passes)
        for layout in dict.fromkeys(baseline.layout for baseline in baselines)
    }
    recorded: list[Passes | str] = []
    for baseline in baselines:
        try:
            recorded.append(_recorded(baseline, problem, arrays[baseline.layout], pool))
        except Exception as error:  # noqa: BLE001 - a compiler or a library may raise anything
            recorded.append(" ".join(f"{type(error).__name__}: {error}".split())[:_MAX_MESSAGE])
        torch.cuda.synchronize(device)
    return tuple(recorded)


def _arrays(problem: Problem, device: torch.device, layout: str, copies: int) -> list[tuple[torch.Tensor | None, ...]]:
    """Make `copies` copies of random inputs of a layer, in a layout."""
    import torch

    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[problem.dtype]
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    if problem.operation.name in BASELINES["cudnn"]:
        first = torch_conv.inputs(problem, layout, random)
    else:
        first = torch_gemm.inputs(problem, random)
    return [tuple(each if each is None else each.clone() for each in first) for _ in range(copies)]


def _recorded(
    baseline: Baseline, problem: Problem, arrays: Sequence[tuple[torch.Tensor | None, ...]], pool: tuple[int, int]
) -> Passes:
    """Record a baseline's passes as a graph, after comparing its first output with the plain operator's.

    Raises RuntimeError if the outputs differ.
    """
    import torch

    plain, forward = _plain(problem), _forward(baseline, problem)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = baseline.tf32
    with torch.inference_mode():
        expected = plain(*arrays[0]).float()
        if baseline.library == "cudnn" and baseline.fused:
            torch.relu_(expected)
        for _ in range(3):  # in the first pass cudnn.benchmark chooses an algorithm, and Inductor compiles
            first = forward(*arrays[0])
        if not (first.float() - expected).abs().max() <= WRONG * expected.abs().max():
            raise RuntimeError("computes something different from the plain operator")
        del first, expected
        graph = torch_graph(lambda: [forward(*each) for each in arrays], pool)
    return Passes(graph.replay, len(arrays), launch="graph", close=graph.reset)


def _plain(problem: Problem) -> Forward:
    """Return a function that computes the layer with the plain operator, followed by pointwise kernels."""
    if problem.operation.name in BASELINES["cudnn"]:
        return torch_conv.operators(problem, fused=False)
    return torch_gemm.product(problem, fused=False)


def _forward(baseline: Baseline, problem: Problem) -> Forward:
    """Return a function that computes the layer with a baseline's operators."""
    if problem.operation.name not in BASELINES["cudnn"]:
        return torch_gemm.product(problem, fused=baseline.fused)
    if baseline.library == "inductor":
        return _compiled(problem)
    return torch_conv.operators(problem, fused=baseline.fused)


def _compiled(problem: Problem) -> Forward:
    """Return the layer compiled by `torch.compile`, which tries Inductor's templates and cuDNN and uses the fastest."""
    import torch

    torch._dynamo.reset()
    compiled: Forward = torch.compile(
        torch_conv.operators(problem, fused=False),
        mode="max-autotune-no-cudagraphs",
        dynamic=False,
        fullgraph=True,
    )
    return compiled


def cublas_runner(dtype: str, size: int, device_number: int) -> Callable[[], None]:
    """Return a function that enqueues the product of two random matrices [size, size]. `dtype` is one of MATRIX_TYPES.

    16-bit products are summed in float32. Raises DeviceError if PyTorch or CUDA support is missing, or if memory runs
    out.
    """
    if importlib.util.find_spec("torch") is None:
        raise DeviceError("it needs PyTorch in this environment: pip install torch")
    import torch

    if not torch.cuda.is_available():
        raise DeviceError("it needs PyTorch with CUDA support")
    device = torch.device("cuda", device_number)
    element = {"tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    generator = torch.Generator(device).manual_seed(0)
    try:
        a, b = (torch.randn(size, size, generator=generator, device=device).to(element) for _ in range(2))
        product = torch.empty_like(a)
    except torch.cuda.OutOfMemoryError as error:
        raise DeviceError(f"no memory for matrices of {size} rows: {str(error).splitlines()[0]}") from None

    def run() -> None:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.mm(a, b, out=product)

    run()  # the first call creates the handle and its workspace
    torch.cuda.synchronize(device)
    return run
