"""Problems drawn at random, for what must hold of any."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping

from autotune.errors import StudyError
from autotune.problem import Conv2dProblem

_ODD: tuple[Mapping[str, int | str], ...] = (
    {},
    {},
    {},
    {"stride_h": 2},
    {"pad_h": 1},
    {"dilation_w": 2},
    {"groups": 2},
    {"epilogue": "bias_relu"},
    {"dtype": "f16"},
    {"dtype": "bf16"},
    {"layout": "nhwc"},
    {"layout": "nhwc", "dtype": "f16"},
    {"layout": "nhwc", "dtype": "bf16"},
    {"c": 12, "k": 24, "groups": 12, "pad_w": 1},
    {"c": 12, "k": 12, "groups": 12, "layout": "nhwc"},
)


def problems(count: int, seed: int = 0) -> Iterator[Conv2dProblem]:
    """Layers as the reports have them, some with a size or a word changed that a family may refuse."""
    rng = random.Random(seed)
    while count:
        size, taps = rng.choice([9, 14, 33, 40, 70]), rng.choice([1, 3, 5, 7])
        plain = Conv2dProblem(
            n=rng.choice([3, 100, 10000]),
            c=rng.choice([1, 2, 4, 12, 64]),
            h=size,
            w=size + rng.choice([0, 0, 3]),
            k=rng.choice([4, 6, 12, 16, 24, 64]),
            r=taps,
            s=taps,
        )
        odd = rng.choice(_ODD)
        try:
            yield dataclasses.replace(plain, **odd)  # type: ignore[arg-type]  # a field and its value
        except StudyError:  # groups that do not divide, a filter larger than the input
            continue
        count -= 1
