"""compute-sanitizer itself: it finds what is planted, each fault with the tool for it, and nothing in a good kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.api.sanitizers import open_sanitizer
from autotune.checking.sanitize import Winner
from autotune.compilation.toolchain import find_sanitizer
from autotune.errors import ToolchainError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template import load_template
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
    sanitizer = open_sanitizer("cuda:0", 8, logs=tmp_path)
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
