"""Paths of `mma_gemm` that a random config seldom takes: odd channels, cut ones, copies of rows, several images."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune.compilation.cache import BinaryCache
from autotune.evaluation.evaluate import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import BoundTemplate
from autotune.problem import Conv2dProblem
from autotune.trial import Config

from .shipped_families import family

BASE: dict[str, int | str] = {
    "rows": 3,
    "map_tiles": 1,
    "block_k": 1,
    "bands": 1,
    "strips": 1,
    "images": 1,
    "runs": "row",
    "cuts": 1,
    "stages": 2,
    "filters": "resident",
    "min_blocks": 1,
}
ODD = Conv2dProblem(2, 3, 11, 9, 7, 4, 3, pad_h=1, pad_w=1, dtype="f16", layout="nhwc", epilogue="bias_relu")
"""Eight copies of a row, two chunks of taps in one."""
TWELVE = Conv2dProblem(3, 12, 8, 11, 12, 3, 3, dtype="bf16", layout="nhwc", epilogue="bias")
"""Two copies of a row and a spare column; five chunks: one is left of every filter row, and of their odd number too."""
STRIDED = Conv2dProblem(3, 20, 13, 9, 8, 3, 3, 2, 1, 1, 1, 1, 2, dtype="f16", layout="nhwc")
"""Rows of input that no output row needs, filter columns that lie apart, channels whose last part is padded."""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceEvaluator]:
    """The host device with sanitizers; the configs share the verification programs through a cache."""
    evaluator = DeviceEvaluator(["host:check"], 1, cache=BinaryCache(tmp_path_factory.mktemp("binaries")))
    yield evaluator
    evaluator.close()


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (ODD, {"bands": 2, "stages": 1, "min_blocks": 2}),
        (TWELVE, {"images": 2, "map_tiles": 2}),
        (STRIDED, {"rows": 7, "runs": "pixel", "images": 2, "cuts": 3, "filters": "staged", "stages": 3}),
    ],
)
def test_config_is_right(problem: Conv2dProblem, values: dict[str, int | str], checked: DeviceEvaluator) -> None:
    bound = BoundTemplate(family("mma_gemm"), problem, checked.info)
    source = render(bound, Config.of("mma_gemm", {**BASE, **values}))
    checked.begin_layer(problem)
    checked.evaluate(source, checked.compile(source).result(), cache="hot", best_us=None)
