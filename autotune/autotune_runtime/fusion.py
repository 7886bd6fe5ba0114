"""Represent a network as a small graph, and find the operators that each layer's kernel can compute as well.

ONNX files, torch.export archives and PyTorch's captured graphs are all read into a `Graph`, and `fuse` is the only
matcher, so import-model, convert and the torch.compile backend agree. Every exported package contains this module, so
it imports neither autotune nor NumPy nor PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from .activations import ACTIVATIONS
from .convolution import DTYPES, Geometry, Problem, Shape, epilogue_name
from .equivalent_convolutions import padded, shuffled, two_frames, upsampled
from .network_layers import LINEAR, Layer
from .plain_problems import ConcatProblem, PlainProblem

LayerProblem: TypeAlias = Problem | PlainProblem
"""A layer's problem in inference: a convolution, or a layer without filters."""
Function: TypeAlias = Callable[..., float]
"""An elementwise operator's function, which takes one element of each tensor that the operator reads."""

MOST_OPERATORS = 16
"""Maximum number of operators matched as one activation. A GELU written out has five."""
_SAMPLES = (*(each / 4 for each in range(-48, 49)), -60.0, 60.0)
_CLOSE = 1e-5  # constants in files are float32; the two kinds of GELU differ by 5e-4


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A matrix product, in the terms of the operation `gemm`."""

    label: str
    flops: int
    sizes: Mapping[str, int] = field(default_factory=dict)
    """batch, m, n and k; empty if no kernel computes the product"""
    transposes: str = "nn"
    bias: bool = False
    dtype: str = "f32"
    why_not: str = ""
    """why `sizes` is empty"""


@dataclass(frozen=True, slots=True)
class Operator:
    """One of a network's operators. Computations that read only the network's own tensors aren't operators."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    kind: str = "other"
    """copy: returns its input; cast: converts to another floating-point type; affine: scales and shifts each channel by
    constants; addition: adds two tensors of the same shape; padding: adds zeros around the input; joining: concatenates
    tensors along an axis; upsampling: repeats each pixel 2 x 2 times; shuffle: turns channels into pixels; gate:
    multiplies images, which it reads first, by a factor for each channel; channels_first: moves the last axis to the
    second place, as a view; convolution; other
    """
    function: Function | None = None
    """the function that an elementwise operator computes; None for other operators or if the function is unknown"""
    constants: tuple[str, ...] = ()
    """the network's own tensors that the operator reads, such as filters"""
    layer: Layer[LayerProblem] | None = None
    """the convolution, linear layer, norm, concatenation, pool or gate that the operator computes; for a batch norm,
    the layer that it is unless another layer's kernel computes it
    """
    product: MatrixProduct | None = None
    inside: tuple[str, ...] = ()
    """for a norm that is written out as several operators: the tensors between these operators"""
    source: str = ""
    """for a norm that is written out: the norm's input"""
    amounts: tuple[int, ...] = ()
    """padding: zeros before and after, for each axis from the first; joining: the axis, and each tensor's size along
    it; affine: the axis along which the constants vary, or empty; shuffle: the factor by which the images grow
    """


@dataclass(frozen=True, slots=True)
class Graph:
    """Operators in execution order."""

    operators: tuple[Operator, ...]
    outputs: frozenset[str]
    """tensors that the network returns"""
    inputs: tuple[Shape, ...] = ()
    layout: str = "nchw"
    """layout of the network's images"""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """dtypes of tensors, where known"""
    writers: Mapping[str, int] = field(init=False)
    """position of the operator that writes each tensor"""
    readers: Mapping[str, tuple[int, ...]] = field(init=False)
    """positions of the operators that read each tensor"""
    constant_readers: Mapping[str, int] = field(init=False)
    """number of operators that read each of the network's own tensors"""

    def __post_init__(self) -> None:
        readers: dict[str, list[int]] = {}
        constants: dict[str, int] = {}
        for at, operator in enumerate(self.operators):
            for name in dict.fromkeys(operator.reads):
                readers.setdefault(name, []).append(at)
            for name in dict.fromkeys(operator.constants):
                constants[name] = constants.get(name, 0) + 1
        writers = {name: at for at, operator in enumerate(self.operators) for name in operator.writes}
        object.__setattr__(self, "writers", writers)
        object.__setattr__(self, "readers", {name: tuple(found) for name, found in readers.items()})
        object.__setattr__(self, "constant_readers", constants)

    @property
    def images(self) -> int | None:
        """The batch size, if known: the first size of the first input."""
        return self.inputs[0][0] if self.inputs and self.inputs[0] else None

    def only_reader(self, tensor: str) -> int | None:
        """Return the position of a tensor's only reader, or None if there are several or the network returns the
        tensor.
        """
        found = self.readers.get(tensor, ())
        return found[0] if len(found) == 1 and tensor not in self.outputs else None


