"""Find a network's layers of one operation, such as convolutions, with the operators that each kernel also computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autotune.autotune_runtime.activations import BY_WORD
from autotune.autotune_runtime.convolution import FilterGradient, prologue_activation
from autotune.autotune_runtime.fusion import Fused as Epilogue
from autotune.autotune_runtime.fusion import (
    Graph,
    LayerProblem,
    MatrixProduct,
    Operator,
    fuse,
    product_epilogue,
)
from autotune.autotune_runtime.network_layers import BATCH_NORM, KINDS, LINEAR, PLAIN, Layer
from autotune.devices.device import DeviceInfo
from autotune.errors import StudyError
from autotune.family.space import BoundTemplate
from autotune.family.template_files import load_templates
from autotune.importing.network import plain
from autotune.operation.registry import operation
from autotune.problem import Problem, make_problem

OPERATIONS = {
    "conv2d": "convolutions",
    "gemm": "matrix products",
    "training": "convolutions and gradients",
    **{op: f"{KINDS[op]}s" for op in PLAIN},
}
"""A study's operation, or training -> the network's layers that the study covers, in words."""


_HOPPER = DeviceInfo("cuda", "sm_90", arch=90, sm_count=132, memory_bytes=1 << 37)
"""a device on which every bundled family runs"""


@dataclass(frozen=True, slots=True)
class Fused:
    """A layer that a kernel can compute, together with the operators fused into that kernel."""

    label: str
    problem: Problem
    parts: tuple[str, ...] = ()
    """the fused operators in the network's order, in words; empty for a product, whose epilogue contains them"""
    ending: str = ""
    """ending of the layer's name in studies"""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """An operator that isn't part of the study, and why."""

    label: str
    why: str
    flops: int | None
    other: bool = False
    """whether a study of another operation could contain the operator"""


@dataclass(frozen=True, slots=True)
class Findings:
    """A network's layers and unsupported operators, in the network's order."""

    op: str
    images: int | None
    fused: tuple[Fused, ...]
    left_out: tuple[Unsupported, ...]

    @property
    def served_flops(self) -> int:
        """FLOPs in the layers that kernels can compute."""
        return sum(each.problem.flops for each in self.fused)

    @property
    def flops(self) -> int:
        """FLOPs in all layers and unsupported operators of known size."""
        return self.served_flops + sum(each.flops or 0 for each in self.left_out)

    @property
    def count(self) -> int:
        """The number of layers of the operation, with and without a kernel."""
        return len(self.fused) + sum(not each.other for each in self.left_out)


def findings(network: Graph, *, op: str = "conv2d", residuals: bool = True) -> Findings:
    """Find all of an operation's layers in a network.

    For conv2d, matrix products are listed as unsupported, and for gemm, convolutions are, so that shares of FLOPs cover
    both. Other operations have so few FLOPs that shares refer only to layers of the same operation. Without
    `residuals`, convolutions don't compute additions. Linear layers count as convolutions.
    """
    checked = replace(network, operators=tuple(map(_checked, network.operators)))
    fused = {each.at: _computable(each) for each in fuse(checked, residuals=residuals)}
    folded = {at for each in fused.values() for at in each.folded}
    kinds = (KINDS.get(op, "convolution"), {"conv2d": LINEAR, "concat": BATCH_NORM}.get(op, ""))
    layers: list[Fused] = []
    left_out: list[Unsupported] = []
    for at, operator in enumerate(checked.operators):
        layer: Fused | Unsupported | None = None
        if operator.product is not None and (op == "gemm" or (op == "conv2d" and operator.layer is None)):
            layer = _product(checked, at, operator.product, op)
        elif operator.layer is not None and operator.layer.kind in kinds and at not in folded:
            layer = _layer(checked, operator.layer, fused.get(at), op)
        if isinstance(layer, Fused):
            layers.append(layer)
        elif layer is not None:
            left_out.append(layer)
    return Findings(op, network.images, tuple(layers), tuple(left_out))


def _layer(network: Graph, layer: Layer[LayerProblem], fused: Epilogue | None, op: str) -> Fused | Unsupported:
    label = plain(layer.label)
    if op == "gemm":
        return Unsupported(label, _OTHER.format(OPERATIONS["conv2d"], "conv2d"), layer.flops, other=True)
    if fused is None:
        return Unsupported(label, plain(layer.why_not, 1000), layer.flops)
    return Fused(label, computed(fused.problems[0]), tuple(_parts(network, fused)))


def _computable(fused: Epilogue) -> Epilogue:
    """Return a layer and its fused operators, without a prologue if no bundled family computes both."""
    return fused if fused.front is None or has_family(fused.front.problem) else replace(fused, front=None)


def has_family(of: LayerProblem) -> bool:
    """Return whether a bundled family supports a convolution with its prologue. Without a prologue, there always is
    one.
    """
    if of.values.get("prologue", "none") == "none":
        return True
    problem = computed(of)
    families = load_templates(of={of.operation}).values()
    return any(BoundTemplate(family, problem, _HOPPER).supported for family in families)


_IN_FRONT = {"affine": "batch norm", "joining": "earlier frames"}


def _parts(network: Graph, fused: Epilogue) -> Iterator[str]:
    front = fused.front.operators if fused.front is not None else ()
    for each in (network.operators[at] for at in front):
        if each.kind == "joining" and each.amounts[0] == 1:
            yield "concatenation"
        elif each.kind in (*_IN_FRONT, "padding", "upsampling", "gate"):
            yield _IN_FRONT.get(each.kind, each.kind)
    if fused.front is not None and (word := prologue_activation(str(fused.front.problem.values.get("prologue", "")))):
        yield BY_WORD[word].name
    if any(network.operators[at].kind == "affine" for at in fused.folded):
        yield "scale and shift"
    if fused.shuffle is not None:
        yield "pixel shuffle"
    if fused.addition is not None:
        yield "residual"
    if fused.activation:
        yield BY_WORD[fused.activation].name


def _product(network: Graph, at: int, product: MatrixProduct, op: str) -> Fused | Unsupported:
    label = plain(product.label)
    if op != "gemm":
        return unsupported_product(product)
    if product.why_not:
        return Unsupported(label, product.why_not, product.flops)
    words = {"dtype": product.dtype, "transposes": product.transposes}
    words["epilogue"] = product_epilogue(network, at, product)
    try:
        return Fused(label, make_problem(operation("gemm"), {**product.sizes, **words}))
    except StudyError as error:
        return Unsupported(label, plain(str(error), 1000), product.flops)


def unsupported_product(product: MatrixProduct) -> Unsupported:
    """Return a matrix product as one that a study of convolutions doesn't contain."""
    return Unsupported(plain(product.label), _OTHER.format(OPERATIONS["gemm"], "gemm"), product.flops, other=True)


_OTHER = "{}, which --op {} imports"


def _checked(operator: Operator) -> Operator:
    """Return an operator. If studies reject the problem of its layer, replace the problem by the reason."""
    layer = operator.layer
    if layer is None or layer.problem is None:
        return operator
    try:
        computed(layer.problem)
    except StudyError as error:
        return replace(operator, layer=replace(layer, problem=None, why_not=str(error)))
    return operator


def computed(of: LayerProblem | FilterGradient) -> Problem:
    """Convert one of the runtime package's problems to a study's. Raises StudyError if it is invalid."""
    return make_problem(operation(of.operation), of.values)
