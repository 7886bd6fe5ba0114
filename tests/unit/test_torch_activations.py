"""Calls of a PyTorch network that are an activation, also with an option."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch", exc_type=ImportError)

import torch
from torch import Tensor, nn
from torch.nn import functional

from autotune.autotune_runtime.activations import ACTIVATIONS, SCALAR, Activation
from autotune.autotune_runtime.convolution import activation_of, epilogue_name
from autotune.autotune_runtime.network_interfaces import BY_NAME
from autotune.autotune_runtime.torch_convolution import activated, differentiated
from autotune.autotune_runtime.torch_layers import read_network

CALLS: tuple[tuple[Callable[[Tensor], Tensor], str], ...] = (
    (functional.relu, "relu"),
    (lambda y: functional.relu(y, True), "relu"),
    (lambda y: functional.relu(input=y, inplace=True), "relu"),
    (functional.relu_, "relu"),
    (torch.relu, "relu"),
    (torch.relu_, "relu"),
    (lambda y: y.relu(), "relu"),
    (lambda y: y.relu_(), "relu"),
    (lambda y: y.clamp(min=0), "relu"),
    (nn.ReLU(inplace=True), "relu"),
    (torch.sigmoid, "sigmoid"),
    (lambda y: y.sigmoid(), "sigmoid"),
    (functional.relu6, "relu6"),
    (functional.silu, "silu"),
    (lambda y: functional.hardswish(y, inplace=True), "hardswish"),
    (functional.gelu, "gelu"),
    (lambda y: functional.gelu(y, approximate="tanh"), "gelu_tanh"),
    (nn.GELU("tanh"), "gelu_tanh"),
    (functional.leaky_relu, "leaky_relu"),
    (lambda y: functional.leaky_relu(y, 0.01, True), "leaky_relu"),
    (lambda y: functional.leaky_relu(y, negative_slope=0.01), "leaky_relu"),
    (lambda y: functional.leaky_relu(y, 0.2), ""),
    (nn.LeakyReLU(0.2), ""),
    (torch.tanh, ""),
    (functional.softplus, ""),
    (lambda y: y.clamp(min=0.5), ""),
    (lambda y: y.clamp(min=torch.full((), 0.5)).relu(), ""),
)


class Followed(nn.Module):
    """A convolution for each call, which alone reads the convolution's output."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(1, 1, 1) for _ in CALLS)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([call(conv(x)) for conv, (call, _) in zip(self.convs, CALLS, strict=True)])


def test_calls_of_activations_are_known() -> None:
    layers = read_network(Followed().eval(), (2, 1, 4, 4)).layers
    assert [layer.activation for layer in layers] == [word for _, word in CALLS]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=[activation.word for activation in ACTIVATIONS])
def test_a_word_is_that_of_an_epilogue(activation: Activation) -> None:
    y = 3 * torch.randn(100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    module = getattr(nn, activation.name)(**activation.options)
    torch.testing.assert_close(activated(y.clone(), activation.word), module(y))
    torch.testing.assert_close(torch.tensor([activation(v) for v in y.tolist()], dtype=torch.float64), module(y))
    assert f"derivative_{activation.word}" in BY_NAME["conv_transpose"].words["epilogue"]
    y.requires_grad_()
    (expected,) = torch.autograd.grad(module(y), y, torch.full_like(y, 2))
    torch.testing.assert_close(differentiated(torch.full_like(y, 2), activation.word, y.detach()), expected)
    slopes = [2 * eval(activation.derivative, dict(SCALAR), {"v": v}) for v in y.tolist()]
    torch.testing.assert_close(torch.tensor(slopes, dtype=torch.float64), expected)
    for residual in (False, True):
        name = epilogue_name(residual=residual, activation=activation.word)
        for operation in ("conv2d", "conv", "conv_transpose"):
            assert name in BY_NAME[operation].words["epilogue"]
        assert activation_of(name) == activation.word


def test_epilogues_without_an_activation() -> None:
    assert [activation_of(name) for name in ("none", "bias", "bias_add")] == ["", "", ""]
