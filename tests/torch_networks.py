"""Networks for the tests of PyTorch, and the code that these tests run in the process of a host driver."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.autotune_runtime import Handle
from autotune.autotune_runtime.torch_call import Call
from autotune.autotune_runtime.torch_convert import convert
from autotune.autotune_runtime.torch_convolution import CONVOLUTION, TunedConvolution, convolution
from autotune.autotune_runtime.torch_layers import read_network
from autotune.autotune_runtime.torch_plain import OPERATORS
from autotune.autotune_runtime.torch_swap import Row
from autotune.autotune_runtime.torch_untuned import UntunedNetwork, begun_build, disagreements, started_build
from tests.host.host_driver import make_context_current

ALWAYS = -1.0
"""A margin with which every kernel wins, because kernels are slow on the CPU."""


ERROR_BOUND = 1e-6
"""The bound of float32 sums of 9 to 36 products: 4 + sqrt(36) roundings."""


class Cpu:
    """The CPU as a device of the operator, through the host driver. A flag makes it report a capture."""

    captures = False

    def name(self, device: torch.device) -> str:
        return "host"

    def model(self, device: torch.device) -> str:
        return "host"

    def current(self, device: torch.device) -> AbstractContextManager[object]:
        return nullcontext()

    def stream(self, device: torch.device) -> int:
        return 0

    def synchronize(self, device: torch.device) -> None:
        pass

    def capturing(self) -> bool:
        return self.captures

    def recorded(self, device: torch.device, run: Callable[[], object]) -> Callable[[], None]:
        def replay() -> None:
            run()

        return replay

    def time_ms(self, device: torch.device, run: Callable[[], None]) -> float:
        start = time.perf_counter()
        run()
        return 1000 * (time.perf_counter() - start)


CPU = Cpu()


def support_cpu(_: str) -> None:
    """Let the operator run on the CPU."""
    torch.set_num_threads(1)
    for each in (CONVOLUTION, *OPERATORS.values()):
        each.support("cpu", CPU)


class Digits(nn.Module):
    """LeNet for images of 12 x 12, with ReLUs as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 6, 3)
        self.fc = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.fc(torch.flatten(x, 1))


class Branching(nn.Module):
    """A network that cannot be captured as a whole, because its control flow depends on the images."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x) if x.sum() < 1e9 else x


class ReadTwice(nn.Module):
    """A network that also reads a convolution's output before its ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.relu(y) + y


class ReadTwiceInSequence(Branching):
    """The same within a sequence, whose modules it calls one by one."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.features[0](x)
        return self.features[1](y) + y if x.sum() < 1e9 else y


class SharedPart(Branching):
    """A module that occurs twice in a sequence, the second time between a convolution and a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Tanh()
        self.features = nn.Sequential(shared, nn.Conv2d(1, 4, 3, padding=1), shared, nn.ReLU())


class TwoPaths(Branching):
    """The same with its convolution also as an attribute, which the report names."""

    def __init__(self) -> None:
        super().__init__()
        conv, *others = self.features
        del self.features
        self.conv = conv
        self.features = nn.Sequential(conv, *others)


class Residual(nn.Module):
    """Two convolutions meet in an addition, as in a ResNet block that changes the size; one may take the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.shortcut = nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """y [N, 4, 12, 12] of x [N, 1, 12, 12]."""
        y = self.conv(x)
        y += self.shortcut(x)
        return functional.relu(y)


class Streaming(nn.Module):
    """A network for images in parts: it keeps two rows, counts its calls, and scales its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("past", torch.zeros(4, 1, 2, 12))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.cat([self.past, x.mul_(0.5)], 2)
        self.past.copy_(rows[:, :, -2:])
        self.calls += 1
        return functional.relu(self.norm(self.conv(rows)))


