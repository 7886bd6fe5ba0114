"""Kernels of operations other than conv2d are compared with their reference, in NumPy or CUDA, by each error model."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.checking.cases import CasePlan
from autotune.checking.check import CheckRow, FamilyCheck
from autotune.errors import TemplateError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.template_files import load_template, template_files
from autotune.problem import Layer, make_problem
from autotune.trial import Outcome
from tests.operations import GATHERED, SAXPY, whole, written

pytestmark = pytest.mark.cxx

TOLERANCE = ('[cost]\nreduction = "1"\n', '[errors]\nmodel = "tolerance"\nrtol = 1e-6\natol = 1e-6\n[cost]\n')
EXACT = ('[cost]\nreduction = "1"\n', '[errors]\nmodel = "exact"\n[cost]\n')
ALONE = ("return y, abs(y)", "return y")


def checked(path: Path, host: DeviceEvaluator, most: int = 1, **values: int | str) -> list[CheckRow]:
    """The first cases of a family's check, on a problem with these values if there is one."""
    family = load_template(path)
    layers = [Layer("own", make_problem(family.operation, values))] if values else []
    return list(FamilyCheck(CasePlan(family, host.info, layers=layers), host).rows(most=most))


@pytest.mark.parametrize(
    ("edits", "reference"),
    [
        ((), "reference.py"),
        ((), "reference.cuh"),
        ((TOLERANCE, ALONE), "reference.py"),
        ((EXACT, ALONE), "reference.py"),
    ],
    ids=["sums in numpy", "sums in CUDA", "tolerance", "exact"],
)
def test_a_right_kernel_is_right_and_a_wrong_one_is_not(
    tmp_path: Path, host: DeviceEvaluator, edits: tuple[tuple[str, str], ...], reference: str
) -> None:
    path = whole(tmp_path, *edits, reference=reference) / "scale.cu.j2"
    columns = 100 + len(str(edits)) + len(reference)  # a problem of its own: a worker keeps the reference of a problem
    (row,) = checked(path, host, rows=70, columns=columns, halo=3, dtype="f16")
    assert row.outcome == Outcome.CORRECT, row.message
    path.write_text(path.read_text().replace("i + HALO]", "i]"))
    (row,) = checked(path, host, rows=70, columns=columns, halo=3, dtype="f16")
    assert (row.outcome, row.reason) == (Outcome.WRONG_RESULT, "inexact" if "exact" in str(edits) else "wrong")


def test_problems_are_derived_without_a_file_of_features(tmp_path: Path, host: DeviceEvaluator) -> None:
    rows = checked(whole(tmp_path) / "scale.cu.j2", host, most=4)
    assert [row.outcome for row in rows] == [Outcome.CORRECT] * 4
    assert len({row.problem.values["columns"] for row in rows}) > 1


def test_a_reference_that_is_wrong_is_found(tmp_path: Path, host: DeviceEvaluator) -> None:
    path = whole(tmp_path, ("x[:, p.halo : p.columns - p.halo]", "x[:, 0 : p.inner]")) / "scale.cu.j2"
    assert [row.outcome for row in checked(path, host, rows=3, columns=9)] == [Outcome.CORRECT]
    assert [row.reason for row in checked(path, host, rows=3, columns=9, halo=1)] == ["wrong"]


def test_an_edited_reference_counts_for_a_worker_that_had_the_former_one(tmp_path: Path, host: DeviceEvaluator) -> None:
    """A cluster worker's device process still runs after the edit."""
    reasons = []
    for name, factor in (("one", 2), ("two", 3), ("three", 2)):
        (tmp_path / name).mkdir()
        path = whole(tmp_path / name, ("y = 2 * x", f"y = {factor} * x")) / "scale.cu.j2"
        reasons += [row.reason for rows in (5, 3) for row in checked(path, host, rows=rows, columns=8)]
        host.refresh()
    assert reasons == ["", "", "wrong", "wrong", "", ""]


