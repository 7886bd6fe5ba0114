"""Small problems that a family's `supports` admits: every feature of a convolution, and pairs of features.

Nothing is taken from a list of layers: the features below are crossed, what is no convolution, takes long or is refused
by `supports` is left out, and problems are drawn such that all pairs of features that are left occur.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.checking.covering import Covering, Rows
from autotune.devices.device import DeviceInfo
from autotune.expressions.columns import Columns
from autotune.family.space import BoundTemplate, SearchSpace, refusal
from autotune.family.template import KernelTemplate
from autotune.operation import operation
from autotune.problem import Conv2dProblem

Integers = npt.NDArray[np.int64]

FILTERS = ((3, 3), (1, 1), (5, 5), (7, 7), (1, 7), (7, 1), (2, 4))
STRIDES = ((1, 1), (2, 2), (3, 3), (2, 1), (1, 3))
PADS = ("0", "same", "unequal", "larger")
"""`unequal` is 1 and 2, `larger` one more than the filter spans: some outputs see padding alone."""
DILATIONS = ((1, 1), (2, 2), (2, 3))
GROUPS = ("1", "3", "depthwise", "multiplier")
"""`multiplier` is depthwise with two output channels for each input channel."""
CHANNELS = (3, 1, 8, 17, 48)
"""input channels; of one group where there are three"""
MAPS = (5, 1, 24, 33)
"""output channels, likewise; depthwise follows from the input channels"""
SIZES = ((13, 11), (16, 20), (41, 6), (9, 75), (30, 30))
BATCHES = (3, 2, 9)
"""images of one problem after the other; `check` runs each kernel with other numbers as well"""

_WORDS = ("layout", "dtype", "epilogue")
"""words of a problem, the first features; one that is made of parts is a feature for each"""
_SHAPE_FEATURES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("filter", tuple(f"{r}x{s}" for r, s in FILTERS)),
    ("stride", tuple(f"{h}x{w}" for h, w in STRIDES)),
    ("pad", PADS),
    ("dilation", tuple(f"{h}x{w}" for h, w in DILATIONS)),
    ("groups", GROUPS),
    ("c", tuple(map(str, CHANNELS))),
    ("k", tuple(map(str, MAPS))),
    ("size", tuple(f"{h}x{w}" for h, w in SIZES)),
)
MOST_FLOPS = 2_000_000  # of an image: a check is of many small problems
_LEAST_TILE = 16  # output channels that tensor cores compute at least
_POOL = 4000  # problems of the product among which the greedy choice is made, besides one for each pair
_ACTIVATED = 2000  # shapes, at random, that each activation is tried on: all are of one, and it sees none of them
_TRIES = 400  # problems that may turn out to have no config before the others are left out


def features() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Name and values of each feature, those that are words first; the first value is what a plain problem has."""
    return (*_word_features(), *_SHAPE_FEATURES)


def _word_features() -> tuple[tuple[str, tuple[str, ...]], ...]:
    declared = operation()
    parts = ([part.name for part in declared.parts_of(word)] or [word] for word in _WORDS)
    return tuple((name, declared.enumerations[name]) for name in itertools.chain.from_iterable(parts))


@dataclass(frozen=True, slots=True)
class Derived:
    """A problem with the feature values that it was made of."""

    bound: BoundTemplate
    features: tuple[int, ...]
    """value indices into `features`"""


@dataclass(frozen=True, slots=True)
class Derivation:
    """The problems of a family."""

    problems: tuple[Derived, ...]
    without_config: tuple[tuple[Conv2dProblem, str], ...]
    """problems that `supports` admits though no config is feasible, and what refuses the first one"""


def derive(
    template: KernelTemplate, device: DeviceInfo, covering: Covering, seed: int, *, most: int | None = None
) -> Derivation:
    """Problems for which the family has a config, until all pairs of features that it serves occur, or `most`.

    `covering` is of `features`; what is feasible and what is covered is noted there. Raises TemplateError where
    `supports` does for a problem.
    """
    shapes = _shapes()
    words = [
        dict(zip(_WORDS, each, strict=True))
        for each in itertools.product(*(operation().words[name] for name in _WORDS))
    ]
    rng = np.random.default_rng(seed)
    served = [_supported(template, shapes, each, rng) for each in words]
    rows, places = np.concatenate([rows for rows, _ in served]), np.concatenate([places for _, places in served])
    spoken = np.repeat(np.arange(len(words)), [len(rows) for rows, _ in served])
    drawn = rng.permutation(len(rows))[:_POOL]
    pool = np.unique(np.concatenate([covering.witnesses(rows), drawn]))
    problems: list[Derived] = []
    empty: list[tuple[Conv2dProblem, str]] = []
    for position in covering.greedy(rows[pool]):
        at = pool[position]
        row, n = rows[at], BATCHES[len(problems) % len(BATCHES)]
        problem = Conv2dProblem(n=n, **_sizes(shapes, int(places[at])), **words[spoken[at]])  # type: ignore[arg-type]  # fields by name
        bound = BoundTemplate(template, problem, device)
        if bound.supported and SearchSpace(bound, most_rows=0, sampled_rows=1).default is not None:
            covering.take(row)
            problems.append(Derived(bound, tuple(map(int, row))))
            if len(problems) == most:
                break
        else:
            empty.append((problem, refusal(bound)))
            if len(empty) == _TRIES:
                break
    return Derivation(tuple(problems), tuple(empty))