class Listed(Branching):
    """The same with a Python list, in which no module can be replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [*self.features]

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x) if x.sum() < 1e9 else x
        return x


_NETWORKS = (Digits, Residual, Branching, ReadTwice, ReadTwiceInSequence, SharedPart)
NETWORKS = {network.__name__: network for network in _NETWORKS}


def seeded(network: Callable[[], nn.Module]) -> nn.Module:
    """A network for inference with fixed weights."""
    torch.manual_seed(1)
    return network().eval()


def images(n: int, c: int = 1, size: int = 12) -> Tensor:
    """Noise with a fixed seed."""
    return torch.randn((n, c, size, size), generator=torch.Generator().manual_seed(n))


def converted(library: str, name: str, n: int) -> tuple[str, tuple[Row, ...], int, float]:
    """A converted network's type, its report, the ReLUs left in it, and the difference of outputs for n images."""
    network = seeded(NETWORKS[name])
    made, report = convert(network, (4, 1, 12, 12), library=library, margin=ALWAYS)
    graphs = [part.code for part in made.modules() if isinstance(part, torch.fx.GraphModule)]
    relus = sum(each.count("torch.ops.aten.relu") for each in graphs) + sum(
        type(each) is nn.ReLU for each in made.modules()
    )
    return type(made).__name__, report.rows, relus, difference(made, network, images(n))


def run_twice(library: str) -> tuple[list[tuple[str, bool]], set[str], float]:
    """A convolution that runs twice: its rows, the parameters afterwards, and the difference."""
    network = seeded(lambda: nn.Sequential(*[nn.Conv2d(1, 1, 3, padding=1)] * 2))
    made, report = convert(network, images(4), library=library, margin=ALWAYS)
    layers = [(row.layer, row.swapped) for row in report.rows]
    return layers, {*made.state_dict()}, difference(made, network, images(4))


@torch.no_grad()
def difference(one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The largest difference between two networks' outputs, relative to the largest output."""
    expected = other(x)
    return float((one(x) - expected).abs().max() / expected.abs().max())


def by_two_paths(library: str) -> tuple[str, bool, list[str], float]:
    """For a convolution with two paths: its name, whether it is swapped, the module now, and the difference."""
    network = seeded(TwoPaths)
    made, report = convert(network, images(4), library=library, margin=ALWAYS)
    (row,) = report.rows
    parts = [type(made.get_submodule(path)).__name__ for path in ("conv", "features.0")]
    return row.layer, row.swapped, parts, difference(made, network, images(4))


def table(library: str) -> str:
    """The report if no kernel is faster by the margin."""
    return str(convert(seeded(Digits), images(4), library=library, margin=10.0)[1])


CONVOLUTIONS: dict[str, Callable[[], nn.Module]] = {
    "strided": lambda: nn.Conv2d(1, 4, 3, stride=2, bias=False),
    "same": lambda: nn.Conv2d(1, 4, 3, padding="same"),
    "channels last": lambda: nn.Conv2d(2, 4, 3, bias=False).to(memory_format=torch.channels_last),
    "reflecting": lambda: nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect"),
    "one-sided": lambda: nn.Conv2d(1, 4, 2, padding="same"),
    "hooked": lambda: _hooked(nn.Conv2d(1, 4, 3, padding=1)),
    "subclass": lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 4, 3, padding=1)),
    "unknown": lambda: nn.Conv2d(1, 4, 5),
    "wrong": lambda: nn.Conv2d(1, 4, 7),
    "tf32": lambda: nn.Conv2d(1, 8, 3, bias=False),
    "listed": Listed,
    "few images": lambda: nn.Conv2d(1, 4, 5, bias=False),
}


def _hooked(conv: nn.Conv2d) -> nn.Conv2d:
    conv.register_forward_hook(lambda conv, inputs, output: output + 1)
    return conv


def one_convolution(library: str, name: str) -> tuple[bool, str, float]:
    """Whether one convolution is swapped, why, and the difference, also for images at unusual addresses."""
    network = seeded(CONVOLUTIONS[name])
    c = 2 if name == "channels last" else 1
    made, report = convert(network, (4, c, 12, 12), library=library, margin=ALWAYS)
    misaligned = torch.empty(3 * c * 144 + 1)[1:].view(3, c, 12, 12).copy_(images(3, c))
    strided = images(3, c).transpose(2, 3)
    worst = max(difference(made, network, x) for x in (images(5, c), misaligned, strided, images(2, c, size=16)))
    return report.rows[0].swapped, report.rows[0].why, worst


def tf32_forbidden(library: str, switch: str) -> str:
    """Why a convolution is left if one of PyTorch's switches forbids TF32."""
    older = switch == "allow_tf32"
    of, forbidden = (torch.backends.cudnn, False) if older else (torch.backends.cudnn.conv, "ieee")
    before = getattr(of, switch)
    setattr(of, switch, forbidden)
    try:
        return one_convolution(library, "tf32")[1]
    finally:
        setattr(of, switch, before)


