"""The activations that a kernel's epilogue may end with, and how networks of PyTorch call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, fx, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation, and the modules, functions and methods of tensors that are it."""

    word: str
    """the end of an epilogue's name"""
    run: Callable[[Tensor], Tensor]
    """PyTorch's own, in place where there is one"""
    module: type[nn.Module]
    functions: tuple[Callable[..., Tensor], ...]
    methods: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    """what the module, and a function behind its input, must be given: GELU's {"approximate": "tanh"}"""

    def is_module(self, part: nn.Module) -> bool:
        """Whether a part of a network is this activation."""
        return type(part) is self.module and self.options == {name: getattr(part, name) for name in self.options}

    def is_call(self, node: fx.Node) -> bool:
        """Whether a node of a graph calls this activation's function or method, with nothing but its input."""
        if node.target not in (self.functions if node.op == "call_function" else self.methods):
            return False
        given = dict(zip(("input", *self.options, "inplace"), node.args, strict=False)) | node.kwargs
        default = self.module()
        options = {name: given.pop(name, getattr(default, name)) for name in self.options}
        return options == self.options and given.keys() <= {"input", "inplace"}


ACTIVATIONS = (
    Activation(
        word="relu",
        run=torch.relu_,
        module=nn.ReLU,
        functions=(functional.relu, functional.relu_, torch.relu, torch.relu_),
        methods=("relu", "relu_"),
    ),
    Activation(word="relu6", run=functional.relu6, module=nn.ReLU6, functions=(functional.relu6,)),
    Activation(word="silu", run=functional.silu, module=nn.SiLU, functions=(functional.silu,)),
    Activation(word="hardswish", run=functional.hardswish, module=nn.Hardswish, functions=(functional.hardswish,)),
    Activation(
        word="sigmoid",
        run=torch.sigmoid_,
        module=nn.Sigmoid,
        functions=(torch.sigmoid, torch.sigmoid_, functional.sigmoid),
        methods=("sigmoid", "sigmoid_"),
    ),
    Activation(
        word="gelu",
        run=functional.gelu,
        module=nn.GELU,
        functions=(functional.gelu,),
        options={"approximate": "none"},
    ),
    Activation(
        word="gelu_tanh",
        run=partial(functional.gelu, approximate="tanh"),
        module=nn.GELU,
        functions=(functional.gelu,),
        options={"approximate": "tanh"},
    ),
    Activation(
        word="leaky_relu",
        run=functional.leaky_relu,
        module=nn.LeakyReLU,
        functions=(functional.leaky_relu, functional.leaky_relu_),
        options={"negative_slope": 0.01},
    ),
)
BY_WORD = {activation.word: activation for activation in ACTIVATIONS}


def activated(y: Tensor, word: str) -> Tensor:
    """An activation of a tensor, in place where PyTorch has it so; the tensor itself without a word."""
    return BY_WORD[word].run(y) if word else y


def spoken(word: str) -> str:
    """What PyTorch calls an activation, such as ReLU."""
    return BY_WORD[word].module.__name__


def word_of_module(part: nn.Module) -> str:
    """The word of the activation that a part of a network is; empty where it is none, or has hooks."""
    return next((each.word for each in ACTIVATIONS if each.is_module(part) and not has_hooks(part)), "")


def word_of_node(node: fx.Node, modules: Mapping[str, nn.Module]) -> str:
    """The word of the activation that a node of a graph is; empty where it is none."""
    if node.op == "call_module":
        return word_of_module(modules[str(node.target)])
    return next((each.word for each in ACTIVATIONS if each.is_call(node)), "")


def has_hooks(part: nn.Module) -> bool:
    """Whether a call of a part of a network runs more than its forward."""
    return bool(part._forward_hooks or part._forward_pre_hooks)
