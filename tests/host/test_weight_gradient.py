"""The device interface supports a backward convolution: two inputs, sums over images into filters, atomics, splits."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.api.device_names import binary_cache
from autotune.checking.cases import CasePlan
from autotune.checking.check import CheckRow, FamilyCheck
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting import export_library
from autotune.exporting.build import self_test
from autotune.family.space import BoundTemplate
from autotune.family.template_files import load_template
from autotune.problem import Layer, make_problem
from autotune.trial import Config
from tests import weight_gradient
from tests.compiled import built_for_host
from tests.exports import H200, chosen
from tests.long_run import every, long_run
from tests.operations import written

pytestmark = pytest.mark.cxx
SIZES = {"c": 3, "k": 5, "h": 8, "w": 11, "r": 3, "s": 2}


def checked(path: Path, host: DeviceEvaluator, slices: int, **sizes: int) -> CheckRow:
    """A case of a family with this many slices: also with one image, and with two more."""
    path.write_text(path.read_text().replace("values = [1, 4, 16]", f"values = [{slices}]"))
    family = load_template(path)
    layers = [Layer("own", make_problem(family.operation, {**SIZES, **sizes}))]
    (row,) = FamilyCheck(CasePlan(family, host.info, layers=layers), host).rows(most=1)
    return row


@pytest.mark.parametrize(
    ("family", "slices", "n"),
    [
        ("atomics", 4, 9),
        ("split", 4, 7),
        *long_run(("atomics", 16, 8), ("atomics", 1, 6), ("split", 16, 5), ("split", 1, 10)),
    ],
)
def test_sums_over_images_are_right(family: str, slices: int, n: int, tmp_path: Path, host: DeviceEvaluator) -> None:
    """Also with more slices than images: the array to which it adds is restored before each run, the workspace is
    poisoned.
    """
    row = checked(written(tmp_path / "gradient", weight_gradient.texts(family)), host, slices, n=n)
    assert not row.reason, row.message


FAULTS = {
    "not added": ("split", ("dw[element] += sum", "dw[element] = sum"), "wrong"),
    "a slice is lost": ("split", ("slice < SLICES", "slice < SLICES - 1"), "wrong"),
    "no atomics": ("atomics", ("atomicAdd(dw + blockIdx.x, sum)", "dw[blockIdx.x] = sum"), "wrong"),
    "a slice is not written": (
        "split",
        ("if (threadIdx.x == 0) partial", "if (threadIdx.x == 0 && blockIdx.y) partial"),
        "unwritten",
    ),
    "the last image": ("atomics", ("image < n;", "image < n - 1;"), "wrong"),
    "an input is changed": (
        "atomics",
        ("if (threadIdx.x == 0) atomicAdd", "const_cast<T*>(dy)[0] = T(); if (threadIdx.x == 0) atomicAdd"),
        "input_overwritten",
    ),
}


@pytest.mark.parametrize("fault", every(2, FAULTS))
def test_a_fault_is_found(fault: str, tmp_path: Path, host: DeviceEvaluator) -> None:
    family, edit, reason = FAULTS[fault]
    path = written(tmp_path / "gradient", weight_gradient.texts(family), edit)
    assert checked(path, host, 4, n=9, w=11 + len(fault)).reason == reason


def test_a_number_of_pixels_that_overflows_is_found_although_blocks_sum_all_images(
    tmp_path: Path, host: DeviceEvaluator
) -> None:
    pixels = (
        "const int pixels = n * P * Q;\n    if (pixels == 0) return 0.0f;\n    float sum = 0.0f;\n    for (int image"
    )
    edit = ("float sum = 0.0f;\n    for (int image", pixels)
    path = written(tmp_path / "gradient", weight_gradient.texts("atomics"), edit)
    sanitizing = DeviceEvaluator(["host:check"], 1, cache=binary_cache())
    try:
        plan = CasePlan(load_template(path), host.info)
        rows = list(FamilyCheck(plan, host, sanitizing=lambda: sanitizing).rows(most=0))
    finally:
        sanitizing.close()
    assert [row.reason for row in rows] == ["undefined"]
    assert "signed integer overflow" in rows[0].message


@pytest.mark.long
@pytest.mark.parametrize("family", ["split", "atomics"])
def test_it_is_exported(family: str, cxx: str, tmp_path: Path) -> None:
    template = load_template(written(tmp_path / "gradient", weight_gradient.texts(family)))
    problem = make_problem(template.operation, {**SIZES, "n": 6, "dtype": "f16"})
    config = Config.of(family, {"threads": 64, "slices": 4})
    assert BoundTemplate(template, problem, H200).supported
    exported = export_library([chosen(template, problem, config, "filters")], tmp_path / "exported", ())
    passed, said = self_test(built_for_host(exported, tmp_path / "built", cxx=cxx))
    assert passed, said
    assert "filters: right at n = 6 and 1" in said, "of the tuned n: a part of it is another problem"
