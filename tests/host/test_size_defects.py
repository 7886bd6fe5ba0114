"""Kernels that are wrong at some run-time sizes only: `check` finds each, whatever size a study would tune at."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.checking.cases import CasePlan
from autotune.checking.check import FamilyCheck
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.trial import Outcome
from tests.long_run import every
from tests.planted_defects import KERNELS

pytestmark = pytest.mark.cxx

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
_CASES = 2
_GEMM_STORE = "y[(product * M + row) * N + column] = "
_EDITS = {
    "new-op": ("int rows) {", "int rows) {{ if ({0}) return;"),
    "softmax": ("int rows) {", "int rows) {{ if ({0}) return;"),
    "max_pool2d": ("int n) {", "int n) {{ if ({0}) return;"),
    "gemm": (_GEMM_STORE, f"if (!({{0}})) {_GEMM_STORE}"),
}
DEFECTS: Mapping[tuple[str, str], str] = {
    ("new-op", "multiples of 16"): "rows % 16 == 0",
    ("new-op", "more than 100"): "rows > 100",
    ("new-op", "128 and more"): "rows >= 128",
    ("new-op", "1"): "rows == 1",
    ("new-op", "from the third block on"): "blockIdx.x >= 2",
    ("new-op", "the last of several blocks"): "gridDim.x > 1 && blockIdx.x == gridDim.x - 1",
    ("softmax", "multiples of 16"): "rows % 16 == 0",
    ("softmax", "more than 100"): "rows > 100",
    ("softmax", "from row 100 on"): "blockIdx.x * blockDim.y + threadIdx.y >= 100",
    ("max_pool2d", "multiples of 16"): "n % 16 == 0",
    ("max_pool2d", "9"): "n == 9",
    ("gemm", "the sixteenth product"): "product == 15",
    ("gemm", "the second product"): "product == 1",
}
"""Kernel and sizes, and the condition under which a thread writes nothing."""


@pytest.mark.parametrize("defect", every(4, DEFECTS))
def test_kernel_that_is_wrong_at_some_sizes_is_found(
    defect: tuple[str, str], tmp_path: Path, host: DeviceEvaluator
) -> None:
    kernel, _ = defect
    old, new = _EDITS[kernel]
    template = KERNELS[kernel].template(tmp_path, ((old, new.format(DEFECTS[defect])),))
    rows = list(FamilyCheck(CasePlan(template, host.info), host).rows(most=_CASES))
    assert any(row.outcome == Outcome.WRONG_RESULT for row in rows)


def test_an_error_beyond_4096_columns_is_found(tmp_path: Path, host: DeviceEvaluator) -> None:
    """Of an operation without a check.toml."""
    old, new = _EDITS["new-op"]
    template = KERNELS["new-op"].template(tmp_path, ((old, new.format("COLUMNS > 4096")),))
    rows = FamilyCheck(CasePlan(template, host.info), host).rows(most=12)
    assert any(row.outcome == Outcome.WRONG_RESULT for row in rows)


@pytest.mark.long
def test_a_size_that_takes_long_is_left_out(tmp_path: Path, host: DeviceEvaluator) -> None:
    old, _ = _EDITS["new-op"]
    wait = "if (blockIdx.x + threadIdx.x == 0) for (auto end = clock64() + 200000000LL * rows; clock64() < end;);"
    template = KERNELS["new-op"].template(tmp_path, ((old, f"{old} {wait}"),))
    (row,) = FamilyCheck(CasePlan(template, host.info), host).rows(most=1)
    assert (row.outcome, row.images) == (Outcome.CORRECT, (3, 1, 2, 9))


def test_the_page_has_the_table() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = lines.index("| kernel | nothing is written at | caught by |")
    found = list(itertools.takewhile(lambda line: line.startswith("| "), lines[first + 2 :]))
    assert found == [f"| {kernel} | {sizes} | `check` |" for kernel, sizes in DEFECTS]