def too_many(library: str, *, compiles: bool) -> tuple[str, list[float], list[str]]:
    """A kernel for at most 8 images: the differences for 5, 9, 9 and 10 images, and the warnings."""
    network = seeded(CONVOLUTIONS["few images"])
    made, report = convert(network, images(4), library=library, margin=ALWAYS)
    run = torch.compile(made, backend="aot_eager", fullgraph=True) if compiles else made
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        differences = [difference(run, network, images(n)) for n in (5, 9, 9, 10)]
    return report.rows[0].kernel, differences, [str(warning.message) for warning in told]


def compiled(library: str) -> list[float]:
    """Differences of a compiled network for several numbers of images; it is recompiled for the second."""
    network = seeded(Digits)
    made, _ = convert(network, images(4), library=library, margin=ALWAYS)
    whole = torch.compile(made, backend="aot_eager", fullgraph=True)
    return [difference(whole, network, images(n)) for n in (4, 3, 6)]


def operator_checks(library: str) -> dict[str, str]:
    """PyTorch's own checks of an operator."""
    conv = nn.Conv2d(1, 4, 3, padding=1).requires_grad_(requires_grad=False)
    call = Call(library, (("pad_h", 1), ("pad_w", 1), ("epilogue", "bias_relu")), torch_shapes=True)
    arguments = (images(4), conv.weight, conv.bias, *(None,) * 4, call.text)
    answers: dict[str, str] = torch.library.opcheck(CONVOLUTION.operator, arguments)
    return answers


def under_autocast(library: str) -> tuple[str, float]:
    """Under autocast to bfloat16: the dtype of an output, and its difference from float32's."""
    network = seeded(CONVOLUTIONS["strided"])
    made, _ = convert(network, images(4), library=library, margin=ALWAYS)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        y = made(images(4).bfloat16())
    return str(y.dtype), difference(lambda _: y, network, images(4).bfloat16().float())


@torch.no_grad()
def changed(library: str, how: str) -> float:
    """The difference after the filters were changed, from a network that was changed in the same way."""
    network = seeded(Digits)
    made, _ = convert(network, images(4), library=library, margin=ALWAYS)
    made(images(4))
    torch.manual_seed(2)
    other = Digits().eval()
    if how == "in place":
        for mine, its in zip(made.parameters(), other.parameters(), strict=True):
            mine.copy_(its)
    elif how == "bias alone":
        other = copy.deepcopy(network)
        for part in (made.conv1, other.conv1):
            part.bias += 1
    elif how == "loaded":
        made.load_state_dict(other.state_dict())
    elif how == "assigned":
        for name in ("conv1", "conv2", "fc"):
            for kind in ("weight", "bias"):
                setattr(getattr(made, name), kind, getattr(getattr(other, name), kind))
    elif how == "pickled":
        made, other = pickle.loads(pickle.dumps(made)), network
    elif how == "copied":
        made, other = copy.deepcopy(made), network
    elif how == "cast":
        other = copy.deepcopy(network).double()
        return difference(made.double(), other, images(4).double())
    return difference(made, other, images(4))


def changed_in_inference_mode(library: str) -> tuple[float, bool]:
    """The difference after other filters were loaded, all in inference mode, and whether kernels ran."""
    with torch.inference_mode():
        network, other = seeded(Digits), Digits().eval()
        made, report = convert(network, images(4), library=library, margin=ALWAYS)
        made(images(4))
        made.load_state_dict(other.state_dict())
        return difference(made, other, images(4)), all(row.swapped for row in report.rows)