def test_rows_that_need_others_are_said_to(tmp_path: Path, host: DeviceEvaluator) -> None:
    kernel = (
        "to_float(x[row * COLUMNS + i + HALO])",
        "to_float(x[(row + 1) % rows * COLUMNS + i + HALO])",
    )
    reference = ("y = 2 * x[:,", "y = 2 * __import__('numpy').roll(x, -1, 0)[:,")
    path = whole(tmp_path, kernel, reference) / "scale.cu.j2"
    assert [row.reason for row in checked(path, host, rows=70, columns=9)] == ["wrong"]
    path.with_name("operation.toml").write_text("independent = false\n" + path.with_name("operation.toml").read_text())
    assert [row.outcome for row in checked(path, host, rows=71, columns=9)] == [Outcome.CORRECT]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (("return y, abs(y)", "return y"), "reference returns ndarray: expected a pair of y and its terms' magnitudes"),
        (("return y, abs(y)", "return y[1:], abs(y)"), "reference returns an array of (2, "),
        (("return y, abs(y)", "return y, 0 * y"), "gives magnitudes of y that are below its values"),
        (("return y, abs(y)", "return y, 1e4 + 0 * y"), "magnitudes of y are "),
        (
            ("p.columns", "p.colums"),
            " f32: AttributeError: p has no colums (did you mean 'columns'?); it has rows,",
        ),
        (
            ("return y, abs(y)", "return y, None"),
            "reference returns None for the magnitudes of y: expected an array of (3, ",
        ),
        (("return y, abs(y)", "return 1j * y, y"), "returns no array of numbers for y: TypeError: complex numbers"),
        (("return y, abs(y)", "return y / 0, y"), " for y at rows = 0, inner = 0: expected numbers"),
        (("def reference(p, x):", "def reference(p, x"), "reference.py: line 1: SyntaxError: '(' was never closed"),
        (("def reference", "def scaled"), "reference.py: expected a function reference(p, x)"),
    ],
)
def test_a_mistake_in_a_reference_is_said(
    tmp_path: Path, host: DeviceEvaluator, edit: tuple[str, str], words: str
) -> None:
    path = whole(tmp_path, edit) / "scale.cu.j2"
    with pytest.raises(TemplateError) as caught:
        checked(path, host, rows=3, columns=11 + len(words))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (("    y = 2", "    while True:\n        pass\n    y = 2"), "line [23]: reference on scale rows 3 columns 77"),
        (("def reference", "while True:\n    pass\n\n\ndef reference"), "line [12]: "),
    ],
)
def test_a_reference_that_never_ends_is_said(
    tmp_path: Path, host: DeviceEvaluator, edit: tuple[str, str], line: str
) -> None:
    path = whole(tmp_path, edit) / "scale.cu.j2"
    with pytest.raises(TemplateError, match=rf"reference\.py: {line}.*TimeoutError: it did not end within 20 s"):
        checked(path, host, rows=3, columns=77)


WITHIN = '[errors]\nmodel = "tolerance"\nrtol = {rtol}\natol = {atol}\n\n[cost]\nflops'


@pytest.mark.parametrize("reference", ["reference.py", "reference.cuh"])
@pytest.mark.parametrize(("rtol", "atol", "refused"), [(1e-3, 0.9, False), (1e-3, 0.999, True), (0.999, 1e-9, True)])
def test_a_tolerance_in_which_wrong_kernels_pass_is_refused(
    tmp_path: Path, host: DeviceEvaluator, reference: str, rtol: float, atol: float, *, refused: bool
) -> None:
    """Outputs are about 1.9."""
    edit = ('[cost]\nreduction = "1"\nflops', WITHIN.format(rtol=rtol, atol=atol))
    alone = [("return y, abs(y)", "return y")] if reference.endswith(".py") else []
    path = whole(tmp_path, edit, *alone, reference=reference) / "scale.cu.j2"
    if not refused:
        assert [row.outcome for row in checked(path, host, rows=3, columns=93)] == [Outcome.CORRECT]
        return
    words = (
        rf"scale/operation\.toml: errors: rtol = {rtol} and atol = {atol} allow errors of 0\.\d+ times the outputs y"
    )
    with pytest.raises(TemplateError, match=words):
        checked(path, host, rows=3, columns=93)


