"""Convert a graph captured by Dynamo to the form that torch.export's graphs have, with parameters as attributes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from .torch_capture import Part


@dataclass(slots=True)
class Lifted:
    """A graph whose parameters and buffers became attributes, so that calls pass only the other inputs."""

    part: Part
    taken: list[int]
    """positions in Dynamo's graph of the inputs that are parameters and buffers"""
    rest: list[int]
    """positions in Dynamo's graph of the inputs that a call still passes"""


def lifted(graph: fx.GraphModule, inputs: Sequence[object]) -> Lifted:
    """Convert Dynamo's graph to ATen operators, and turn inputs that are parameters or buffers into attributes."""
    originals = graph.graph.find_nodes(op="placeholder")
    network = _in_aten(graph, [node.meta["example_value"] for node in originals])
    nodes = network.graph
    placeholders = nodes.find_nodes(op="placeholder")
    made = Lifted(Part("", network, ()), [], [])
    network.meta["dynamo_compile_id"] = graph.meta.get("dynamo_compile_id")  # otherwise CUDA graphs copy all parameters

    labels: dict[str, str] = {}
    body = next(node for node in nodes.nodes if node.op != "placeholder")
    for at, (node, original, value) in enumerate(zip(placeholders, originals, inputs, strict=True)):
        if not isinstance(value, Tensor) or not (original.meta.get("tensor_dict") or {}).get(
            "_dynamo_static_input_type"
        ):
            made.rest.append(at)
            continue
        made.taken.append(at)
        name = f"_{original.target}"
        if isinstance(value, nn.Parameter):
            network.register_parameter(name, value)
        else:
            network.register_buffer(name, value)
        labels[name] = label(original)
        with nodes.inserting_before(body):
            attribute = nodes.get_attr(name)
        node.replace_all_uses_with(attribute)
        nodes.erase_node(node)
    network.eval().recompile()
    with torch.inference_mode(mode=False), torch.no_grad():
        arguments = tuple(_example(inputs[at]) for at in made.rest)
    made.part = Part("", network, arguments, labels)
    return made


def _in_aten(graph: fx.GraphModule, fakes: Sequence[object]) -> fx.GraphModule:
    mode = next((each.fake_mode for each in fakes if isinstance(each, torch._subclasses.FakeTensor)), None)
    dispatcher = torch._dispatch.python.enable_python_dispatcher()  # for symbolic sizes
    with contextlib.nullcontext() if mode is None else mode, torch.no_grad(), dispatcher:
        made: fx.GraphModule = make_fx(graph, pre_dispatch=True)(*fakes)
    return made


def label(placeholder: fx.Node) -> str:
    """Return a parameter's or buffer's name in the model, or "" for other inputs.

    Dynamo calls the source of such an input L['self']._modules['conv']._parameters['bias'].
    """
    source = getattr(placeholder, "_dynamo_source", None)
    name = "" if source is None else source.name
    text = str(name() if callable(name) else name)  # a method in older versions of PyTorch
    return ".".join(re.findall(r"(?:_modules|_parameters|_buffers)\['([^']+)'\]", text))


def _example(given: object) -> object:
    """Return an input for running the network, with symbolic sizes replaced by their current values."""
    return given.node.hint if isinstance(given, torch.SymInt) else given
