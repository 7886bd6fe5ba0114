"""Operations other than conv2d on a GPU: arrays that are read and written, atomics, proven exports."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.autotune_runtime.c_library import CLibrary
from autotune.autotune_runtime.prepared import Prepared, run
from autotune.checking.cases import CasePlan
from autotune.checking.check import FamilyCheck
from autotune.compilation.toolchain import find_cxx, find_nvcc
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting import SelectedKernel, export_library
from autotune.exporting.build import build_for_cuda
from autotune.exporting.proof import prove
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template, template_files
from autotune.measurement.exported import interface_of
from autotune.problem import Layer, make_problem
from autotune.trial import Value
from tests import weight_gradient
from tests.exports import chosen
from tests.operations import GATHERED, SAXPY, written

pytestmark = pytest.mark.gpu

FILTERS = {"c": 8, "k": 16, "h": 30, "w": 30, "r": 3, "s": 3, "n": 200}
OWN: Mapping[str, tuple[Mapping[str, str], Mapping[str, Value]]] = {
    "read and written": (SAXPY, {"n": 3_000_000}),
    "several outputs, scratch": (GATHERED, {"rows": 500, "columns": 1000, "dtype": "f16"}),
    "atomics": (weight_gradient.texts("atomics"), FILTERS),
    "split sums": (weight_gradient.texts("split"), FILTERS),
}


def first(path: Path, gpu: DeviceEvaluator, **sizes: Value) -> SelectedKernel:
    """The default config of a family for a problem."""
    template = load_template(path)
    bound = BoundTemplate(template, make_problem(template.operation, sizes), gpu.info)
    default = SearchSpace(bound, {}, most_rows=0, sampled_rows=1).default
    assert default is not None
    return chosen(template, bound.problem, default, template.name, gpu.info)


@pytest.mark.parametrize("name", OWN)
def test_a_users_operation_is_right_and_proven(name: str, gpu: DeviceEvaluator, tmp_path: Path) -> None:
    texts, sizes = OWN[name]
    path = written(tmp_path / "own", texts)
    family = load_template(path)
    layers = [Layer("own", make_problem(family.operation, sizes))]
    for row in FamilyCheck(CasePlan(family, gpu.info, layers=layers), gpu).rows(most=4):
        assert not row.reason, row.message
    lines = list(prove(export_library([first(path, gpu, **sizes)], tmp_path / "lib", ()), gpu, "not in this test"))
    assert "self-test passed" in lines
    assert (tmp_path / "lib" / "proof.txt").read_text().startswith("PROVEN\n")


def test_atomics_that_claim_to_be_deterministic_are_found(gpu: DeviceEvaluator, tmp_path: Path) -> None:
    edits = ('deterministic = "slices == 1"\n', ""), ("values = [1, 4, 16]", "values = [16]")
    family = load_template(written(tmp_path / "own", weight_gradient.texts("atomics"), *edits))
    layers = [Layer("own", make_problem(family.operation, FILTERS))]
    (row,) = FamilyCheck(CasePlan(family, gpu.info, layers=layers), gpu).rows(most=1)
    assert row.reason == "nondeterministic", row.message


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_weights_are_prepared_once_on_tensors(gpu: DeviceEvaluator, tmp_path: Path) -> None:
    import torch

    kernel = first(template_files()["stencil_rows"].path, gpu, n=4, h=64, w=128)
    exported = export_library([kernel], tmp_path / "lib", ())
    (tmp_path / "built").mkdir()
    built = build_for_cuda(exported, tmp_path / "built", nvcc=find_nvcc(), cxx=find_cxx())
    library = CLibrary(str(built.library), (interface_of(exported.operation),))
    x = torch.randn(9, 64, 128, device="cuda")
    weights = torch.tensor([2.0, -1.0], device="cuda")
    taps = torch.tensor([[[[0.0, -1, 0], [-1, 2, -1], [0, -1, 0]]]], device="cuda")
    expected = torch.nn.functional.conv2d(x.double().unsqueeze(1), taps.double(), padding=1).squeeze(1)
    prepared = Prepared(library, weights, h=64, w=128)
    once = run(library, x, weights)
    torch.cuda.synchronize()
    weights.zero_()
    again, fewer = prepared(x), prepared(x[:2])
    for y, n in ((once, 9), (again, 9), (fewer, 2)):
        assert isinstance(y, torch.Tensor)
        torch.testing.assert_close(y.double(), expected[:n], atol=1e-4, rtol=1e-5)