@pytest.mark.parametrize(("times", "columns", "passes"), [("1e6", 90, False), ("1e6", 5, False), ("400", 91, True)])
def test_magnitudes_are_absurd_where_outputs_tell(
    tmp_path: Path, host: DeviceEvaluator, times: str, columns: int, *, passes: bool
) -> None:
    path = whole(tmp_path, ("value < 0.0 ? -value :", f"{times} * (value < 0.0 ? -value :"), reference="reference.cuh")
    reference = path / "reference.cuh"
    reference.write_text(reference.read_text().replace(": value}", ": value)}"))
    family = path / "scale.cu.j2"
    if passes:
        assert [row.outcome for row in checked(family, host, rows=3, columns=columns)] == [Outcome.CORRECT]
        return
    with pytest.raises(TemplateError, match=r"scale/reference.cuh: .*: magnitudes of y are 1e\+06 times its values"):
        checked(family, host, rows=3, columns=columns)


def test_there_is_one_reference(tmp_path: Path, host: DeviceEvaluator) -> None:
    path = whole(tmp_path) / "scale.cu.j2"
    path.with_name("reference.cuh").write_text("")
    with pytest.raises(TemplateError, match=r"has both; expected reference.py or reference.cuh"):
        checked(path, host, rows=3, columns=9)


@pytest.mark.parametrize("fault", [(" * inverse", ""), ("sum += term;", "sum += 1.0001f * term;")])
def test_softmax_is_held_to_its_tolerance(tmp_path: Path, host: DeviceEvaluator, fault: tuple[str, str]) -> None:
    shipped = template_files()["softmax_rows"]
    folder = tmp_path / "softmax"
    folder.mkdir()
    text = shipped.path.read_text()
    path = folder / "faulty.cu.j2"
    assert fault[0] in text
    path.write_text(text.replace(*fault))
    assert [row.reason for row in checked(path, host, rows=2, columns=70)] == ["wrong"]


@pytest.mark.parametrize(
    ("edit", "reason", "words"),
    [
        (("y[i] +=", "y[i] +="), "", ""),
        (("if (i < n) y[i] +=", "if (i < n) y[i] ="), "wrong", "outputs are wrong on normal data"),
        (
            ("if (i < n) y[i]", "if (i < n - 1) y[i]"),
            "wrong",
            "1 of 5000 outputs are wrong on normal data, the first at n = 4999",
        ),
        (
            ("y[i] += a[0] * x[i]", "y[i] += a[0] * x[i], const_cast<float*>(x)[i] = 0"),
            "input_overwritten",
            "changed x, which",
        ),
    ],
    ids=["right", "not read", "not changed", "an input changed"],
)
def test_an_array_that_is_read_and_written(
    edit: tuple[str, str], reason: str, words: str, tmp_path: Path, host: DeviceEvaluator
) -> None:
    """Its content is restored before each run; otherwise the second run of verification would give another result."""
    path = written(tmp_path / "saxpy", SAXPY, edit)
    (row,) = checked(path, host, n=5000)
    assert (row.reason, words in row.message) == (reason, True), row.message


@pytest.mark.parametrize(
    ("edit", "reason", "words"),
    [
        (("sum = 0.0f;", "sum = 0.0f;"), "", ""),
        (("partial[row * PARTS + i]", "partial[row * PARTS + i] * 2"), "wrong", "rows = 0 of total"),
        # Scratch memory that no earlier stage has written is poisoned.
        (
            ("    partial[static", "    if (part) partial[static"),
            "unwritten",
            "were computed from unwritten memory, the first at rows = 0 of total",
        ),
        (("order[row * COLUMNS + i]]", "i]"), "wrong", "of ordered; largest error"),
    ],
)
def test_several_outputs_types_and_scratch_memory(
    edit: tuple[str, str], reason: str, words: str, tmp_path: Path, host: DeviceEvaluator
) -> None:
    path = written(tmp_path / "gathered", GATHERED, edit)
    (row,) = checked(path, host, rows=70, columns=65 + len(edit[1]), dtype="f16")
    assert (row.reason, words in row.message) == (reason, True), row.message
