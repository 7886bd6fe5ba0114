"""compute-sanitizer finds each planted fault with the tool for it, and nothing in a correct kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.api.sanitizers import compute_sanitizer
from autotune.checking.cases import CasePlan
from autotune.checking.check import FamilyCheck
from autotune.checking.sanitize import ALL_TOOLS, Winner
from autotune.checking.sanitized import sampled, sanitized
from autotune.compilation.toolchain import find_sanitizer
from autotune.errors import ToolchainError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template, template_files
from autotune.operation.registry import operation
from autotune.problem import make_problem
from tests.injected_faults import FAULTS, GOOD, RAGGED

pytestmark = pytest.mark.gpu

FOUND = {
    "unused_load_behind_array": ("memcheck", "Invalid __global__ read of size 4 bytes"),
    "smem_declared_too_small": ("memcheck", "Invalid __shared__"),
    "no_barrier_after_first_thread": ("racecheck", "Race reported"),
    "no_barrier_before_use": ("racecheck", "Race reported"),
    "reads_workspace": ("initcheck", "Uninitialized __global__ memory read"),
}


def test_each_tool_finds_what_is_planted(gpu: DeviceEvaluator, tmp_path: Path) -> None:
    try:
        find_sanitizer()
    except ToolchainError as error:
        pytest.skip(str(error))
    winners = []
    for name in ("good", *FOUND):
        path = tmp_path / f"{name}.cu.j2"
        path.write_text(GOOD.read_text() if name == "good" else FAULTS[name].text)
        template = load_template(path)
        space = SearchSpace(BoundTemplate(template, RAGGED, gpu.info))
        winners.append(Winner(name, render(space.bound, space.config(0)), space.bound, template))
    sanitizer = compute_sanitizer("cuda:0", 8)
    try:
        said = {(verdict.kernel, verdict.tool): verdict for verdict in sanitizer.check(winners)}
    finally:
        sanitizer.close()
    assert [said["good", tool].word for tool in ("memcheck", "racecheck", "initcheck")] == 3 * ["clean"]
    for name, (tool, words) in FOUND.items():
        verdict = said[name, tool]
        assert verdict.word == "fault", verdict
        assert words in verdict.message
        assert f"({name}.cu.j2:" in verdict.message, "the line of the template is named"


def test_check_runs_a_sample_under_every_tool(gpu: DeviceEvaluator, tmp_path: Path) -> None:
    """A race that verification on a GPU does not find."""
    path = tmp_path / "racy.cu.j2"
    path.write_text(FAULTS["no_barrier_after_first_thread"].text)
    template = load_template(path)
    sample = sampled(list(FamilyCheck(CasePlan(template, gpu.info), gpu).rows(most=2)))
    try:
        sanitizer = compute_sanitizer("cuda:0", 8, ALL_TOOLS)
    except ToolchainError as error:
        pytest.skip(str(error))
    try:
        found = list(sanitized(sanitizer, template, gpu.info, sample))
    finally:
        sanitizer.close()
    assert {verdict.tool for _, verdict in found} == set(ALL_TOOLS)
    assert all(verdict.word != "not run" for _, verdict in found), [str(verdict) for _, verdict in found]
    assert any(row.message.startswith("racecheck: ") for row, _ in found)


def test_what_would_take_hours_is_not_run(gpu: DeviceEvaluator) -> None:
    template = load_template(template_files()["gemm_tiled"])
    sizes: dict[str, int | str | bool] = {"batch": 1, "m": 8192, "n": 8192, "k": 8192, "dtype": "f32"}
    space = SearchSpace(BoundTemplate(template, make_problem(operation("gemm"), sizes), gpu.info), sampled_rows=1)
    winner = Winner("large", render(space.bound, space.config(0)), space.bound, template)
    sanitizer = compute_sanitizer("cuda:0", 8)
    try:
        verdicts = list(sanitizer.check([winner]))
    finally:
        sanitizer.close()
    assert {verdict.word for verdict in verdicts} == {"not run"}
    assert {verdict.message for verdict in verdicts} == {
        f"batch = 9 would take too long under {tool}" for tool in ("memcheck", "racecheck", "initcheck")
    }