def inference_tensors(library: str) -> tuple[float, list[str]]:
    """The difference after filters that are inference tensors changed, and the warnings."""
    network = seeded(CONVOLUTIONS["strided"])
    made, _ = convert(network, images(4), library=library, margin=ALWAYS)
    with torch.inference_mode(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made, network = copy.deepcopy(made), copy.deepcopy(network)
        made(images(4))
        for part in (made, network):
            part.weight.mul_(-2)
        return difference(made, network, images(4)), [str(warning.message) for warning in told]


def once(library: str) -> float:
    """The difference of the operator on filters that are inference tensors, after they changed."""
    with torch.inference_mode():
        conv, x = seeded(lambda: nn.Conv2d(1, 4, 3, padding=1)), images(4)
        run = partial(convolution, padding=(1, 1), activation="relu", library=library)
        run(x, conv.weight, conv.bias)
        conv.weight.mul_(-2)
        return difference(lambda x: run(x, conv.weight, conv.bias), lambda x: conv(x).relu(), x)


@torch.no_grad()
def at_once(library: str) -> int:
    """How many of 20 times 8 threads that meet at a first call do not run the kernel, which leaves out the bias."""
    x, others = images(4), 0
    for _ in range(20):
        conv = nn.Conv2d(1, 4, 7)
        expected = functional.conv2d(x, conv.weight)
        begin = threading.Barrier(8)

        def run(conv: nn.Conv2d = conv, begin: threading.Barrier = begin) -> Tensor:
            make_context_current()
            begin.wait()
            with torch.no_grad():
                return convolution(x, conv.weight, conv.bias, library=library)

        with ThreadPoolExecutor(8) as pool:
            made = [future.result() for future in [pool.submit(run) for _ in range(8)]]
        others += sum(not torch.allclose(y, expected, atol=1e-5) for y in made)
    return others


@torch.no_grad()
def captured(library: str) -> tuple[list[int], list[str], float]:
    """Run passes in a capture and outside of one, between changes of the filters.

    Returns the number of handles after each, the rejected calls, and the difference of the last pass.
    """
    network = seeded(Digits)
    made, _ = convert(network, images(4), library=library, margin=ALWAYS)
    counts, refused = [], []

    def run(n: int, *, captures: bool) -> None:
        CPU.captures = captures
        try:
            made(images(n))
        except RuntimeError as error:
            refused.append(str(error))
        finally:
            CPU.captures = False
        counts.append(len(handles()))

    def change() -> None:
        for part in (made.conv1, made.conv2, network.conv1, network.conv2):
            part.weight.mul_(2)

    gc.collect()
    run(4, captures=False)
    change()
    run(4, captures=True)
    run(4, captures=False)
    run(4, captures=True)
    run(3, captures=True)  # a number of images that is new
    change()
    run(4, captures=False)
    return counts, refused, difference(made, network, images(4))


def handles() -> list[Handle]:
    """The handles in the process; it does not read `__class__`, which a proxy of a dead object would compute."""
    return [thing for thing in gc.get_objects() if type(thing) is Handle]


@torch.no_grad()
def call_costs(library: str) -> tuple[float, float]:
    """CPU microseconds per call of a tuned layer without its kernel, and of PyTorch's on the same images."""
    x = images(1, size=4)
    ours = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU()).eval()
    made, report = convert(ours, x, library=library, margin=ALWAYS)
    assert report.rows[0].swapped, report
    layer = made.get_submodule("0")
    y = layer(x)
    (handle,) = (handle for handle in handles() if handle.kernel_name == "tested.one")
    enqueue, addresses = handle.enqueuer(1), (0, 0, (x.data_ptr(), 0, 0, y.data_ptr(), 0))
    conv, relu = nn.Conv2d(1, 1, 1).eval(), nn.ReLU(inplace=True)
    fewest = [float("inf")] * 3
    for _ in range(30):
        for at, call in enumerate((lambda: layer(x), lambda: enqueue(*addresses), lambda: relu(conv(x)))):
            fewest[at] = min(fewest[at], thread_us(call, 200))
    return fewest[0] - fewest[1], fewest[2]


def thread_us(call: Callable[[], object], count: int) -> float:
    """Microseconds of the thread's own time that a call takes."""
    start = time.thread_time_ns()
    for _ in range(count):
        call()
    return (time.thread_time_ns() - start) / 1000 / count


@torch.no_grad()
def listened(library: str) -> list[str]:
    """What PyTorch's profiler and a dispatch mode record of a layer that ran before."""
    made, _ = convert(seeded(Digits), images(4), library=library, margin=ALWAYS)
    made(images(4))
    with torch.profiler.profile() as profile:
        made(images(4))

    names = [event.name for event in profile.events() or ()]
    with Names(names):
        made(images(4))
    return [name for name in names if name.endswith("::convolution") and not name.startswith("aten")]


