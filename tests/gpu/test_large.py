"""`check` reports a family that counts elements in 31 bits and so is wrong for large problems."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.checking.cases import CasePlan
from autotune.checking.check import CheckRow, FamilyCheck
from autotune.checking.int32_overflow import BEYOND
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.template_files import load_template
from autotune.trial import Outcome
from tests.injected_faults import DATA

pytestmark = pytest.mark.gpu

GOOD = DATA / "everything.cu.j2"
WIDE = "const long long at = (static_cast<long long>(blockIdx.x) * TURNS + turn) * BLOCK + threadIdx.x;"
NARROW = "const int at = (blockIdx.x * TURNS + turn) * BLOCK + threadIdx.x;"


def large_rows(path: Path, gpu: DeviceEvaluator) -> list[CheckRow]:
    """The output of `check` for the large problems alone."""
    checking = FamilyCheck(CasePlan(load_template(path), gpu.info), gpu)
    if any(large.config is None for large in checking.large):
        pytest.skip("; ".join(large.why_not for large in checking.large if large.config is None))
    return list(checking.rows(most=0))


def test_a_family_that_counts_in_64_bits_serves_large_problems(gpu: DeviceEvaluator) -> None:
    rows = large_rows(GOOD, gpu)
    assert {row.source.problem.values["layout"] for row in rows} == {"nchw", "nhwc"}
    assert all(row.outcome == Outcome.CORRECT for row in rows), [row.message for row in rows]
    assert all(
        min(row.source.problem.array("x").elements, row.source.problem.array("y").elements) > BEYOND for row in rows
    )


def test_a_family_that_counts_in_32_bits_does_not(gpu: DeviceEvaluator, tmp_path: Path) -> None:
    text = GOOD.read_text(encoding="utf-8")
    assert WIDE in text
    path = tmp_path / GOOD.name
    path.write_text(text.replace(WIDE, NARROW), encoding="utf-8")
    rows = large_rows(path, gpu)
    assert rows
    assert all(row.outcome in (Outcome.WRONG_RESULT, Outcome.RUNTIME) for row in rows), [row.message for row in rows]