@dataclass(frozen=True, slots=True)
class Front:
    """The operators in front of a layer that its kernel also computes."""

    operators: tuple[int, ...]
    """positions in the graph, in order"""
    reads: tuple[str, ...]
    """the images, and if the problem has them, the frames before the images or the factors of their channels"""
    problem: LayerProblem
    """the layer together with the operators in front of it, but without an epilogue"""


@dataclass(frozen=True, slots=True)
class Shuffle:
    """The pixel shuffle after a convolution, and copies before it."""

    operators: tuple[int, ...]
    """positions in the graph, in order"""
    problem: Problem
    """the transposed convolution that computes the convolution and the pixel shuffle"""


@dataclass(frozen=True, slots=True)
class Fused:
    """A layer and the surrounding operators that its kernel computes, as positions in the graph, in order."""

    at: int
    layer: Layer[LayerProblem]
    folded: tuple[int, ...] = ()
    """scales and shifts, and copies before them, which are folded into the layer's weights and bias"""
    addition: int | None = None
    copied: tuple[int, ...] = ()
    """copies between the layer and the addition"""
    moved: int | None = None
    """the operator after a linear layer that moves the channels to the second axis (`channels_first`)"""
    activation: str = ""
    """word of the activation; empty if there is none"""
    activated: tuple[int, ...] = ()
    """the operators that compute the activation, and copies before them"""
    front: Front | None = None
    shuffle: Shuffle | None = None

    @property
    def problems(self) -> tuple[LayerProblem, ...]:
        """The problems that a kernel may compute, from the most complete epilogue to the least.

        If an operator follows a convolution without a bias, the kernel gets a bias of zero.
        """
        problem = self.layer.problem if self.front is None else self.front.problem
        if problem is None:
            return ()
        if isinstance(problem, PlainProblem):
            epilogues = problem.epilogues(self.activation, scaled=bool(self.folded))
            return tuple(replace(problem, epilogue=name) for name in epilogues)
        biased = bool(self.folded) or problem.epilogue != "none"
        if self.shuffle is not None:
            words = dict.fromkeys((self.activation, ""))
            names = [epilogue_name(residual=biased, activation=word) for word in words if word or biased]
            names = names if biased else [*names, "none"]
            return tuple(replace(self.shuffle.problem, epilogue=name) for name in names)
        follow = dict.fromkeys([(self.addition is not None, word) for word in (self.activation, "")])
        follow[False, ""] = None
        names = [epilogue_name(residual=added, activation=word) for added, word in follow if added or word or biased]
        return tuple(replace(problem, epilogue=name) for name in (names if biased else (*names, "none")))


def fuse(
    graph: Graph,
    *,
    residuals: bool = True,
    may_add: Callable[[int, str, int], bool] = lambda _at, _tensor, _by: True,
) -> tuple[Fused, ...]:
    """Return all of a network's layers that kernels may compute, in the network's order.

    If an addition adds the results of two convolutions, the later convolution's kernel computes the addition, with the
    other result as its residual. Without `residuals`, no kernel computes an addition. `may_add` returns False to reject
    an addition; its arguments are the convolution's position, the tensor with the convolution's result, and the
    addition's position.
    """
    found: list[Fused] = []
    taken: set[int] = set()
    for at in reversed(range(len(graph.operators))):
        layer = graph.operators[at].layer
        if layer is not None and layer.problem is not None:
            adds = residuals and isinstance(layer.problem, Problem)
            fused = _fused(graph, at, layer, taken, may_add if adds else _never)
            if fused is not None:
                found.append(fused)
    folded = {at for each in found for at in each.folded}
    return tuple(_with_front(graph, each, folded) for each in reversed(found) if each.at not in folded)


