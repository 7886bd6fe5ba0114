"""docs/fidelity.md: every technique of the reports has a recorded row and can run on an H200; its commands work."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from autotune.family.render import render
from autotune.family.space import Admission, BoundTemplate, SearchSpace
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_templates
from autotune.problem import Layer
from autotune.study import Study, Technique
from autotune.study_reader import find_study, load_study
from tests.templates.shipped_families import H200

from .tiny import Command

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "fidelity.md").read_text()
STUDIES = {
    name: load_study(find_study(name))
    for name in ("reports/000", "reports/001", "reports/002", "reports/003", "reports/004")
}
TECHNIQUES = [(study, technique) for study in STUDIES.values() for technique in study.techniques]
STREAMS = load_study(find_study("reports/001-streams"))
LISTINGS = tomllib.loads((ROOT / "tests" / "data" / "report-kernels.toml").read_text())
"""the parameters that the reports' listings fix for each technique, and the rows that are not in the reports"""
KERNELS = {kernel["row"]: kernel for kernel in LISTINGS["kernel"]}
ROWS = {
    f"{name}: {technique.name}": (study, technique)
    for name, study in (*STUDIES.items(), ("reports/001-streams", STREAMS))
    for technique in study.techniques
}
IMPOSSIBLE = "fused im2col and shared-memory product, tile 64"


@cache
def families() -> dict[str, KernelTemplate]:
    return dict(load_templates())


def space_of(study: Study, technique: Technique, layer: Layer) -> SearchSpace:
    """The configs of a technique on a layer on an H200."""
    admission = Admission(study.admitted(layer.problem), study.workspace_limit_bytes, None, study.prune)
    bound = BoundTemplate(families()[technique.template], layer.problem, H200, admission)
    return SearchSpace(bound, technique.space)


def test_the_page_counts_the_techniques_of_each_study() -> None:
    told = dict(re.findall(r"^\| (\d{3}) \| (\d+)", PAGE, re.MULTILINE))
    assert told == {name[-3:]: str(len(study.techniques)) for name, study in STUDIES.items()}
    for name, study in STUDIES.items():
        (line,) = re.findall(rf"^\| {name[-3:]} \| .*$", PAGE, re.MULTILINE)
        assert ("rule: " in line) == bool(study.rules)


@pytest.mark.parametrize("name", STUDIES)
def test_each_technique_has_a_recorded_row_with_the_reports_figures(name: str, autotune: Command) -> None:
    study = STUDIES[name]
    recorded = json.loads(autotune("ladder", name, "--stored", "--db", "recorded", "--json").out)
    found = {(row["layer"], row["technique"]): row for row in recorded}
    assert found.keys() == {(layer.name, one.name) for layer in study.layers for one in study.techniques}
    for (layer, _), row in found.items():
        technique = next(one for one in study.techniques if one.name == row["technique"])
        assert (row["reported_ms"], row["reported"]) == (technique.reported_ms.get(str(layer)), technique.reported)
        assert (row["best_us"] is None) == (technique.name == IMPOSSIBLE) == bool(row["why_not"])


@pytest.mark.parametrize(("study", "technique"), TECHNIQUES, ids=lambda one: one.name)
def test_each_technique_can_run_on_an_h200(study: Study, technique: Technique) -> None:
    for layer in study.layers:
        space = space_of(study, technique, layer)
        if technique.name == IMPOSSIBLE:
            assert space.default is None
        else:
            assert space.default is not None, f"{layer.name}: no config is possible"
            assert technique.has(space.default)


def test_each_row_is_a_technique_of_a_report_or_one_of_ours() -> None:
    assert sorted(ROWS) == sorted([*KERNELS, *LISTINGS["ours"]])


@pytest.mark.parametrize("row", KERNELS)
def test_a_row_leaves_nothing_free_that_the_reports_listing_fixes(row: str) -> None:
    kernel, (study, technique) = KERNELS[row], ROWS[row]
    assert technique.template == kernel["template"]
    assert dict(technique.reported_ms) == kernel.get("ms", {})
    for layer in study.layers:
        space = space_of(study, technique, layer)
        left = {
            param.name: {param.values[index] for index in np.unique(space.rows[:, column])}
            for column, param in enumerate(space.params)
        }
        if technique.name == IMPOSSIBLE:
            left = {name: set(values) for name, values in technique.space.items()}
        for name, value in kernel["fixed"].items():
            fixed = layer.problem.values.get(value, value)
            assert left.get(name) == {fixed}, f"{layer.name}: {name} of: {kernel['listing']}"


@pytest.mark.parametrize("name", ["shared-memory convolution, tile 8", "and __restrict__", "and filters in constant"])
def test_report_000_stages_the_interior_alone(name: str) -> None:
    study = STUDIES["reports/000"]
    technique = next(one for one in study.techniques if one.name.startswith(name))
    for layer in study.layers:
        space = space_of(study, technique, layer)
        assert space.default is not None
        text = render(space.bound, space.default).program.text
        assert "INTERIOR = true" in text
        assert "STAGED_H = 8, STAGED_W = 8" in text
        assert "IMAGES = 0;" in text, "each thread goes through the whole batch"


def test_fusing_is_judged_by_neighbouring_rows_of_one_tile() -> None:
    names = [technique.name for technique in STUDIES["reports/000"].techniques]
    before = names.index("im2col and shared-memory product, two kernels, tile 32")
    assert names[before + 1] == "fused im2col and shared-memory product, tile 32", "over_previous is what fusing gains"


DESCRIPTION = PAGE[PAGE.index("## The description") : PAGE.index("## The reports' techniques")]


def test_each_command_of_the_description_prints_what_the_page_says(folder: Path, autotune: Command) -> None:
    (folder / "studies").symlink_to(ROOT / "studies")
    rows = re.findall(r"^\| (?!phrase|---)(.*?) \| (.*?) \| (.*?) \|$", DESCRIPTION, re.MULTILINE)
    assert len(rows) == 13
    for words, shown, printed in rows:
        commands = re.findall(r"`autotune ([^`]+)`", shown)
        done = [autotune(*shlex.split(command)) for command in commands]
        assert all(one.code == 0 for one in done), words
        said = " ".join(" ".join((one.out + one.err).split()) for one in done) or _without_a_gpu(printed)
        for name, count in re.findall(r"(\w+) ([\d.]+)(?=[,;]| us|$)", printed.split("; what")[0]):
            assert count in said, f"{words}: {name} {count}"
        for quoted in re.findall(r"`([^`]+)`", printed):
            if not quoted.startswith(("autotune", ".cu")):
                assert all(word in said for word in quoted.split()), f"{words}: {quoted}"


def _without_a_gpu(printed: str) -> str:
    """The evidence for the one row that needs a GPU is in the code."""
    assert printed.startswith("nothing without a GPU: PyCUDA needs a driver. On an H200")
    package = ROOT / "autotune" / "devices" / "cuda"
    return "".join(path.read_text() for path in sorted(package.glob("*.py")))
