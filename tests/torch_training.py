"""A network in training, and the code that its tests run in the process of a host driver."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.autotune_runtime.torch_backend import autotune
from autotune.autotune_runtime.torch_convert import convert
from autotune.autotune_runtime.torch_gradients import CHANGING, FILTERS, TRAINED
from autotune.autotune_runtime.torch_swap import Report
from tests.host.host_driver import make_context_current
from tests.torch_backends import logged
from tests.torch_networks import ALWAYS, CPU, support_cpu

Rows = list[tuple[str, str, bool]]


class Small(nn.Module):
    """Three convolutions with batch norms: with a bias, with a stride, in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.strided, self.norm2 = nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.grouped = nn.Conv2d(16, 8, 1, groups=2)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.first(x)))
        y = functional.relu(self.norm2(self.strided(y)))
        return self.fc(functional.relu(self.grouped(y)).mean((2, 3)))


def small() -> Small:
    """The network, the same in each call."""
    torch.manual_seed(3)
    return Small().to(memory_format=torch.channels_last)


def pair() -> nn.Sequential:
    """A depthwise convolution that reads another convolution's output, and a transposed one that reads its output, the
    same in each call.
    """
    torch.manual_seed(3)
    first, second = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.Conv2d(16, 16, 3, 2, 1, groups=16, bias=False)
    third = nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1)
    network = nn.Sequential(first, second, third, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    return network.to(memory_format=torch.channels_last)


class Residual(nn.Module):
    """A convolution that reads the output of a ReLU, which an addition also reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.branch, self.norm2 = nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.first(x)))
        return self.fc(functional.relu(self.norm2(self.branch(y)) + y).mean((2, 3)))


def residual() -> Residual:
    """The network, the same in each call."""
    torch.manual_seed(3)
    return Residual().to(memory_format=torch.channels_last)


class Perceptron(nn.Module):
    """Activations between convolutions and between linear layers, without norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1)
        self.wide, self.narrow, self.fc = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(functional.silu(input=self.first(x))).permute(0, 2, 3, 1)
        return self.fc(self.narrow(functional.gelu(self.wide(y))).mean((1, 2)))


def perceptron() -> Perceptron:
    """The network, the same in each call."""
    torch.manual_seed(3)
    return Perceptron().to(memory_format=torch.channels_last)


def signals() -> nn.Sequential:
    """Convolutions of signals, the same in each call."""
    torch.manual_seed(3)
    first, second = nn.Conv1d(3, 8, 3, padding=1), nn.ConvTranspose1d(8, 8, 5, 2, 2, bias=False)
    return nn.Sequential(first, nn.ReLU(), second, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 4))


def batch(step: int = 0, n: int = 4, size: int = 8) -> tuple[Tensor, Tensor]:
    """Images and their classes, which can be learnt."""
    generator = torch.Generator().manual_seed(step)
    classes = torch.arange(n) % 4
    x = torch.randn((n, 3, size, size), generator=generator) + classes.view(-1, 1, 1, 1) * torch.tensor(
        [1.0, -1, 0.5]
    ).view(3, 1, 1)
    return x.contiguous(memory_format=torch.channels_last), classes


