"""PyTorch's convolution (cuDNN) as a contender on a CUDA device, and its matrix product (cuBLAS) as a cross-check.

PyTorch lives in the device's primary context, as `devices.cuda` does, and both use the default stream, so that the
same events time them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

from autotune.devices.device import Baseline
from autotune.errors import DeviceError
from autotune.problem import Conv2dProblem


def require_torch() -> None:
    """Raise DeviceError where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise DeviceError(
            "the cudnn baseline needs PyTorch in this environment: pip install torch, or leave --baseline out"
        )


def cudnn_runners(
    baseline: Baseline, problem: Conv2dProblem, device_number: int, copies: int
) -> tuple[Callable[[], None], ...]:
    """Functions that enqueue one forward pass, each on data of its own. Raises DeviceError when PyTorch cannot do it.

    cudnn.benchmark is on, weights and input are resident in the baseline's layout, the epilogue is the problem's.
    """
    require_torch()
    import torch

    p = problem
    if not torch.cuda.is_available():
        raise DeviceError("the cudnn baseline needs a PyTorch with CUDA support, this one has none")
    device = torch.device("cuda", device_number)
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[p.dtype]
    memory = torch.channels_last if baseline.layout == "nhwc" else torch.contiguous_format
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)

    inputs = [random(p.n, p.c, p.h, p.w).contiguous(memory_format=memory) for _ in range(copies)]
    w = random(p.k, p.c // p.groups, p.r, p.s).contiguous(memory_format=memory)
    bias = None if p.epilogue == "none" else random(p.k)
    torch.backends.cudnn.benchmark = True

    def run(x: torch.Tensor) -> None:
        torch.backends.cudnn.allow_tf32 = baseline.tf32
        with torch.inference_mode():
            y = torch.nn.functional.conv2d(
                x, w, bias, (p.stride_h, p.stride_w), (p.pad_h, p.pad_w), (p.dilation_h, p.dilation_w), p.groups
            )
            if p.epilogue == "bias_relu":
                torch.relu_(y)

    for _ in range(3):  # cudnn.benchmark chooses its algorithm in the first pass
        run(inputs[0])
    torch.cuda.synchronize(device)
    return tuple(partial(run, x) for x in inputs)


def cublas_runner(dtype: str, size: int, device_number: int) -> Callable[[], None]:
    """A function that enqueues a product of two random matrices [size, size]; `dtype` is one of MATRIX_TYPES.

    16-bit products are summed in float32. Raises DeviceError when PyTorch cannot do it.
    """
    if importlib.util.find_spec("torch") is None:
        raise DeviceError("it needs PyTorch in this environment: pip install torch")
    import torch

    if not torch.cuda.is_available():
        raise DeviceError("it needs a PyTorch with CUDA support, this one has none")
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

    run()  # the handle and its workspace are made in the first
    torch.cuda.synchronize(device)
    return run
