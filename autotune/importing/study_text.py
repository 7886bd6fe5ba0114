"""Write the layers found in a network as the text of a study file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autotune.autotune_runtime.convolution import sizes
from autotune.autotune_runtime.fusion import Graph
from autotune.autotune_runtime.layer_names import plain_name, unused_name
from autotune.importing.fused_layers import OPERATIONS, Findings, Fused
from autotune.importing.network import plain
from autotune.problem import Layer, Problem
from autotune.study_writer import layer_toml

_SHOWN = 3
"""Maximum number of labels in a comment. Further labels are only counted."""


@dataclass(frozen=True, slots=True)
class NamedLayer:
    """A study's layer, which stands for all of the network's layers with the same problem."""

    name: str
    problem: Problem
    labels: tuple[str, ...]
    """names of the layers in the network"""
    share: float
    """fraction of the network's FLOPs at the layer's batch size"""
    fused: tuple[str, ...] = ()
    """operators that are fused into the kernel, in words; several alternatives if the network's layers differ"""


def named_layers(networks: Sequence[Findings]) -> tuple[NamedLayer, ...]:
    """Return a study's layers for a network at one or several batch sizes.

    If there are several, names end in the batch size, such as conv1-n8.
    """
    layers: list[NamedLayer] = []
    used: set[str] = set()
    for found in networks:
        same: dict[Problem, list[Fused]] = {}
        for each in found.fused:
            same.setdefault(each.problem, []).append(each)
        for problem, those in same.items():
            ending = f"-n{found.images}" if len(networks) > 1 else ""
            name = unused_name(plain_name(those[0].label) or found.op, used, ending + those[0].ending)
            share = len(those) * problem.flops / found.flops
            fused = dict.fromkeys(", ".join(each.parts) for each in those if each.parts)
            layers.append(NamedLayer(name, problem, tuple(each.label for each in those), share, tuple(fused)))
    return tuple(layers)


def study_text(
    name: str, title: Iterable[str], networks: Sequence[Findings], layers: Sequence[NamedLayer], accuracy: str | None
) -> str:
    """Return the text of a study file. Comments list the unsupported operators with reasons and shares of the FLOPs."""
    settings = {"name": plain_name(name) or "network"} | ({} if accuracy is None else {"accuracy": accuracy})
    head = [*(f"# {plain(line, 1000)}" for line in title), *_left_out(networks[0])]
    lines = [*head, *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items())]
    return "\n".join([*lines, *(line for layer in layers for line in _table(layer))]) + "\n"


def summaries(source: str, networks: Sequence[Graph], found: Sequence[Findings]) -> Iterator[str]:
    """Yield a line for each batch size with the share of the network that the study covers."""
    for network, each in zip(networks, found, strict=True):
        inputs = ", ".join(map(sizes, network.inputs)) or "no inputs"
        known = " known" if any(left.flops is None for left in each.left_out) else ""
        share = f"{100 * each.served_flops / each.flops:.1f} % of {each.flops / 1e9:.4g} GFLOPs{known}"
        yield f"{source}, {inputs}: {len(each.fused)} of {each.count} {OPERATIONS[each.op]}, {share}"


def fused_parts(found: Findings) -> str:
    """List the operators fused into layers, each with the number of layers."""
    counts = Counter(part for each in found.fused for part in each.parts)
    return ", ".join(f"{part} ({count})" for part, count in counts.items())


def reasons(found: Findings) -> Iterator[str]:
    """Yield a line for each reason with the unsupported operators, the largest share of the FLOPs first."""
    labels: dict[str, list[str]] = {}
    flops: dict[str, list[int | None]] = {}
    for each in found.left_out:
        labels.setdefault(each.why, []).append(each.label)
        flops.setdefault(each.why, []).append(each.flops)
    for why in sorted(labels, key=lambda why: -sum(each or 0 for each in flops[why])):
        known = None not in flops[why]
        share = f"{_percent(sum(each or 0 for each in flops[why]) / (found.flops or 1))}" if known else "? %"
        yield f"{share}  {_listed(labels[why])}: {why}"


def _left_out(found: Findings) -> Iterator[str]:
    if found.left_out:
        yield "# Left out, with its share of the FLOPs:"
        yield from (f"#   {line}" for line in reasons(found))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _listed(labels: Sequence[str]) -> str:
    """Join labels. If there are many, list the first few and count the rest."""
    more = f" and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
    return f"{', '.join(labels[:_SHOWN])}{more}"


def _table(layer: NamedLayer) -> Iterator[str]:
    yield ""
    yield f"# {_percent(layer.share)}: {_listed(layer.labels)}"
    if layer.fused:
        yield f"# Fused: {' or '.join(layer.fused)}"
    yield from layer_toml(Layer(layer.name, layer.problem, len(layer.labels)))
