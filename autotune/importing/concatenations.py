"""A network's calls -> the same, in which no concatenation has more tensors than a kernel reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autotune.autotune_runtime.aten import Calls
from autotune.autotune_runtime.aten_calls import Call, Ref, TensorType
from autotune.autotune_runtime.plain_problems import MOST_TENSORS


def split_concatenations(network: Calls) -> Calls:
    """Let long concatenations along the channels share the concatenation of their first tensors, as in a DenseNet.

    `convert` does the same to the graph that it runs.
    """
    tensors = dict(network.tensors)
    calls: list[Call] = []
    shared: dict[tuple[str, ...], str] = {}
    for call in network.calls:
        names = call.tensors
        while len(names) > MOST_TENSORS and call.name == "cat" and call.number("dim", 0) == 1:
            first = names[:MOST_TENSORS]
            made = _joined(first, tensors)
            if made is None:
                break
            if first not in shared:
                shared[first] = f"{call.writes[0]}_{len(shared)}_first"
                tensors[shared[first]] = made
                calls.append(_cat(call, first, shared[first]))
            names = (shared[first], *names[MOST_TENSORS:])
        calls.append(call if names == call.tensors else _cat(call, names, call.writes[0]))
    return replace(network, calls=tuple(calls), tensors=tensors)


def _joined(names: tuple[str, ...], tensors: Mapping[str, TensorType]) -> TensorType | None:
    """The type of a concatenation along the channels; None if a size is unknown."""
    types = [tensors[name] for name in names if name in tensors and len(tensors[name].shape) > 1]
    channels = [channel for each in types if (channel := each.shape[1]) is not None]
    if len(channels) < len(names):
        return None
    batch, _, *rest = types[0].shape
    return replace(types[0], shape=(batch, sum(channels), *rest))


def _cat(call: Call, names: tuple[str, ...], to: str) -> Call:
    return replace(call, arguments={"tensors": [Ref(name) for name in names], "dim": 1}, writes=(to,))