@dataclass(frozen=True, slots=True)
class _Shapes:
    """Everything but the words of a problem: all that is a convolution and does not take long."""

    rows: Rows
    """value indices of the features behind the words"""
    sizes: Mapping[str, Integers]
    """the names that expressions see, a value for each row"""


def _supported(
    template: KernelTemplate, shapes: _Shapes, words: Mapping[str, str], rng: np.random.Generator
) -> tuple[Rows, npt.NDArray[np.intp]]:
    """The problems of one layout, type and epilogue that the family may serve, and where their shapes stand."""
    known = operation().names_from({"n": BATCHES[0], **words})
    inputs = {array.name for array in operation().arrays if array.role == "in" and array.when.integer(known)}
    admitted = template.supports.bind(known).column(Columns(dict(shapes.sizes), len(shapes.rows)))
    places = np.flatnonzero(np.not_equal(admitted, 0)) if inputs <= template.read else np.zeros(0, np.intp)
    if known["activation"] != "identity":
        places = rng.permutation(places)[:_ACTIVATED]
    indices = [values.index(str(known[name])) for name, values in _word_features()]
    return np.concatenate([np.tile(np.array(indices, np.int16), (len(places), 1)), shapes.rows[places]], axis=1), places


def _sizes(shapes: _Shapes, place: int) -> dict[str, int]:
    fields = {size.name for size in operation().sizes}
    return {name: int(column[place]) for name, column in shapes.sizes.items() if name in fields}


def _shapes() -> _Shapes:
    """All shapes of the features' product, but those that are none and those that take long."""
    lists = (FILTERS, STRIDES, PADS, DILATIONS, GROUPS, CHANNELS, MAPS, SIZES)
    rows = np.indices([len(values) for values in lists], dtype=np.int16).reshape(len(lists), -1).T
    of_filter, of_stride, of_pad, of_dilation, of_groups, of_c, of_k, of_size = rows.T
    (r, s), (stride_h, stride_w) = np.array(FILTERS).T[:, of_filter], np.array(STRIDES).T[:, of_stride]
    (dilation_h, dilation_w), (h, w) = np.array(DILATIONS).T[:, of_dilation], np.array(SIZES).T[:, of_size]
    span_h, span_w = (r - 1) * dilation_h + 1, (s - 1) * dilation_w + 1
    pad_h = np.choose(of_pad, [0, (span_h - 1) // 2, 1, span_h + 1])
    pad_w = np.choose(of_pad, [0, (span_w - 1) // 2, 2, span_w + 1])
    dense, three, depthwise = (of_groups == at for at in range(3))
    alone = ~(dense | three)
    c, k = np.array(CHANNELS)[of_c], np.array(MAPS)[of_k]
    groups = np.where(dense, 1, np.where(three, 3, c))
    k = np.where(alone, np.where(depthwise, c, 2 * c), k)
    c, k = np.where(three, 3 * c, c), np.where(three, 3 * k, k)
    p, q = (h + 2 * pad_h - span_h) // stride_h + 1, (w + 2 * pad_w - span_w) // stride_w + 1
    kept = (span_h <= h + 2 * pad_h) & (span_w <= w + 2 * pad_w)
    kept &= 2 * np.maximum(k, np.where(dense, _LEAST_TILE, 1)) * p * q * (c // groups) * r * s <= MOST_FLOPS
    kept &= dense | (c > groups) | alone & (c > 1)  # three groups of one channel are depthwise, one such group is dense
    kept &= ~alone | (of_k == 0)
    kept &= (of_pad != PADS.index("same")) | (pad_h + pad_w > 0)
    rows[alone, lists.index(MAPS)] = -1  # follows from c
    sizes = {"c": c, "h": h, "w": w, "k": k, "r": r, "s": s, "stride_h": stride_h, "stride_w": stride_w}
    sizes |= {"pad_h": pad_h, "pad_w": pad_w, "dilation_h": dilation_h, "dilation_w": dilation_w}
    sizes |= {"groups": groups, "p": p, "q": q}
    return _Shapes(rows[kept], {name: column[kept].astype(np.int64) for name, column in sizes.items()})
