"""Shipped families on a GPU: sampled configs are right, a shipped study tunes, and what it exports compiles."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.checking.cases import CasePlan
from autotune.checking.check import CheckRow, FamilyCheck
from autotune.compilation.compile import compile_cubin
from autotune.compilation.toolchain import find_nvcc
from autotune.devices.backends import compile_program, open_device
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template, template_files
from autotune.measurement.reference import check_program
from autotune.problem import Conv2dProblem
from autotune.trial import Outcome
from tests.problems import PROBLEMS
from tests.templates.shipped_families import rounds_to_nearest_tf32

pytestmark = pytest.mark.gpu

FILES = template_files()
CASES = 60  # of each family


@pytest.mark.parametrize("name", FILES)
def test_first_cases_of_a_check_are_right(name: str, gpu: DeviceEvaluator) -> None:
    checking = FamilyCheck(CasePlan(load_template(FILES[name]), gpu.info, seed=7), gpu)
    rows = list(checking.rows(most=CASES))
    assert rows
    assert not [told(row) for row in rows if row.outcome != Outcome.CORRECT]


@pytest.mark.parametrize("name", FILES)
def test_more_elements_than_31_bits_count_are_no_trouble(name: str, gpu: DeviceEvaluator) -> None:
    checking = FamilyCheck(CasePlan(load_template(FILES[name]), gpu.info, seed=7), gpu)
    rows = list(checking.rows(most=0))
    assert len(rows) == sum(found.config is not None for found in checking.large)
    assert not [told(row) for row in rows if row.outcome != Outcome.CORRECT]


def told(row: CheckRow) -> str:
    """A failed config in words."""
    return f"{row.source.config} on {row.problem}: {row.outcome}/{row.reason}: {row.message}"


@pytest.mark.parametrize("name", FILES)
def test_pycuda_compiles_the_same_cubin_as_nvcc_alone(name: str, gpu: DeviceEvaluator) -> None:
    template, arch = load_template(FILES[name]), gpu.info.arch
    bound = next(
        bound for problem in PROBLEMS.values() if (bound := BoundTemplate(template, problem, gpu.info)).supported
    )
    default = SearchSpace(bound, most_rows=0, sampled_rows=1).default
    assert default is not None
    for program in (render(bound, default).program, check_program(bound.problem)):
        through_pycuda = compile_program(program, gpu.target)
        alone = compile_cubin(program, arch, find_nvcc())
        assert through_pycuda.image == alone.image
        assert through_pycuda.resources == alone.resources
        assert alone.resources.registers > 0


def test_tma_rounds_floats_to_the_nearest_tf32() -> None:
    device = open_device("cuda:0")
    if device.info.arch != 90:
        pytest.skip("implicit_gemm_sm90 is for sm_90 alone")
    problem = Conv2dProblem(1, 64, 8, 8, 64, 1, 1, layout="nhwc")
    default = SearchSpace(BoundTemplate(load_template(FILES["implicit_gemm_sm90"]), problem, device.info)).default
    assert default is not None
    rounds_to_nearest_tf32(device, default)
    device.close()


def test_shipped_study_tunes_and_exports(tmp_path: Path) -> None:
    tuned = run(tmp_path, "tune", "quickstart", "--device", "cuda:0", "--trials", "8")
    assert "cuda:0" in tuned.stderr
    best = json.loads(run(tmp_path, "best", "quickstart", "--json").stdout)
    assert {row["layer"] for row in best} == {"quickstart.conv1", "quickstart.conv2"}
    for row in best:
        assert 0 < row["median_us"] < 1000
        assert 0 < row["error_over_bound"] < 1
        assert 0 < row["occupancy"] <= 1
        assert row["registers"] > 0
    again = run(tmp_path, "tune", "quickstart", "--device", "cuda:0", "--trials", "8")
    assert "(0 now)" in again.stderr
    run(tmp_path, "export", "quickstart", "--out", "out")
    paths = sorted((tmp_path / "out").glob("*.cu"))
    assert [path.name for path in paths] == ["quickstart.conv1.cu", "quickstart.conv2.cu"]
    for path in paths:
        assert "// device " in path.read_text()
        done = subprocess.run(
            [
                str(find_nvcc()),
                "-std=c++17",
                "-Werror",
                "all-warnings",
                "-arch=native",
                "-c",
                "-o",
                "kernel.o",
                str(path),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done
