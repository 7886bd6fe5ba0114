"""Networks against float64: errors and top-1 of both, and outputs that prove nothing."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from torch import Tensor, nn  # noqa: E402

from autotune.autotune_runtime.torch_verify import calibrated, verify  # noqa: E402
from tests.torch_networks import Digits, images, seeded  # noqa: E402


def classes() -> nn.Module:
    parts = [nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU6(), nn.Flatten(), nn.Linear(400, 10)]
    return nn.Sequential(*parts)


def deep() -> nn.Module:
    """So deep that random filters make the outputs vanish, as in MobileNetV2."""
    parts: list[nn.Module] = []
    for _ in range(6):
        conv = nn.Conv2d(1, 1, 3, padding=1, bias=False)
        conv.weight.data.mul_(1e-2)
        parts += [conv, nn.BatchNorm2d(1)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(144, 5))


def test_both_networks_are_compared_with_float64() -> None:
    network = seeded(Digits)
    verification = verify(network, network, images(16))
    assert (verification.images, verification.degenerate) == (16, False)
    assert 0 < verification.original.relative_error < 1e-6
    assert verification.original == verification.converted
    assert verification.original.top1 == 16
    assert str(verification).splitlines()[1].endswith("top-1 as in float64 for 16 of 16")


def test_a_wrong_network_shows() -> None:
    network, other = seeded(Digits), seeded(Digits)
    other.fc.bias.data[3] += 100
    verification = verify(network, other, images(16))
    assert verification.converted.relative_error > 1
    assert (verification.original.top1, verification.converted.top1) == (16, 0)


def test_a_network_that_writes_to_its_images_is_compared_on_the_same() -> None:
    class Scaling(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mul_(3)

    network, x = Scaling(), images(4)
    assert verify(network, network, x).converted.relative_error < 1e-6
    assert torch.equal(x, images(4))


def test_nan_is_the_worst_error() -> None:
    network = seeded(Digits)
    made = verify(network, lambda x: network(x) * math.nan, images(4))
    assert math.isnan(made.converted.relative_error)


def test_several_outputs_and_no_classes() -> None:
    network = nn.Conv2d(1, 4, 3).eval()

    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = network

        def forward(self, x: Tensor) -> dict[str, object]:
            y = self.conv(x)
            return {"features": [y, y + 1], "count": 3}

    several = Several()
    verification = verify(several, lambda x: {"features": [network(x), network(x)], "count": 3}, images(4))
    assert verification.original.top1 is None
    assert verification.converted.relative_error > 0.1, "of the second output"


def test_outputs_that_do_not_depend_on_the_images_verify_nothing_until_calibrated() -> None:
    torch.manual_seed(1)
    network = deep().eval()
    assert verify(network, network, images(8)).degenerate
    assert "NOTHING IS VERIFIED: outputs vary by " in str(verify(network, network, images(8)))
    made = calibrated(network, images(8))
    assert not verify(made, made, images(8)).degenerate
    assert not made[1].training
    assert network[1].running_var == 1, "the original stays"


class Scaled(nn.Module):
    """Has buffers in addition to a batch norm's: one that is not saved, and one that counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("scale", torch.full((4, 1, 1), 3.0), persistent=False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.norm(self.conv(x)) * self.scale


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_calibration_changes_statistics_alone(name: str) -> None:
    dtype = getattr(torch, name)
    network, x = seeded(Scaled).to(dtype), images(8).to(dtype)
    with torch.no_grad():
        network.conv.weight.copy_(torch.rand(4, 1, 3, 3, dtype=torch.float64))
    made = calibrated(network, x)
    assert made(x).dtype == dtype
    before = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    after = {**dict(made.named_parameters()), **dict(made.named_buffers())}
    assert {name: tensor.dtype for name, tensor in after.items()} == {
        name: tensor.dtype for name, tensor in before.items()
    }
    after["calls"] -= 1  # made(x)
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


def test_half_precision_is_calibrated_in_float_and_stays_half() -> None:
    torch.manual_seed(1)
    network = classes().half().to(memory_format=torch.channels_last).eval()
    made = calibrated(network, images(8).half())
    assert {tensor.dtype for tensor in made.state_dict().values()} == {torch.float16, torch.int64}
    verification = verify(made, made, images(8).half())
    assert not verification.degenerate
    assert 1e-5 < verification.original.relative_error < 1e-2