def _never(_at: int, _tensor: str, _by: int) -> bool:
    return False


def _fused(
    graph: Graph, at: int, layer: Layer[LayerProblem], taken: set[int], may_add: Callable[[int, str, int], bool]
) -> Fused | None:
    """Find the operators that a layer's kernel computes, and add the fused addition's position to `taken`.

    Returns None for a written-out norm if an operator outside it reads a tensor inside it, or if its result and its
    input have different dtypes.
    """
    operator = graph.operators[at]
    once = all(graph.constant_readers[name] == 1 for name in operator.constants)
    foldable = once and (isinstance(layer.problem, (Problem, ConcatProblem)) or bool(operator.inside))
    tensor = operator.writes[0]
    folded: tuple[int, ...] = ()
    before_sum: tuple[int, ...] = ()
    copies: tuple[int, ...] = ()
    addition: int | None = None
    moved: int | None = None
    shuffle: Shuffle | None = None
    axis = layer.axis
    while not (found := activation_behind(graph, tensor))[0]:
        reader = graph.only_reader(tensor)
        if reader is None:
            break
        kind, along = graph.operators[reader].kind, graph.operators[reader].amounts
        scales = kind == "affine" and addition is None and foldable and {*along} <= {axis} and shuffle is None
        adds = kind == "addition" and addition is None and reader not in taken and shuffle is None
        shuffles = kind == "shuffle" and addition is None and shuffle is None and moved is None
        if scales or (kind == "cast" and operator.inside):
            folded, copies = (*folded, *copies, reader), ()
        elif kind == "channels_first" and addition is None and axis != 1:
            moved, axis, copies = reader, 1, (*copies, reader)
        elif adds and (moved is None or graph.layout == "nhwc") and may_add(at, tensor, reader):
            addition, before_sum, copies = reader, copies, ()
            taken.add(reader)
        elif shuffles and (transposed := _shuffled(layer, along[0])) is not None:
            shuffle, copies = Shuffle((*copies, reader), transposed), ()
        elif kind == "copy" and moved is None:
            copies = (*copies, reader)
        else:
            break
        tensor = graph.operators[reader].writes[0]
    word, parts = found
    front = None
    if operator.inside and layer.problem is not None:
        if graph.dtypes.get(tensor) != layer.problem.dtype or not _only_for(graph, at):
            return None
        inside = sorted(graph.writers[name] for name in operator.inside)
        front = Front(tuple(inside), (operator.source,), layer.problem)
    activated = (*copies, *parts) if word else ()
    return Fused(at, layer, folded, addition, before_sum, moved, word, activated, front, shuffle)


def _shuffled(layer: Layer[LayerProblem], factor: int) -> Problem | None:
    """Return the problem of a convolution and the pixel shuffle after it, or None if no kernel computes both."""
    if not isinstance(layer.problem, Problem) or layer.is_linear:
        return None
    geometry = shuffled(layer.problem.geometry, factor)
    return None if geometry is None else Problem(geometry, shuffle=factor)


def _only_for(graph: Graph, at: int) -> bool:
    """Return whether nothing but a written-out norm's own operators reads the tensors inside it."""
    inside = graph.operators[at].inside
    parts = {at, *(graph.writers[name] for name in inside)}
    return all({*graph.readers[name]} <= parts and name not in graph.outputs for name in inside)


