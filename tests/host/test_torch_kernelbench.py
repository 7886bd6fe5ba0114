"""The benchmark of KernelBench's convolutions: its problems, and contenders that cheat."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from torch import Tensor, nn  # noqa: E402

from tests.benchmarks.kernelbench import IMAGES, ROUNDS, Contender, Measured, compete, lines  # noqa: E402
from tests.benchmarks.kernelbench_chains import LEVEL_2, built, chains, layers, problem_of  # noqa: E402
from tests.torch_networks import seeded  # noqa: E402

SIZES = (7, 4, 12, 12)


def honest() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1)).eval()


@torch.no_grad()
def race(cheater: Callable[[nn.Module], Callable[[Tensor], Tensor]]) -> Measured:
    network = seeded(honest)
    x = torch.rand(SIZES)
    return compete("honest", network, {"eager": Contender(network, x), "cheater": Contender(cheater(network), x)})


def caches(network: nn.Module) -> Callable[[Tensor], Tensor]:
    kept: list[Tensor] = []

    def run(x: Tensor) -> Tensor:
        kept.append(kept[0] if kept else network(x))
        return kept[0]

    return run


def caches_by_address(network: nn.Module) -> Callable[[Tensor], Tensor]:
    kept: dict[int, Tensor] = {}
    return lambda x: kept.setdefault(x.data_ptr(), network(x)).clone()


def skips_what_is_right(network: nn.Module) -> Callable[[Tensor], Tensor]:
    y = torch.zeros(7, 8, 10, 10)

    def run(x: Tensor) -> Tensor:
        right = network(x)
        if not torch.allclose(y[0, 0], right[0, 0]):
            y[0] = right[0]
        if torch.isnan(y).sum() == 0 and y[1:].abs().sum() > 0:
            return y
        y[1:6] = right[1:6]
        return y

    return run


def stops_after_some_passes(network: nn.Module) -> Callable[[Tensor], Tensor]:
    passes: list[Tensor] = []

    def run(x: Tensor) -> Tensor:
        passes.append(network(x) if len(passes) < 8 else passes[-1])
        return passes[-1]

    return run


def leaves_out_an_image(network: nn.Module) -> Callable[[Tensor], Tensor]:
    y = torch.zeros(7, 8, 10, 10)

    def run(x: Tensor) -> Tensor:
        y[:6] = network(x[:6])
        return y

    return run


def repeats_images(network: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: network(x[:IMAGES])[torch.arange(len(x)) % IMAGES]


def leaves_out_a_row(network: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.cat([y := network(x[:, :, :-1]), y[:, :, -1:]], 2)


def leaves_out_a_tap(network: nn.Module) -> nn.Module:
    other = copy.deepcopy(network)
    other[0].weight.data[..., -1, -1] = 0
    return other


def leaves_out_the_bias(network: nn.Module) -> nn.Module:
    other = copy.deepcopy(network)
    other[2].bias = None
    return other


def computes_in(dtype: Any) -> Callable[[nn.Module], Callable[[Tensor], Tensor]]:
    def cheater(network: nn.Module) -> Callable[[Tensor], Tensor]:
        narrow = copy.deepcopy(network).to(dtype)
        return lambda x: narrow(x.to(dtype)).float()

    return cheater


def overwrites_its_input(network: nn.Module) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        y = network(x)
        x.zero_()
        return y

    return run


def returns_one_image(network: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: network(x[:1])


def adds_noise(network: nn.Module) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        y = network(x)
        y[-1, -1, -1, -1] += 0.05 * y.std()
        return y

    return run


CHEATERS = {
    cheater.__name__: cheater
    for cheater in (
        caches,
        caches_by_address,
        skips_what_is_right,
        stops_after_some_passes,
        leaves_out_an_image,
        repeats_images,
        leaves_out_a_row,
        leaves_out_a_tap,
        leaves_out_the_bias,
        overwrites_its_input,
        returns_one_image,
        adds_noise,
    )
} | {"bfloat16": computes_in(torch.bfloat16), "float16": computes_in(torch.float16)}


@pytest.mark.parametrize("cheater", CHEATERS.values(), ids=CHEATERS)
def test_a_cheater_has_no_time(cheater: Callable[[nn.Module], Callable[[Tensor], Tensor]]) -> None:
    measured = race(cheater)
    assert list(measured.times_us) == ["eager"]
    assert measured.errors["eager"] < 0.1
    assert measured.errors["cheater"] > 1
    assert any(line.startswith("honest: cheater is wrong") for line in lines([measured]))


@torch.no_grad()
def test_an_image_is_missed_even_if_outputs_are_constant() -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 1.0 + 0.0 * x

    network, x = Constant(), torch.rand(SIZES)
    y = network(x)

    def leaves_out(x: Tensor) -> Tensor:
        y[:6] = network(x[:6])
        return y

    measured = compete("constant", network, {"eager": Contender(network, x), "cheater": Contender(leaves_out, x)})
    assert list(measured.times_us) == ["eager"]


def test_an_equal_network_has_a_time() -> None:
    measured = race(copy.deepcopy)
    assert set(measured.times_us) == {"eager", "cheater"}
    assert (measured.proves, measured.speedup) == ("", None)


def test_a_cache_of_outputs_by_content_never_hits() -> None:
    passes: Counter[bytes] = Counter()

    def remembers(network: nn.Module) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            passes[x.numpy().tobytes()] += 1
            return network(x)

        return run

    assert set(race(remembers).times_us) == {"eager", "cheater"}
    assert len(passes) == passes.total() == ROUNDS + 4


@torch.no_grad()
@pytest.mark.parametrize(
    ("last", "proves"),
    [
        (lambda x: x.clamp(0, 0), "inputs, precision"),
        (lambda x: 1e6 + x, "inputs, precision"),
        (lambda x: 1e4 + x, "precision"),
    ],
    ids=["zeros", "hidden", "almost hidden"],
)
def test_a_problem_that_proves_nothing_says_so(last: Callable[[Tensor], Tensor], proves: str) -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return last(self.conv(x))

    network, x = seeded(Network), torch.rand(8, 4, 80, 80)
    measured = compete("nothing", network, {"eager": Contender(network, x), "converted": Contender(network, x)})
    assert measured.proves == proves
    assert not any("geometric mean" in line for line in lines([measured]))


def test_every_convolution_of_level_2_is_in_a_chain() -> None:
    used = Counter(chain.layer for chain in LEVEL_2.values()) + Counter(["kb2-26"])
    assert used == {layer.name: layer.count for layer in layers(2).values()}
    assert len(chains()) == 34 + 62


@torch.no_grad()
@pytest.mark.parametrize("name", ["kb50", "kb54", "kb64", "kb75", "kb2-3", "kb2-11", "kb2-38", "kb2-79", "kb2-92"])
def test_a_problem_runs_and_has_the_sizes_of_its_study(name: str) -> None:
    network, sizes = built(name, n=1, most=32)
    y = network.eval()(torch.rand(sizes))
    assert torch.isfinite(y).all()
    problem = problem_of(name)
    full = built(name)[1]
    sides = [
        problem.values[axis] * (2 if name == "kb2-38" else 1) for axis in "dhw" if problem.values.get(axis, 1) != 1
    ]
    assert full == (problem.values["n"], problem.values["c"], *sides)
