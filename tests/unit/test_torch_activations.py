"""Which calls of a PyTorch network are an activation, also of one with an option."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch", exc_type=ImportError)

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from autotune.autotune_conv2d.conv2d import EPILOGUES, Problem, epilogue_name
from autotune.autotune_conv2d.torch_activations import ACTIVATIONS, BY_WORD, Activation, word_of_module, word_of_node

LEAKY = BY_WORD["leaky_relu"]


def last_node(call: Callable[[Tensor], Tensor]) -> fx.Node:
    return list(fx.symbolic_trace(lambda y: call(y)).graph.nodes)[-2]  # noqa: PLW0108 - no built-in can be traced


@pytest.mark.parametrize(
    "call",
    [
        functional.relu,
        lambda y: functional.relu(y, True),
        lambda y: functional.relu(input=y, inplace=True),
        functional.relu_,
        torch.relu,
        torch.relu_,
        lambda y: y.relu(),
        lambda y: y.relu_(),
    ],
)
def test_a_relu_is_known(call: Callable[[Tensor], Tensor]) -> None:
    assert word_of_node(last_node(call), {}) == "relu"


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (torch.sigmoid, "sigmoid"),
        (lambda y: y.sigmoid(), "sigmoid"),
        (functional.relu6, "relu6"),
        (functional.silu, "silu"),
        (lambda y: functional.hardswish(y, inplace=True), "hardswish"),
        (functional.gelu, "gelu"),
        (lambda y: functional.gelu(y, approximate="tanh"), "gelu_tanh"),
    ],
)
def test_other_activations_are_known(call: Callable[[Tensor], Tensor], word: str) -> None:
    assert word_of_node(last_node(call), {}) == word


@pytest.mark.parametrize("call", [torch.tanh, functional.softplus, lambda y: y.tanh()])
def test_another_function_is_not(call: Callable[[Tensor], Tensor]) -> None:
    assert word_of_node(last_node(call), {}) == ""


def test_modules() -> None:
    assert word_of_module(nn.ReLU(inplace=True)) == "relu"
    assert word_of_module(nn.Tanh()) == ""
    assert word_of_module(nn.GELU("tanh")) == "gelu_tanh"
    assert LEAKY.is_module(nn.LeakyReLU())
    assert not LEAKY.is_module(nn.LeakyReLU(0.2))


@pytest.mark.parametrize(
    ("call", "is_it"),
    [
        (functional.leaky_relu, True),
        (lambda y: functional.leaky_relu(y, 0.01, True), True),
        (lambda y: functional.leaky_relu(y, negative_slope=0.01), True),
        (lambda y: functional.leaky_relu(y, 0.2), False),
        (lambda y: functional.leaky_relu(y, negative_slope=0.2), False),
    ],
)
def test_an_option_must_be_given(call: Callable[[Tensor], Tensor], is_it: bool) -> None:
    assert LEAKY.is_call(last_node(call)) == is_it


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=[activation.word for activation in ACTIVATIONS])
def test_a_word_is_that_of_an_epilogue(activation: Activation) -> None:
    y = torch.randn(100, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(activation.run(y.clone()), activation.module(**activation.options)(y))
    for residual in (False, True):
        name = epilogue_name(residual=residual, activation=activation.word)
        assert name in EPILOGUES
        problem = Problem(1, 1, 1, 1, 1, 1, 1, epilogue=name)
        assert (problem.activation, problem.has_residual) == (activation.word, residual)


def test_epilogues_without_an_activation() -> None:
    plain = {name: Problem(1, 1, 1, 1, 1, 1, 1, epilogue=name).activation for name in ("none", "bias", "bias_add")}
    assert plain == {"none": "", "bias": "", "bias_add": ""}