class Names(TorchDispatchMode):
    """The names of the operators that PyTorch runs."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


@torch.no_grad()
def forgotten(library: str) -> tuple[int, int]:
    """The number of additional handles after a network ran, and after it was deleted."""
    gc.collect()
    before = len(handles())
    made, _ = convert(seeded(Digits), images(4), library=library, margin=ALWAYS)
    made(images(4))
    gc.collect()
    while_it_lives = len(handles())
    del made
    gc.collect()
    return while_it_lives - before, len(handles()) - before


@torch.no_grad()
def without_images(library: str, name: str) -> tuple[Tensor, Tensor]:
    """The outputs of a converted network and its original for zero images."""
    network = seeded(CONVOLUTIONS[name])
    c = 2 if name == "channels last" else 1
    made, _ = convert(network, (4, c, 12, 12), library=library, margin=ALWAYS)
    return made(images(0, c)), network(images(0, c))


def trained(library: str, how: str) -> None:
    """Do something that only a network in training may do."""
    made, _ = convert(seeded(Digits), images(4), library=library, margin=ALWAYS)
    x = images(4).requires_grad_()
    if how == "convert":
        convert(Digits(), images(4), library=library)
    elif how == "convert a part":
        network = seeded(Digits)
        network.conv2.train()
        convert(network, images(4), library=library)
    elif how == "train":
        made.train()
    elif how == "images":
        made(x)
    elif how == "compiled":
        try:
            torch.compile(made, backend="aot_eager", fullgraph=True)(x)
        except RuntimeError as error:  # newer versions of PyTorch make one that no other process can be sent
            raise RuntimeError(str(error)) from None
    elif how == "filters":
        conv = nn.Conv2d(1, 4, 3, padding=1)
        convolution(images(4), conv.weight, conv.bias, padding=(1, 1), library=library)


def refused(library: str, how: str) -> None:
    """Call the operator with invalid arguments."""
    conv = nn.Conv2d(1, 4, 3, padding=1).requires_grad_(requires_grad=False)
    x, weight, bias = images(4), conv.weight, conv.bias
    arguments: dict[str, tuple[Tensor, Tensor, Tensor | None]] = {
        "three dimensions": (x[0], weight, bias),
        "dtypes": (x.half(), weight, bias),
        "channels": (images(4, 2), weight, bias),
        "no bias": (x, weight, None),
        "bias": (x, weight, bias[:3]),
        "no kernel": (x[..., 1:], weight, bias),
    }
    convolution(*arguments[how], padding=(1, 1), activation="relu", library=library)


def disagreeing(library: str) -> tuple[dict[str, float], float, float]:
    """The modules of a converted network whose kernels compute something else after a change that they do not notice,
    with their errors, and the differences of its outputs before and after they are left to PyTorch.
    """
    network = seeded(Digits)
    made, _ = convert(network, images(4), library=library, margin=ALWAYS)
    made(images(4))  # prepares the filters
    network.conv1.weight.data.mul_(1.001)
    made.get_submodule("conv1").weight.data.mul_(1.001)
    names = {part: name for name, part in made.named_modules() if isinstance(part, TunedConvolution)}
    before = difference(made, network, images(4))
    bounds = {(part, part.problem.x[1:]): (ERROR_BOUND, 0.0) for part in names}
    wrong = disagreements(made, [(images(4),)], bounds)
    for part, _ in wrong:
        part.leave_to_pytorch()
    errors = {names[part]: times for (part, _), times in wrong.items()}
    return errors, before, difference(made, network, images(4))


SEEN: list[bool] = []
"""cudnn.benchmark in each run of Noted, also of its copies and graphs, with tensors that have values"""


@torch.library.custom_op("autotune_tests::noted", mutates_args=())
def noted(x: Tensor) -> Tensor:
    """A copy of the images."""
    SEEN.append(torch.backends.cudnn.benchmark)
    return x.clone()


noted.register_fake(torch.empty_like)


class Noted(Digits):
    """Notes its runs."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(noted(x))
        return y


