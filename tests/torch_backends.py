"""Code that the tests of the backend "autotune" run in the process of a host driver."""

from __future__ import annotations

import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code
from torch.nn import functional

from autotune.autotune_runtime.torch_backend import LIBRARY, autotune
from autotune.autotune_runtime.torch_convert import convert
from tests.host.host_driver import make_context_current
from tests.torch_networks import ALWAYS, CPU, Streaming, by_pytorch, difference, images, seeded
from tests.torch_residuals import normalising


class Block(nn.Module):
    """A convolution, a block with a residual and a batch norm, and layers without a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.layer1 = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), normalising(4))
        self.relu = nn.ReLU(inplace=True)
        self.graph = nn.Conv2d(4, 4, 1)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.conv(x))
        z = self.layer1(y)
        z += y
        return self.fc(self.graph(self.relu(z)).mean((2, 3)))


class Resizable(nn.Module):
    """Convolutions of images of any size: two with kernels, one of them with a residual, and one without."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.block, self.last = (
            nn.Conv2d(1, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Conv2d(4, 4, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.conv(x))
        return self.last(functional.relu(self.block(y) + y))


@torch.no_grad()
def in_a_race(library: str) -> tuple[list[bool], list[str], float]:
    """A layer meets images of another size, and the race of its kernel runs out of memory.

    Returns whether another thread waited for the race, the operators of the next call, and the difference of outputs.
    """
    network, x = seeded(Resizable), images(4, size=8)
    made, _ = convert(network, images(4), library=library, margin=ALWAYS)
    layer = made.get_submodule("conv")
    threads: list[Thread] = []
    waits: list[bool] = []

    def called() -> None:
        make_context_current()
        with torch.no_grad():
            layer(x)

    def raced(*_: object) -> float:
        threads.append(Thread(target=called))
        threads[-1].start()
        threads[-1].join(0.3)
        waits.append(threads[-1].is_alive())
        raise torch.OutOfMemoryError

    with patch.object(CPU, "time_ms", raced):
        layer(x)
    for thread in threads:
        thread.join()
    with torch.profiler.profile() as profile:
        layer(x)
    names = [event.name for event in profile.events() or ()]
    apart = difference(layer, lambda x: functional.relu(network.conv(x)), x)
    with patch.object(CPU, "captures", new=True, create=True):
        layer(images(4, size=9))  # a size without a kernel, which a graph's capture may have
    layer.get_parameter("weight").mul_(2)
    layer(x)  # races again, because the first race was not decided
    layer.get_parameter("weight").mul_(2)
    with patch.object(CPU, "time_ms", side_effect=AssertionError("the race was decided")):
        layer(x)
    return waits, names, apart


def compiled(network: nn.Module, library: str, **options: object) -> Callable[[Tensor], Tensor]:
    torch.compiler.reset()
    settings = {"library": library, "margin": ALWAYS, "rest": "aot_eager", **options}
    return torch.compile(network, backend=autotune, options=settings, fullgraph=True)


@contextmanager
def logged() -> Iterator[list[str]]:
    """The lines that the backend logs in the block."""
    lines: list[str] = []
    logger = logging.getLogger(autotune.__module__)
    handler = logging.Handler()
    handler.emit = lambda record: lines.extend(record.getMessage().splitlines())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(handler)


def reported(library: str) -> tuple[list[str], list[float]]:
    """The log of a network, and differences for three numbers of images: compiled, recompiled for any, eager."""
    network = seeded(Block)
    with logged() as lines:
        made = compiled(network, library)
        differences = [difference(made, network, images(n)) for n in (4, 3, 6)]
        with torch.inference_mode():
            differences.append(float((made(images(5)) - network(images(5))).abs().max()))
    return lines, differences


def untuned(_: str, cache: str, rest: str, *, wait: bool) -> tuple[int, list[str], list[float]]:
    """A network that is compiled without a library: the number of lines logged by its first call, the lines of all
    calls, and the differences of the outputs of all calls. Unless the first call waits, the last calls have other
    sizes.
    """
    os.environ["XDG_CACHE_HOME"] = cache
    network = seeded(Block)
    torch.compiler.reset()
    options = {"margin": ALWAYS, "rest": rest, "wait": wait}
    made = torch.compile(network, backend=autotune, options=options, fullgraph=True)
    with logged() as lines:
        differences = [difference(made, network, images(4))]
        first = len(lines)
        while not lines:
            time.sleep(0.2)
            differences.append(difference(made, network, images(4)))
        differences += [difference(made, network, images(n)) for n in ((4,) if wait else (4, 3, 6))]
    return first, lines, differences


@torch.no_grad()
def first_calls(library: str) -> list[float]:
    """Differences of outputs, images and buffers after each of two calls of a network that writes to all of them."""
    network, other = seeded(Streaming), seeded(Streaming)
    made = compiled(network, library)
    differences = []
    for n in (4, 4):
        given, expected = images(n), images(n)
        pairs = [(made(given), other(expected)), (given, expected), (network.past, other.past)]
        differences += [float((one - another).abs().max()) for one, another in pairs]
        differences.append(float(abs(network.calls - other.calls)))
    return differences


@torch.no_grad()
def changed(library: str, how: str) -> tuple[float, int]:
    """The difference after parameters changed, and the number of warnings."""
    network = seeded(Block)
    made = compiled(network, library)
    made(images(4))
    torch.manual_seed(5)
    if how == "statistics":
        network.layer1[1].running_mean += 1
    elif how == "loaded":
        network.load_state_dict({name: value + 0.5 for name, value in network.state_dict().items()})
    elif how == "assigned":
        network.conv.weight = nn.Parameter(torch.randn(4, 1, 3, 3))
    elif how == "linear alone":  # no kernel has a copy of it
        network.fc.weight += 1
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        worst = max(difference(made, network, images(4)) for _ in range(2))
    return worst, sum("parameters have changed" in str(warning.message) for warning in told)


def changed_inference_tensors(library: str) -> float:
    """The difference after parameters changed, of a network made in inference mode."""
    with torch.inference_mode():
        network = seeded(Block)
        made = compiled(network, library)
        made(images(4))
        network.conv.weight.mul_(-2)
        network.layer1[1].running_mean.add_(1)
        return difference(made, network, images(4))


@torch.no_grad()
def left(library: str, how: str) -> float:
    """The difference of a network whose convolution is PyTorch's."""
    conv = nn.Conv2d(1, 4, 3, padding=1).eval()
    filters = torch.randn(4, 1, 3, 3)

    class Given(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.conv2d(x, filters + x.mean(), padding=1)

    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, x: Tensor) -> Tensor:
            return functional.batch_norm(self.conv(x), None, None, training=True)

    class Clipped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = 20 * conv(x)
            nn.ReLU6(inplace=True)(y)
            return y

    networks = {
        "filters are computed": Given(),
        "batch statistics": Trained(),
        "no convolution": nn.ReLU(),
        "a ReLU6 alone": Clipped(),
    }
    network = networks[how].eval()
    return difference(compiled(network, library), network, images(4))


@torch.no_grad()
def found(library: str, how: str) -> float:
    """The difference if the library is given in another way."""
    network, x = seeded(Block), images(4)
    torch.compiler.reset()
    options: dict[str, object] = {"margin": ALWAYS, "rest": "aot_eager"}
    if how in ("variable", "by name"):
        os.environ[LIBRARY] = library
    elif how == "folder":
        options["library"] = str(Path(library).parent)
    try:
        made = torch.compile(network, backend="autotune" if how == "by name" else autotune, options=options)
        return difference(made, network, x)
    finally:
        os.environ.pop(LIBRARY, None)


def refused(library: str, how: str) -> str:
    """The message if the backend cannot compile."""
    network = seeded(Block)
    given: dict[str, object] = {"library": "/no/such/library.so" if how == "library" else library}
    try:
        with torch.set_grad_enabled(how == "gradients"):
            compiled(network, **given)(images(4))  # type: ignore[arg-type]
    except RuntimeError as error:
        return str(error)
    return ""


@torch.no_grad()
def in_several_sizes(library: str, *, compiles: bool) -> tuple[list[tuple[int, float]], int]:
    """For images of three sizes the number of convolutions that PyTorch runs and the difference of the outputs, and how
    many graphs were compiled, of a network that was converted for the first size.
    """
    network = seeded(Resizable)
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    if compiles:
        options = {"library": library, "margin": ALWAYS, "rest": "aot_eager"}
        made = torch.compile(network, backend=autotune, dynamic=True, options=options, fullgraph=True)
    else:
        made, _ = convert(network, images(4), library=library, margin=ALWAYS)
    found = []
    for size in (12, 8, 10):
        x = images(4, size=size)
        made(x)
        found.append((by_pytorch(made, x), difference(made, network, x)))
    return found, torch._dynamo.utils.counters["stats"]["unique_graphs"]


@torch.no_grad()
def planned(library: str) -> tuple[float, list[str]]:
    """The difference under Inductor, and the order of operators in the code that it generated."""
    network = seeded(Block)
    torch.compiler.reset()
    made = torch.compile(network, backend=autotune, options={"library": library, "margin": ALWAYS}, fullgraph=True)
    _, (code,) = run_and_get_code(made, images(4))
    calls = re.findall(r"^ +(?:buf\d+ = )?(\S*(?:convolution(?:\.default)?|cpp_fused\w*))\(", code, re.MULTILINE)
    return difference(made, network, images(4)), calls