def _with_front(graph: Graph, fused: Fused, folded: Set[int]) -> Fused:
    """Return a layer with the operators in front of it that its kernel can compute as well, if it is a convolution.

    These are a batch norm and its activation, or padding, concatenation with earlier frames or of two tensors of equal
    size, upsampling or a gate. `folded` are the batch norms that other layers' kernels compute.
    """
    problem = fused.layer.problem
    if not isinstance(problem, Problem) or fused.layer.is_linear:
        return fused
    return replace(fused, front=_norm_in_front(graph, fused.at, problem, folded) or _front(graph, fused.at, problem))


def _norm_in_front(graph: Graph, at: int, problem: Problem, folded: Set[int]) -> Front | None:
    """Find a batch norm in front of a convolution, and the activation between them."""
    read = tensor = graph.operators[at].reads[0]
    norm = graph.writers.get(tensor, at)
    while graph.operators[norm].function is not None:
        tensor = graph.operators[norm].reads[0]
        norm = graph.writers.get(tensor, at)
    operator = graph.operators[norm]
    if operator.kind != "affine" or operator.layer is None or norm in folded or problem.geometry.transposed:
        return None
    word, parts = activation_behind(graph, tensor)
    if graph.operators[parts[-1] if parts else norm].writes[0] != read or graph.only_reader(read) != at:
        return None
    x = operator.reads[0]
    if graph.dtypes.get(x) != problem.dtype:
        return None
    prologue = "_".join(filter(None, ("scale_shift", word)))
    return Front((norm, *parts), (x,), replace(problem, prologue=prologue))


def _front(graph: Graph, at: int, problem: Problem) -> Front | None:
    """Find other operators in front of a convolution that its kernel can compute as well."""
    found: Front | None = None
    alone = problem
    tensor, reader = graph.operators[at].reads[0], at
    parts: list[int] = []
    reads: tuple[str, ...] = ()
    dtypes = {problem.dtype, "f32", "f64", "float64"}  # a cast to a wider type and back changes nothing
    while graph.only_reader(tensor) == reader and tensor in graph.writers:
        reader = graph.writers[tensor]
        operator, of = graph.operators[reader], problem.geometry
        parts.append(reader)
        whole = problem is alone and all(graph.dtypes.get(each, of.dtype) == of.dtype for each in operator.reads)
        tensor = operator.reads[-1] if operator.kind == "joining" else operator.reads[0] if operator.reads else ""
        if operator.kind == "padding" and not problem.cache_d and not of.transposed:
            if (wider := padded(of, operator.amounts)) is None:
                break
            problem = replace(problem, geometry=wider)
        elif operator.kind == "joining" and not problem.cache_d and _joins_frames(of, operator.amounts):
            _, cache_d, d = operator.amounts
            x = (*of.x[:2], d, *of.x[3:])
            problem, reads = replace(problem, geometry=replace(of, x=x), cache_d=cache_d), operator.reads[:1]
        elif operator.kind == "gate" and whole and not of.transposed:
            return Front(tuple(reversed(parts)), operator.reads, replace(problem, prologue="scale"))
        elif operator.kind == "joining" and whole and (frames := two_frames(of, operator.amounts)) is not None:
            reads = (tensor, operator.reads[0])
            return Front(tuple(reversed(parts)), reads, replace(problem, geometry=frames, cache_d=1))
        elif operator.kind == "upsampling" and (transposed := upsampled(of)) is not None:
            problem = replace(problem, geometry=transposed)
        elif operator.kind not in ("copy", "cast"):
            break
        if graph.dtypes.get(tensor, problem.dtype) not in dtypes:
            break
        if problem is not alone and graph.dtypes.get(tensor, problem.dtype) == problem.dtype:
            found = Front(tuple(reversed(parts)), (tensor, *reads), problem)
    return found


def _joins_frames(of: Geometry, amounts: tuple[int, ...]) -> bool:
    return len(of.w) == 5 and not of.transposed and amounts[0] == 2 and len(amounts) == 3


