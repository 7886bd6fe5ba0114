"""Run a part that a network calls several times, for example for the frames of a video, as one graph per kind of call.

A call may change lists among its arguments, such as a list of earlier frames for convolutions.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

Arguments: TypeAlias = "tuple[tuple[object, ...], dict[str, object]]"
"""Arguments by position and by name."""


@dataclass(frozen=True, slots=True)
class Value:
    """Nested tuples, lists and dictionaries with placeholders for tensors."""

    spec: TreeSpec
    leaves: tuple[object, ...]
    """all leaves; None for a tensor"""
    places: tuple[int, ...]
    """positions of the tensors among the leaves"""

    @classmethod
    def of(cls, value: object) -> tuple[Value, list[Tensor]]:
        """Split nested tuples, lists and dictionaries into a Value and the tensors."""
        leaves, spec = tree_flatten(value)
        places = tuple(at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        others = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        return cls(spec, others, places), [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def filled(self, tensors: Sequence[Tensor]) -> object:
        """Return the nested value with these tensors in the placeholders."""
        leaves = list(self.leaves)
        for at, tensor in zip(self.places, tensors, strict=True):
            leaves[at] = tensor
        return tree_unflatten(leaves, self.spec)

    def kind(self, tensors: Sequence[Tensor]) -> Hashable:
        """Return a key that is the same for all calls that a single graph can compute."""
        types = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors)
        return repr(self.spec), tuple(map(repr, self.leaves)), self.places, types


@dataclass(slots=True)
class Made:
    """A call's outputs and its arguments afterwards, without their tensors."""

    value: Value | None = None


class Once(nn.Module):
    """A call to a part, as a function of the tensors in its arguments.

    Returns the tensors in the outputs, followed by those in the arguments after the call.
    """

    def __init__(self, part: nn.Module, arguments: Value) -> None:
        super().__init__()
        self.part = part
        self._arguments = arguments
        self.made = Made()

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given, named = cast("Arguments", self._arguments.filled(tensors))
        self.made.value, found = Value.of((self.part(*given, **named), (given, named)))
        return tuple(found)


@dataclass(slots=True)
class Calls:
    """A forward pre-hook that records the arguments of the first call of each kind."""

    most: int
    found: dict[Hashable, tuple[Value, tuple[Tensor, ...]]] = field(default_factory=dict)

    def __call__(self, _: nn.Module, given: tuple[object, ...], named: Mapping[str, object]) -> None:
        """Record a call if it is the first of its kind. At most `most` + 1 kinds are recorded."""
        value, tensors = Value.of((given, dict(named)))
        kind = value.kind(tensors)
        if kind not in self.found and len(self.found) <= self.most:
            self.found[kind] = value, tuple(tensor.clone() for tensor in tensors)


class Repeated(nn.Module):
    """A part that runs a graph for calls of known kinds, and the original module for all others."""

    def __init__(self, part: nn.Module, graphs: Mapping[Hashable, tuple[fx.GraphModule, Value]]) -> None:
        super().__init__()
        self.part = part
        self.graphs = nn.ModuleList(graph for graph, _ in graphs.values())
        self._kinds = {kind: (at, made) for at, (kind, (_, made)) in enumerate(graphs.items())}

    def forward(self, *given: object, **named: object) -> object:
        """Call the part."""
        value, tensors = Value.of((given, named))
        known = self._kinds.get(value.kind(tensors))
        if known is None or torch.compiler.is_compiling():
            return self.part(*given, **named)
        at, made = known
        outputs, after = cast("tuple[object, object]", made.filled(self.graphs[at](*tensors)))
        _update((given, named), after)
        return outputs


def _update(given: object, after: object) -> object:
    """Update lists and dictionaries in place to what they contain after a call, and return the updated argument."""
    if isinstance(given, dict) and isinstance(after, dict):
        changed = {name: _update(given.get(name), value) for name, value in after.items()}
        given.clear()
        given.update(changed)
        return given
    if isinstance(given, (list, tuple)) and isinstance(after, (list, tuple)):
        both = [_update(one, other) for one, other in zip(given, after, strict=False)]
        if isinstance(given, list):
            given[:] = [*both, *after[len(both) :]]
            return given
    return after
