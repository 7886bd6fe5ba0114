"""Kernels that are wrong at some run-time sizes: `check` and `export` find each, `tune` finds those that show at the
tuned size.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.checking.cases import CasePlan
from autotune.checking.check import FamilyCheck
from autotune.checking.other_sizes import OtherProblems
from autotune.checking.sanitize import HostCheck, Winner
from autotune.errors import Rejected
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting import export_library
from autotune.exporting.build import self_test
from autotune.family.render import render
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template import KernelTemplate
from autotune.problem import Problem, make_problem
from autotune.trial import Config, Outcome
from tests.compiled import built_for_host
from tests.exports import H200, chosen
from tests.long_run import every, long_run
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
TUNED = 200
"""the run-time size of a study's layer"""


@dataclass(frozen=True, slots=True)
class Defect:
    """The condition under which a thread writes nothing, and whether it holds at the tuned size."""

    condition: str
    tune: bool = False


DEFECTS: Mapping[tuple[str, str], Defect] = {
    ("new-op", "multiples of 16"): Defect("rows % 16 == 0"),
    ("new-op", "more than 100"): Defect("rows > 100", tune=True),
    ("new-op", "128 and more"): Defect("rows >= 128", tune=True),
    ("new-op", "1"): Defect("rows == 1"),
    ("new-op", "from the third block on"): Defect("blockIdx.x >= 2", tune=True),
    ("new-op", "the last of several blocks"): Defect("gridDim.x > 1 && blockIdx.x == gridDim.x - 1", tune=True),
    ("softmax", "multiples of 16"): Defect("rows % 16 == 0"),
    ("softmax", "more than 100"): Defect("rows > 100", tune=True),
    ("softmax", "from row 100 on"): Defect("blockIdx.x * blockDim.y + threadIdx.y >= 100", tune=True),
    ("max_pool2d", "multiples of 16"): Defect("n % 16 == 0"),
    ("max_pool2d", "9"): Defect("n == 9"),
    ("gemm", "the sixteenth product"): Defect("product == 15", tune=True),
    ("gemm", "the second product"): Defect("product == 1", tune=True),
}
"""The kernel, and the sizes at which it is wrong."""


def planted(defect: tuple[str, str], folder: Path) -> KernelTemplate:
    """The family with the defect."""
    kernel, _ = defect
    old, new = _EDITS[kernel]
    return KERNELS[kernel].template(folder, ((old, new.format(DEFECTS[defect].condition)),))


def tuned(kernel: str, template: KernelTemplate) -> Problem:
    """The kernel's problem at the size that a study tunes."""
    return make_problem(template.operation, {**KERNELS[kernel].problem, template.operation.leading: TUNED})


def config_for(kernel: str, bound: BoundTemplate) -> Config:
    """The kernel's config: its own values, and defaults for the others."""
    default = SearchSpace(bound, most_rows=0, sampled_rows=1).default
    assert default is not None
    return Config.of(bound.template.name, {**default.params, **KERNELS[kernel].config})


@pytest.mark.parametrize("defect", every(4, DEFECTS))
def test_check_finds_it(defect: tuple[str, str], tmp_path: Path, host: DeviceEvaluator) -> None:
    template = planted(defect, tmp_path)
    rows = list(FamilyCheck(CasePlan(template, host.info), host).rows(most=_CASES))
    assert any(row.outcome == Outcome.WRONG_RESULT for row in rows)


@pytest.mark.parametrize("defect", every(4, DEFECTS))
def test_tune_finds_it_at_the_tuned_size(defect: tuple[str, str], tmp_path: Path, host: DeviceEvaluator) -> None:
    template = planted(defect, tmp_path)
    bound = BoundTemplate(template, tuned(defect[0], template), host.info)
    source = render(bound, config_for(defect[0], bound))
    binary = host.compile(source).result()
    host.begin_layer(source.problem)
    expected = pytest.raises(Rejected, match="never written") if DEFECTS[defect].tune else nullcontext()
    with expected:
        host.verify(source, binary)


