"""Defects planted in shipped kernels are caught, on `host` or on `host:check`; the unedited kernels are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.checking.cases import CasePlan
from autotune.checking.check import FamilyCheck
from autotune.checking.sanitize import HostCheck, Winner
from autotune.errors import Rejected
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.trial import Config
from tests.long_run import every
from tests.planted_defects import DEFECTS, KERNELS, Edits, Kernel

pytestmark = pytest.mark.cxx


def defective(
    kernel: Kernel, edits: Edits, folder: Path, evaluator: DeviceEvaluator
) -> tuple[KernelSource, BoundTemplate]:
    """A kernel with edits."""
    template = kernel.template(folder, edits)
    bound = BoundTemplate(template, kernel.bound_problem(template), evaluator.info)
    default = SearchSpace(bound, most_rows=0, sampled_rows=1).default
    assert default is not None
    return render(bound, Config.of(template.name, {**default.params, **kernel.config})), bound


def ending(kernel: Kernel, edits: Edits, folder: Path, evaluator: DeviceEvaluator) -> tuple[str, str]:
    """The result of verifying a kernel, and the message."""
    source, _ = defective(kernel, edits, folder, evaluator)
    try:
        binary = evaluator.compile(source).result()
        evaluator.begin_layer(source.problem)
        evaluator.verify(source, binary)
    except Rejected as rejected:
        return f"{rejected.outcome}/{rejected.reason}", rejected.message
    return "correct/", ""


@pytest.mark.parametrize("name", every(2, KERNELS))
def test_kernel_is_right_without_a_defect(
    name: str, tmp_path: Path, host: DeviceEvaluator, checked: DeviceEvaluator
) -> None:
    for number, evaluator in enumerate((host, checked)):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert ending(KERNELS[name], (), folder, evaluator) == ("correct/", "")


def test_place_of_a_nan_that_is_not_stored_is_told(tmp_path: Path, host: DeviceEvaluator) -> None:
    """There the reference gives NaN, which is also what unwritten memory holds."""
    found, message = ending(KERNELS["new-op"], DEFECTS["new-op: a NaN is not stored"].edits, tmp_path, host)
    assert (found, "the first at rows = " in message) == ("wrong_result/unwritten", True), message


def test_defect_is_caught_behind_many_other_layers(tmp_path: Path, checked: DeviceEvaluator) -> None:
    """With a device that also has the arrays in memory."""
    defect, kernel = DEFECTS["new-op: an output of 7 is kept"], KERNELS["new-op"]
    source, bound = defective(kernel, defect.edits, tmp_path, checked)
    for rows in range(10, 60):
        checked.begin_layer(bound.problem.with_runtime(rows))
    binary = checked.compile(source).result()
    checked.begin_layer(source.problem)
    with pytest.raises(Rejected, match=r"reads byte .* of y before anything is written there"):
        checked.verify(source, binary)


@pytest.mark.parametrize("name", every(60, DEFECTS))
def test_check_finds_the_defect(name: str, tmp_path: Path, host: DeviceEvaluator, checked: DeviceEvaluator) -> None:
    """For all configs and problems that it chooses."""
    defect = DEFECTS[name]
    template = KERNELS[defect.kernel].template(tmp_path, defect.edits)
    check = FamilyCheck(CasePlan(template, host.info), host, sanitizing=lambda: checked)
    assert any(row.outcome in ("wrong_result", "runtime") for row in check.rows())


@pytest.mark.parametrize("name", every(60, DEFECTS))
def test_defect_is_not_exported(name: str, tmp_path: Path, host: DeviceEvaluator, checked: DeviceEvaluator) -> None:
    """An export verifies a kernel again, and runs it with few units under sanitizers."""
    defect = DEFECTS[name]
    source, bound = defective(KERNELS[defect.kernel], defect.edits, tmp_path, host)
    (verdict,) = HostCheck(checked).check([Winner(defect.kernel, source, bound)])
    if verdict.word != "fault":
        host.begin_layer(source.problem)
        with pytest.raises(Rejected):
            host.verify(source, host.compile(source).result())


@pytest.mark.parametrize("name", every(6, [name for name, defect in DEFECTS.items() if defect.host]))
def test_defect_is_caught_on_the_host(name: str, tmp_path: Path, host: DeviceEvaluator) -> None:
    defect = DEFECTS[name]
    found, message = ending(KERNELS[defect.kernel], defect.edits, tmp_path, host)
    assert found in defect.host, message


@pytest.mark.parametrize("name", every(6, [name for name, defect in DEFECTS.items() if defect.checked]))
def test_defect_is_caught_on_host_check(name: str, tmp_path: Path, checked: DeviceEvaluator) -> None:
    defect = DEFECTS[name]
    found, message = ending(KERNELS[defect.kernel], defect.edits, tmp_path, checked)
    assert found in defect.checked, message
    if found == "runtime/race":
        places = ("of y", "of workspace") if defect.number == 3 else ("in shared memory",)
        assert any(place in message for place in places), message