class Operands(TorchDispatchMode):
    """Keeps the tensors that an operator of PyTorch gets."""

    def __init__(self, operator: torch._ops.OpOverload) -> None:
        super().__init__()
        self.operator = operator
        self.tensors: list[Tensor] = []

    def __torch_dispatch__(
        self,
        operator: torch._ops.OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if operator is self.operator:
            self.tensors += [each for each in args if isinstance(each, Tensor)]
        return operator(*args, **(kwargs or {}))


def support_training(library: str) -> None:
    """Let the operators of training run on the CPU, too."""
    support_cpu(library)
    CHANGING.support("cpu", CPU)
    FILTERS.support("cpu", CPU)


def convert_small(library: str, network: nn.Module) -> tuple[nn.Module, Report]:
    """The network with kernels of all libraries, and the report."""
    return convert(network, batch()[0], library=Path(library).parents[2], margin=ALWAYS, training=True)


def of_constant_filters(library: str) -> list[str]:
    """The kernel of a contiguous convolution's output in the report, and why it is not used."""
    conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    folder = Path(library).parents[2]
    _, report = convert(conv, batch()[0].contiguous(), library=folder, margin=ALWAYS, training=True)
    return [report.rows[0].kernel, report.rows[0].why]


@functools.cache
def _converted(library: str) -> nn.Module:
    with torch.no_grad():  # which is not the network's mode
        return convert_small(library, small())[0]


def trained(library: str) -> nn.Module:
    """The network that runs kernels; timings, which are slow on the CPU, run once."""
    return copy.deepcopy(_converted(library))


def loss_of(run: Callable[[Tensor], Tensor], step: int = 0) -> Tensor:
    x, classes = batch(step)
    return functional.cross_entropy(run(x), classes)


def gradients(network: nn.Module, run: Callable[[Tensor], Tensor] | None = None) -> dict[str, Tensor]:
    """The gradients of a network's parameters after a backward pass."""
    loss_of(network if run is None else run).backward()
    return {name: each.grad for name, each in network.named_parameters() if each.grad is not None}


def apart(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest difference of gradients, in units of the largest element of each."""
    assert ours.keys() == theirs.keys()
    return max(
        float((ours[name] - each).abs().max() / each.abs().max())
        for name, each in theirs.items()
        if each.abs().max() > 1e-6
    )


def exact() -> dict[str, Tensor]:
    """Gradients in float64, by PyTorch."""
    network = small().double()
    x, classes = batch()
    functional.cross_entropy(network(x.double()), classes).backward()
    return {name: each.grad for name, each in network.named_parameters()}


def converted(library: str) -> tuple[Rows, str, list[str], bool, float]:
    """The rows of a report and its last line, the parameters' names, whether the original's filters stayed, and the
    difference of gradients from float64.
    """
    network = small()
    before = copy.deepcopy(network.state_dict())
    made, report = convert_small(library, network)
    rows = [(row.layer, row.kernel.partition(".")[0], row.swapped) for row in report.rows]
    same = all(torch.equal(each, before[name]) for name, each in network.state_dict().items())
    names = [name for name, _ in made.named_parameters()]
    return rows, report.summary, names, same, apart(gradients(made), exact())


def frozen(library: str) -> tuple[list[str], float]:
    """The parameters that get gradients if the strided filters are frozen, and the difference of these from float64."""
    made = trained(library)
    made.strided.weight.requires_grad_(requires_grad=False)
    found = gradients(made)
    expected = exact()
    return [*found], apart(found, {name: expected[name] for name in found})


def accumulated(library: str) -> float:
    """The difference of gradients after two backward passes from twice those of one."""
    made = trained(library)
    once = {name: 2 * each for name, each in gradients(made).items()}
    return apart(gradients(made), once)


def twice(library: str) -> tuple[float, bool]:
    """The difference of the gradients of two runs, and whether all of their bits are equal.

    PyTorch's own operators must be deterministic in the second one.
    """
    made = trained(library)
    first = {name: each.clone() for name, each in gradients(made).items()}
    made.zero_grad()
    torch.use_deterministic_algorithms(mode=True)
    try:
        second = gradients(made)
    finally:
        torch.use_deterministic_algorithms(mode=False)
    return apart(second, first), all(torch.equal(second[name], each) for name, each in first.items())


def second_derivatives(library: str) -> None:
    """Ask for the gradient of a gradient."""
    made = trained(library)
    (dw,) = torch.autograd.grad(loss_of(made), made.first.weight, create_graph=True)
    dw.square().sum().backward()


def compiled_second_derivatives(library: str) -> None:
    """Ask for the gradient of a gradient of a compiled network."""
    made = trained(library)
    (dw,) = torch.autograd.grad(loss_of(torch.compile(made)), made.first.weight, create_graph=True)
    dw.square().sum().backward()


def losses(library: str, steps: int = 30) -> list[list[float]]:
    """The losses of a training by kernels and by PyTorch."""
    found: list[list[float]] = []
    for network in (trained(library), small()):
        optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
        found.append([])
        for step in range(steps):
            loss = loss_of(network, step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found[-1].append(float(loss))
    return found


def compiled(library: str) -> tuple[float, list[str], float]:
    """The differences of gradients from float64, of a converted network that is compiled as one graph and of the
    backend, and what the backend logs in between.
    """
    torch.compiler.reset()
    made = trained(library)
    first = apart(gradients(made, torch.compile(made, backend="aot_eager", fullgraph=True)), exact())
    network = small()
    options = {"library": str(Path(library).parents[2]), "margin": ALWAYS, "rest": "aot_eager", "training": True}
    with logged() as lines:
        run = torch.compile(network, backend=autotune, options=options, fullgraph=True)
        second = apart(gradients(network, run), exact())
    return first, lines, second


def of_pair(library: str) -> tuple[Rows, float, float]:
    """The rows of its report, and the differences of gradients from float64, converted and by the backend."""
    torch.compiler.reset()
    made, report = convert_small(library, pair())
    rows = [(row.layer, row.kernel.partition(".")[0], row.swapped) for row in report.rows]
    network, double = pair(), pair().double()
    options = {"library": str(Path(library).parents[2]), "margin": ALWAYS, "rest": "aot_eager", "training": True}
    run = torch.compile(network, backend=autotune, options=options, fullgraph=True)
    x, classes = batch()
    functional.cross_entropy(double(x.double()), classes).backward()
    expected = {name: each.grad for name, each in double.named_parameters()}
    return rows, apart(gradients(made), expected), apart(gradients(network, run), expected)


def of_signals(library: str) -> tuple[list[str], float]:
    """The parts that kernels compute, and the difference of gradients from float64."""
    (x, classes), network = batch(), signals()
    x = x.flatten(2)
    made, report = convert(network, x, library=Path(library).parents[2], margin=ALWAYS, training=True)
    for each, given in ((made, x), (network.double(), x.double())):
        functional.cross_entropy(each(given), classes).backward()
    ours, theirs = ({name: each.grad for name, each in of.named_parameters()} for of in (made, network))
    return [row.layer for row in report.rows if row.swapped], apart(ours, theirs)


def by_epilogues(library: str, name: str, how: str = "trained") -> tuple[list[tuple[str, str]], float]:
    """The epilogues of the kernels of data gradients, and the difference of gradients from float64."""
    torch.compiler.reset()
    networks: dict[str, Callable[[], nn.Module]] = {"residual": residual, "perceptron": perceptron}
    network, double = networks[name](), networks[name]().double()
    for each in (network, double):
        for of, parameter in each.named_parameters():
            parameter.requires_grad_(requires_grad=how != "frozen" or of != "branch.weight")
    options = {"library": str(Path(library).parents[2]), "margin": ALWAYS, "rest": "aot_eager", "training": True}
    with logged() as lines:
        found = gradients(network, torch.compile(network, backend=autotune, options=options, fullgraph=True))
    x, classes = batch()
    functional.cross_entropy(double(x.double()), classes).backward()
    rows = [line.split() for line in lines if "data gradient" in line and "tested" in line]
    epilogues = [(row[0], row[5]) for row in rows]
    expected = {name: each.grad for name, each in double.named_parameters() if each.grad is not None}
    return epilogues, apart(found, expected)


def under_autocast(library: str) -> tuple[list[bool], set[torch.dtype], float, float]:
    """Whether parts run kernels in bfloat16, the gradients' dtypes, and the differences of gradients from float64, by
    kernels and by PyTorch.
    """
    network = small()
    with torch.autocast("cpu", torch.bfloat16):
        made, report = convert_small(library, network)
        losses = [loss_of(each) for each in (made, network)]
    for loss in losses:
        loss.backward()
    ours, theirs = ({name: each.grad for name, each in of.named_parameters()} for of in (made, network))
    dtypes = {each.dtype for each in ours.values()}
    return [row.swapped for row in report.rows], dtypes, apart(ours, exact()), apart(theirs, exact())


def other_sizes(library: str) -> float:
    """The difference from PyTorch's of the gradients for images of another size and for an image without a batch."""
    made, network = trained(library), small()
    for each in (made, network):
        x, classes = batch(size=6)
        (functional.cross_entropy(each(x), classes) + each.first(x[0]).sum()).backward()
    ours, theirs = ({name: each.grad for name, each in of.named_parameters()} for of in (made, network))
    return apart(ours, theirs)


def without_images(library: str) -> float:
    """The largest element of the filters' gradient for an empty batch, with uninitialized memory that is NaN."""
    strided = trained(library).strided
    torch.use_deterministic_algorithms(mode=True)
    strided(torch.empty(0, 8, 8, 8).contiguous(memory_format=torch.channels_last)).sum().backward()
    torch.use_deterministic_algorithms(mode=False)
    return float(strided.weight.grad.abs().max())


def checked(library: str) -> dict[str, str]:
    """What PyTorch checks of the operator."""
    layer = trained(library).strided.layer
    x = torch.randn(4, 8, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(16, 8, 3, 3).contiguous(memory_format=torch.channels_last).requires_grad_()
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    return torch.library.opcheck(
        TRAINED, (x, weight, weight.detach(), None, layer.text), test_utils=tests, atol=1e-4, rtol=1e-4
    )


def _rank(rank: int, library: str, networks: list[nn.Module], folder: str) -> None:
    """One of two processes that train together."""
    make_context_current()
    support_training(library)
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    found = []
    for network in networks:
        parallel = DistributedDataParallel(network)
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        for step in range(3):
            x, classes = batch(2 * step + rank)
            optimizer.zero_grad()
            functional.cross_entropy(parallel(x), classes).backward()
            optimizer.step()
        found.append({name: each.detach().clone() for name, each in network.named_parameters()})
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def distributed(library: str, folder: str) -> tuple[float, float]:
    """The differences of the parameters of two processes from each other, and from PyTorch's, after some steps."""
    networks = [each.eval() for each in (trained(library), small())]  # batch norms are not synchronised
    torch.multiprocessing.start_processes(_rank, (library, networks, folder), 2, start_method="fork")
    (first, of_pytorch), (second, _) = (torch.load(f"{folder}/{rank}.pt") for rank in (0, 1))
    return apart(second, first), apart(first, of_pytorch)