@pytest.mark.parametrize("defect", every(len(DEFECTS), DEFECTS))
def test_export_finds_it(defect: tuple[str, str], tmp_path: Path, cxx: str, checked: DeviceEvaluator) -> None:
    """By its self-test or by the sanitizers, which run other sizes."""
    template = planted(defect, tmp_path)
    problem = tuned(defect[0], template)
    bound = BoundTemplate(template, problem, H200)
    kernel = chosen(template, problem, config_for(defect[0], bound), "planted")
    winner = Winner("planted", kernel.source, bound, template)
    (verdict,) = HostCheck(checked).check([winner])
    if verdict.word != "fault":
        exported = export_library([kernel], tmp_path / "exported", ())
        passed, _ = self_test(built_for_host(exported, tmp_path / "built", cxx=cxx))
        assert not passed


@pytest.mark.parametrize(
    ("kernel", "condition"),
    [
        ("new-op", "COLUMNS > 5000"),
        ("softmax", "COLUMNS > 5000"),
        ("gemm", "K > 5000"),
        ("softmax", "threadIdx.x >= 192"),
        ("softmax", "rows == 7"),
        ("new-op", "rows == 64"),
        *long_run(("new-op", "rows % 32 == 20"), ("softmax", "COLUMNS % 16 == 5"), ("gemm", "N % 8 == 3")),
    ],
)
def test_a_size_that_no_file_names_is_found(kernel: str, condition: str, tmp_path: Path, host: DeviceEvaluator) -> None:
    old, new = _EDITS[kernel]
    template = KERNELS[kernel].template(tmp_path, ((old, new.format(condition)),))
    rows = FamilyCheck(CasePlan(template, host.info), host).rows()
    found = next(row for row in rows if row.outcome != Outcome.CORRECT)
    assert found.outcome == Outcome.WRONG_RESULT, found.message


def test_an_element_behind_the_whole_tiles_of_each_part_of_a_row_is_tried(
    tmp_path: Path, host: DeviceEvaluator
) -> None:
    derived = 'elements = "threads * work"'
    edits = (
        ("[derived]", 'parts = { values = [1, 2, 4], doc = "parts" }\n\n[derived]'),
        (derived, f'{derived}\npart = "round_up(max(1, columns // parts), elements)"'),
        ("ceil_div(rows * columns, elements)", "rows * parts"),
    )
    template = KERNELS["new-op"].template(tmp_path, edits)
    plan = CasePlan(template, host.info)
    others = OtherProblems(template.operation, [subject.bound for subject in plan.subjects], seed=0)
    tried = filter(None, (others.of(*small) for small in plan.some(60) for _ in range(4)))
    rounded_down = [(bound.names(config), bound.problem.values["columns"]) for bound, config in tried]
    assert any(int(names["part"]) * int(names["parts"]) < int(columns) for names, columns in rounded_down)


def test_an_index_of_24_bits_is_found(tmp_path: Path, host: DeviceEvaluator) -> None:
    edits = (("if (at < elements)", "if (at < elements && static_cast<long long>(static_cast<float>(at)) == at)"),)
    template = KERNELS["new-op"].template(tmp_path, edits)
    rows = FamilyCheck(CasePlan(template, host.info), host).rows()
    assert any((row.outcome, row.reason) == (Outcome.WRONG_RESULT, "unwritten") for row in rows)


@pytest.mark.long
def test_a_size_that_takes_long_is_left_out(tmp_path: Path, host: DeviceEvaluator) -> None:
    old, _ = _EDITS["new-op"]
    wait = "if (blockIdx.x + threadIdx.x == 0) for (auto end = clock64() + 200000000LL * rows; clock64() < end;);"
    template = KERNELS["new-op"].template(tmp_path, ((old, f"{old} {wait}"),))
    (row,) = FamilyCheck(CasePlan(template, host.info), host).rows(most=1)
    assert (row.outcome, row.sizes) == (Outcome.CORRECT, ((3,), (1,), (2,), (9,)))


def test_the_page_has_the_table() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = lines.index("| kernel | nothing is written at | caught by |")
    found = list(itertools.takewhile(lambda line: line.startswith("| "), lines[first + 2 :]))
    assert found == [
        f"| {kernel} | {sizes} | {'`tune`, ' if defect.tune else ''}`check`, `export` |"
        for (kernel, sizes), defect in DEFECTS.items()
    ]