def activation_behind(graph: Graph, tensor: str) -> tuple[str, tuple[int, ...]]:
    """Return the word and operators of the activation that is a tensor's only reader.

    If there is no such activation, the word is empty. Activations are recognized by their values at sample points.
    """
    if tensor in graph.outputs:
        return "", ()
    values: dict[str, Sequence[float]] = {tensor: _SAMPLES}
    parts: list[int] = []
    waiting = set(graph.readers.get(tensor, ()))
    while waiting and len(parts) < MOST_OPERATORS:
        at = min(waiting)
        waiting.discard(at)
        operator = graph.operators[at]
        if operator.function is None or any(name not in values for name in operator.reads):
            continue
        made = _computed(operator.function, [values[name] for name in operator.reads])
        values[operator.writes[0]] = made
        parts.append(at)
        word = next((word for word, known in _OUTPUTS.items() if _same(known, made)), "")
        if word and _alone(graph, values, parts):
            return word, tuple(parts)
        waiting.update(graph.readers.get(operator.writes[0], ()))
    return "", ()


def _computed(function: Function, values: Sequence[Sequence[float]]) -> tuple[float, ...]:
    made = []
    for given in zip(*values, strict=True):
        try:
            made.append(function(*given))
        except (ArithmeticError, ValueError):
            made.append(math.nan)
    return tuple(made)


_OUTPUTS = {each.word: _computed(each, [_SAMPLES]) for each in ACTIVATIONS}


def _alone(graph: Graph, values: Mapping[str, object], parts: list[int]) -> bool:
    """Return whether each tensor inside the activation is read, and only by operators in `parts`.

    These tensors are the activation's input and the results of all parts except for the last one. The network must not
    return any of them.
    """
    inside = [name for name in values if name not in graph.operators[parts[-1]].writes]
    return all(
        name not in graph.outputs and graph.readers.get(name, ()) and {*graph.readers[name]} <= {*parts}
        for name in inside
    )


def _same(known: Sequence[float], made: Sequence[float]) -> bool:
    return all(abs(one - other) <= _CLOSE * (1 + abs(one)) for one, other in zip(known, made, strict=True))


def convolution(label: str, geometry: Geometry, *, bias: bool, why_not: str = "", axis: int = 1) -> Layer[Problem]:
    """Return a convolution as a layer, with its problem or the reason why no kernel computes it.

    `axis` is the axis of the output's channels, which is the last one for a linear layer and 1 otherwise.
    """
    why_not = why_not or geometry.why_not
    problem = None if why_not else Problem(geometry, "bias" if bias else "none")
    return Layer("convolution" if axis == 1 else LINEAR, label, problem, why_not, geometry.flops, axis)


def matrix_product(
    label: str, a: Shape, b: Shape, y: Shape, transposes: str, dtype: str, *, bias: bool = False, why_not: str = ""
) -> MatrixProduct | None:
    """Return a matrix product, with either its sizes or the reason why no kernel computes it.

    Returns None if a size is unknown.

    a is [..., M, K], y is [..., M, N], and b is [..., K, N], or [..., N, K] if `transposes` is nt. If b has two
    dimensions, all batches of a become rows of one product.
    """
    known = [size for size in y if size is not None]
    k = a[-1] if a else None
    if not known or len(known) < len(y) or k is None:
        return None
    flops = 2 * math.prod(known) * k
    if dtype not in DTYPES:
        why_not = why_not or f"computes in {dtype}"
    if len(b) > 2 and b[:-2] != y[:-2]:
        why_not = why_not or "one matrix is multiplied by several others"
    if len(y) < 2 or len(b) < 2:
        why_not = why_not or "a product with a vector"
    if why_not:
        return MatrixProduct(label, flops, why_not=why_not)
    batch = math.prod(known[:-2]) if len(b) > 2 else 1
    numbers = {"batch": batch, "m": math.prod(known[:-1]) // batch, "n": known[-1], "k": k}
    return MatrixProduct(label, flops, numbers, transposes, bias, dtype)


def product_epilogue(graph: Graph, at: int, of: MatrixProduct) -> str:
    """Return the epilogue for a product's kernel: the bias, and the activation if nothing else reads the output."""
    word, _ = activation_behind(graph, graph.operators[at].writes[0])
    return epilogue_name(residual=False, activation=word) if of.bias or word else "none"