def unbuilt(_: str, cache: str) -> tuple[list[str], float, list[bool]]:
    """The warnings of an untuned network if there is no compiler, the difference of its outputs, and
    cudnn.benchmark in each of its runs by `convert`.
    """
    os.environ.update(XDG_CACHE_HOME=cache, CXX="/no/such/compiler")
    network = seeded(Noted)
    made = convert(network, images(4), margin=ALWAYS)[0]
    seen = list(SEEN)
    assert isinstance(made, UntunedNetwork)
    while not made.ready:
        time.sleep(0.1)
    del os.environ["CXX"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        apart = max(difference(made, network, images(4)) for _ in range(2))
    return [str(each.message) for each in caught], apart, seen


def untuned(_: str, cache: str) -> tuple[list[tuple[Row, ...]], list[float], str]:
    """A network converted without a library: the reports before and after its kernels are compiled, the differences of
    its outputs, and the immediate result of another conversion.
    """
    os.environ["XDG_CACHE_HOME"] = cache
    network = seeded(Digits)
    made, first = convert(network, images(4), margin=ALWAYS)
    assert isinstance(made, UntunedNetwork)
    differences = [difference(made, network, images(4))]
    while not made.ready:
        time.sleep(0.1)
    differences.append(difference(made, network, images(3)))
    again = convert(network, images(4), margin=ALWAYS)[0]
    return [first.rows, made.report.rows], differences, type(again).__name__


def copied(_: str, cache: str) -> list[tuple[int, float]]:
    """The number of convolutions that PyTorch runs, and the difference of the outputs, of an untuned network and its
    copies. The first copy is made while kernels are compiled.
    """
    os.environ["XDG_CACHE_HOME"] = cache
    network, x = seeded(Digits), images(4)
    made = convert(network, x, margin=ALWAYS)[0]
    assert isinstance(made, UntunedNetwork)
    assert not made.ready
    copies = [copy.deepcopy(made), pickle.loads(pickle.dumps(made))]
    assert all(isinstance(each, UntunedNetwork) and each.ready for each in (made, *copies))
    with torch.no_grad():
        return [(by_pytorch(each, x), difference(each, network, x)) for each in (made, *copies)]


def untuned_threads(_: str, cache: str) -> tuple[int, float]:
    """The number of conversions, and the largest difference of the outputs, if 20 times 8 threads meet at the first
    call of an untuned network whose kernels are compiled.
    """
    os.environ["XDG_CACHE_HOME"] = cache
    network, x = seeded(Digits), images(4)
    convert(network, x, margin=ALWAYS, wait=True)
    expected = network(x)
    interval, printed = sys.getswitchinterval(), io.StringIO()
    sys.setswitchinterval(1e-6)
    differences: list[float] = []
    try:
        with ThreadPoolExecutor(8, initializer=make_context_current) as pool, redirect_stderr(printed):
            for _at in range(20):
                build = started_build(network.parameters(), "none.db")
                assert build is not None
                read = read_network(network, x)
                assert begun_build(build, read) is build
                made, meet = UntunedNetwork(network, read, build, ALWAYS), threading.Barrier(8)

                def call(_: int, made: UntunedNetwork = made, meet: threading.Barrier = meet) -> float:
                    meet.wait()
                    with torch.no_grad():
                        return float((made(x) - expected).abs().max())

                differences += pool.map(call, range(8))
    finally:
        sys.setswitchinterval(interval)
    return printed.getvalue().count("run tuned kernels"), max(differences)


@torch.no_grad()
def in_new_sizes(_: str, cache: str) -> tuple[tuple[Row, ...], list[tuple[int, float]]]:
    """The report of a network converted for images of 12 and 16 pixels. Then, for these sizes, for two passes at a
    third one, and for a pass once this has a kernel, the number of convolutions that PyTorch runs, and the difference
    of the outputs. In between, captured passes run.
    """
    os.environ["XDG_CACHE_HOME"] = cache
    network = seeded(lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU()))
    made, report = convert(network, [images(2, size=12), images(2, size=16)], margin=ALWAYS, wait=True)
    found = []
    for size in (12, 16, 20, 20):
        x = images(3, size=size)
        found.append((by_pytorch(made, x), difference(made, network, x)))
    count = 1
    while count:
        time.sleep(0.2)
        CPU.captures = True
        made(x)  # prepares nothing, so it doesn't raise
        CPU.captures = False
        count = by_pytorch(made, x)
    found.append((0, difference(made, network, x)))
    return report.rows, found


def by_pytorch(network: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """The number of convolutions that PyTorch runs in a call, also inside the operator."""
    with torch.profiler.profile() as profile:
        network(x)
    return [event.name for event in profile.events()].count("aten::convolution")
