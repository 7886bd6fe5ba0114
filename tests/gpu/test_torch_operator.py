"""The Python half of an export on a GPU: streams, CUDA graphs, compilers, devices, and arrays of every library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autotune.autotune_runtime import load, prepare
from autotune.compilation.toolchain import find_cxx, find_nvcc
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting import export_library
from autotune.exporting.build import build_for_cuda
from autotune.problem import Conv2dProblem
from tests.exports import kernel

pytest.importorskip("torch", exc_type=ImportError)

import torch

from autotune.autotune_runtime.torch_backend import autotune
from autotune.autotune_runtime.torch_benchmark import Work, race
from autotune.autotune_runtime.torch_convert import convert
from autotune.autotune_runtime.torch_layers import read_network
from autotune.autotune_runtime.torch_runtime import Cuda
from tests import torch_backends as backends
from tests import torch_networks as networks
from tests import torch_residuals as residuals

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:::torch")]  # PyTorch's compiler warns, too

Given = npt.NDArray[np.float32]
ArrayLibrary = tuple[Callable[[Given], Any], Callable[[Any], Given], object]
"""How an array gets to the GPU and back, and a stream."""
CLOSE = 1e-5
"""Difference of two float32 convolutions, in units of the largest output."""
CHUNKED = Conv2dProblem(4, 4, 6, 6, 6, 3, 3, epilogue="bias_relu")
"""The second convolution of `networks.Digits`, by a kernel with a workspace."""
SHAPES = ((7, 4, 6, 6), (6, 4, 3, 3), (6,))
"""Of seven of its images, its filters and its bias."""
ADDED = Conv2dProblem(4, 1, 12, 12, 4, 3, 3, pad_h=1, pad_w=1, epilogue="bias_add_relu")


@pytest.fixture(scope="module")
def library(gpu: DeviceEvaluator, tmp_path_factory: pytest.TempPathFactory) -> str:
    first = Conv2dProblem(4, 1, 12, 12, 4, 3, 3, pad_h=1, pad_w=1, epilogue="bias_relu")
    second = Conv2dProblem(4, 4, 6, 6, 6, 3, 3, epilogue="bias_relu")
    blocks = Conv2dProblem(4, 4, 12, 12, 4, 3, 3, pad_h=1, pad_w=1, epilogue="bias_add_relu")
    kernels = (
        kernel("direct", "added", ADDED, gpu.info),
        kernel("direct", "blocks", blocks, gpu.info),
        kernel("direct", "silu", replace(ADDED, epilogue="bias_add_silu"), gpu.info),
        kernel("direct", "one", Conv2dProblem(1, 1, 4, 4, 1, 1, 1, epilogue="bias_relu"), gpu.info),
        kernel("direct", "first", first, gpu.info, filters="constant"),
        kernel("im2col_gemm", "second", second, gpu.info, fusion="two_kernels"),
    )
    exported = export_library(kernels, tmp_path_factory.mktemp("exported"), ())
    folder = tmp_path_factory.mktemp("built")
    return str(build_for_cuda(exported, folder, nvcc=find_nvcc(), cxx=find_cxx()).library)


@pytest.fixture
def strict_fp32() -> None:
    torch.backends.cudnn.allow_tf32 = False


@pytest.fixture
def network(strict_fp32: None) -> torch.nn.Module:
    return networks.seeded(networks.Digits).cuda()


@pytest.fixture
def made(network: torch.nn.Module, library: str) -> torch.nn.Module:
    """The network with both convolutions swapped."""
    made, report = convert(network, (4, 1, 12, 12), library=library, margin=networks.ALWAYS)
    assert all(row.swapped for row in report.rows), report
    return made


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).abs().max() <= CLOSE * other.abs().max())


@torch.no_grad()
def test_runs_on_the_current_stream(network: torch.nn.Module, made: torch.nn.Module) -> None:
    x = torch.full((4, 1, 12, 12), torch.nan, device="cuda")
    made(x)  # prepared on the default stream
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # cycles; a kernel on another stream would read data that are not there yet
        x.copy_(networks.images(4), non_blocking=False)
        y = made(x)
    stream.synchronize()
    assert close(y, network(networks.images(4).cuda()))


@torch.no_grad()
def test_is_captured_and_outlives_a_change_of_the_filters(network: torch.nn.Module, made: torch.nn.Module) -> None:
    x = networks.images(4).cuda()
    made(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = made(x)
    x.copy_(networks.images(5)[:4])
    graph.replay()
    assert close(y, network(x))
    for part in (made.conv1, made.conv2):
        part.weight.zero_()
        part.bias.zero_()
    assert close(made(x), made.fc.bias.expand(4, 10))
    y.zero_()
    graph.replay()
    assert close(y, network(x))


@torch.no_grad()
def test_filters_are_not_prepared_in_a_capture(made: torch.nn.Module) -> None:
    x = networks.images(4).cuda()
    made.conv1.weight.zero_()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="cannot be prepared while a graph is captured"), torch.cuda.graph(graph):
        made(x)
    torch.cuda.synchronize()
    made(x)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@torch.no_grad()
def test_is_compiled_as_one_graph(mode: str, network: torch.nn.Module, made: torch.nn.Module) -> None:
    compiled = torch.compile(made, mode=mode, fullgraph=True)
    for n in (4, 4, 4, 3):
        x = networks.images(n).cuda()
        assert close(compiled(x), network(x))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@torch.no_grad()
def test_residuals_are_fused_into_a_compiled_network(mode: str, strict_fp32: None, library: str) -> None:
    network = residuals.network(residuals.two_blocks).cuda()
    made, report = convert(network, networks.images(4).cuda(), library=library, margin=networks.ALWAYS)
    assert str(report).endswith("fused into them: 2 residuals, 2 ReLUs"), report
    compiled = torch.compile(made, mode=mode, fullgraph=True)
    for n in (4, 4, 4, 3):
        x = networks.images(n).cuda()
        assert close(compiled(x), network(x))


def rivals(conv: torch.nn.Conv2d, activation: str, library: str) -> dict[str, float]:
    """Microseconds of PyTorch's ways to compute a convolution, a residual and an activation."""
    (layer,) = read_network(conv, networks.images(4).cuda()).layers
    assert layer.module is not None
    assert layer.problem is not None
    problem = replace(layer.problem, epilogue=f"bias_add_{activation}")
    work = Work(problem, residual=True, activation=activation, compiled=True)
    times = race(work, layer.module, library, Cuda())
    assert times is not None
    return dict(times.rivals)


@torch.no_grad()
def test_another_activation_races_against_one_kernel_behind_the_convolution(strict_fp32: None, library: str) -> None:
    conv = torch.nn.Conv2d(1, 4, 3, padding=1).cuda().eval().requires_grad_(False)
    times = rivals(conv, "silu", library)
    assert times.keys() == {"PyTorch's with its residual and SiLU", "PyTorch's convolution and one kernel for the rest"}
    assert times["PyTorch's convolution and one kernel for the rest"] < times["PyTorch's with its residual and SiLU"]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@torch.no_grad()
def test_backend_of_torch_compile(mode: str, strict_fp32: None, library: str) -> None:
    network = networks.seeded(backends.Block).cuda()
    torch.compiler.reset()
    options = {"library": library, "margin": networks.ALWAYS, "mode": mode}
    compiled = torch.compile(network, backend=autotune, options=options, fullgraph=True)
    for n in (4, 4, 4, 3, 6):
        x = networks.images(n).cuda()
        assert close(compiled(x), network(x))
    network.layer1[1].running_mean += 1
    with pytest.warns(RuntimeWarning, match="parameters have changed since the network was compiled"):
        y = compiled(networks.images(4).cuda())
    assert close(y, network(networks.images(4).cuda()))


@torch.no_grad()
def test_a_call_costs_the_cpu_no_more_than_pytorchs(library: str) -> None:
    x = torch.randn(1, 1, 4, 4, device="cuda")
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1), torch.nn.ReLU()).cuda().eval()
    made, _ = convert(network, x, library=library, margin=networks.ALWAYS)
    layer, conv = made.get_submodule("0"), network[0]
    layer(x), conv(x)
    fewest = [float("inf")] * 2
    for _ in range(30):
        for at, call in enumerate((lambda: layer(x), lambda: conv(x))):
            torch.cuda.synchronize()
            fewest[at] = min(fewest[at], networks.thread_us(call, 200))
    print(f"a tuned layer with its ReLU {fewest[0]:.1f} us of CPU, PyTorch's convolution alone {fewest[1]:.1f}")
    assert fewest[0] < fewest[1]


@torch.no_grad()
def test_autocast_keeps_the_kernels_dtype(network: torch.nn.Module, made: torch.nn.Module) -> None:
    x = networks.images(4).cuda()
    with torch.autocast("cuda", torch.float16):
        y = made.conv1(x.half())
    assert y.dtype == torch.float32
    assert close(y, torch.relu(network.conv1(x.half().float())))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
@torch.no_grad()
def test_network_that_moves_to_another_device(network: torch.nn.Module, made: torch.nn.Module) -> None:
    x = networks.images(4)
    expected = network(x.cuda()).cpu()
    assert close(made(x.cuda()).cpu(), expected)
    made.to("cuda:1")
    assert torch.cuda.current_device() == 0
    assert close(made(x.to("cuda:1")).cpu(), expected)
    made.cpu()
    assert close(made(x), expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_loader_runs_on_the_device_of_the_filters(library: str) -> None:
    x, w, bias = (torch.randn(shape) for shape in SHAPES)
    expected = torch.nn.functional.conv2d(x, w, bias).relu()
    sizes = asdict(CHUNKED)
    convs = [prepare(w.to(on), bias.to(on), library=load(library), **sizes) for on in ("cuda:0", "cuda:1")]
    assert torch.cuda.current_device() == 0
    images = [x.to(on) for on in ("cuda:0", "cuda:1")]
    outputs: list[Any] = []
    for _ in range(3):
        outputs = [conv(there) for conv, there in zip(convs, images, strict=True)]
    for at, y in enumerate(outputs):
        assert y.device.index == at
        assert close(y.cpu(), expected)
    with pytest.raises(ValueError, match="w: is on device 1; x: is on device 0"):
        convs[1](images[0])
    with pytest.raises(ValueError, match="w: is on device 1; bias: is on device 0"):
        prepare(w.to("cuda:1"), bias.to("cuda:0"), library=load(library), **sizes)


@pytest.fixture
def pycuda_context() -> Iterator[None]:
    """Make the primary context PyCUDA's current one, too, because PyCUDA only uses contexts that it knows."""
    import pycuda.driver as cuda

    cuda.init()
    cuda.Device(0).retain_primary_context().push()
    yield
    cuda.Context.pop()


def on_pycuda() -> ArrayLibrary:
    import pycuda.driver as cuda
    from pycuda import gpuarray

    return gpuarray.to_gpu, lambda array: array.get(), cuda.Stream()


def on_cupy() -> ArrayLibrary:
    cupy = pytest.importorskip("cupy", exc_type=ImportError)
    return cupy.asarray, cupy.asnumpy, cupy.cuda.Stream(non_blocking=True)


def on_torch() -> ArrayLibrary:
    return lambda array: torch.from_numpy(array).cuda(), lambda array: array.cpu().numpy(), torch.cuda.Stream()


@pytest.mark.parametrize("arrays", [on_pycuda, on_cupy, on_torch])
def test_loader_takes_arrays_of(arrays: Callable[[], ArrayLibrary], library: str, pycuda_context: None) -> None:
    there, back, stream = arrays()
    rng = np.random.default_rng(5)
    x, w, bias = (rng.standard_normal(shape, np.float32) for shape in SHAPES)
    conv = prepare(there(w), there(bias), library=load(library), **asdict(CHUNKED))
    assert conv.handle.workspace_bytes(7) > 0
    expected = torch.nn.functional.conv2d(*map(torch.from_numpy, (x, w, bias))).relu().numpy()
    x_there = there(x)
    torch.cuda.synchronize()
    for on in (None, stream):
        y = conv(x_there, stream=on)
        assert isinstance(y, type(x_there))
        torch.cuda.synchronize()
        np.testing.assert_allclose(back(y), expected, rtol=1e-4, atol=1e-4)
