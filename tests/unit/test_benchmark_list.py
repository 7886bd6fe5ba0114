"""The list of figures that `python -m tests.benchmarks.all` repeats names files of the checkout."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest

from autotune.study_reader import find_study
from tests.benchmarks.all import FIGURES, Figure, main, recorded_minutes

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_figure_is_on_its_page_and_its_study_exists(figure: Figure) -> None:
    page = (ROOT / "docs" / figure.pages).read_text()
    studies = re.findall(r"autotune (?:tune|ladder) (\S+)", " ".join(figure.commands))
    for study in studies:
        assert find_study(study)
        assert study.removeprefix("reports/") in page
    if figure.front:
        assert set(studies) <= set(re.findall(r"[a-z0-9-]+", (ROOT / "tests" / "figures.py").read_text()))
    for script in re.findall(r"tests\.benchmarks\.(\w+)", " ".join(figure.commands)):
        assert f"tests/benchmarks/{script}.py" in page or f"tests.benchmarks.{script}" in page


def test_every_study_in_a_table_of_readme_or_results_is_a_figure() -> None:
    figures = (ROOT / "tests" / "figures.py").read_text()
    front = re.search(r"def front\(.*?\n\n\n", figures, re.DOTALL)
    assert front is not None
    in_readme = set(re.findall(r'"([a-z0-9-]+)(?:\.[a-z0-9-]+)?", "recorded', front[0]))
    assert in_readme
    assert in_readme <= {figure.name for figure in FIGURES if figure.front}
    generated = re.findall(r"<!-- \[\[\[cog.*?\]\]\] -->", (ROOT / "docs" / "results.md").read_text(), re.DOTALL)
    words = set(re.findall(r"[a-z0-9_-]+", " ".join(generated)))
    studies = {path.stem for path in (ROOT / "studies").glob("*.toml")}
    assert words & studies <= {figure.name for figure in FIGURES}


def test_minutes_are_those_of_the_recorded_runs_at_least() -> None:
    recorded = {figure.name: recorded_minutes(figure.name) for figure in FIGURES}
    assert recorded["kernelbench-chains"] is None
    short = [figure.name for figure in FIGURES if figure.minutes < (recorded[figure.name] or 0)]
    assert recorded["fp16"] is not None
    assert not short


def test_the_list_shows_only_the_figures_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "lenet-k5", "softmax"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["lenet-k5", "softmax", "together"]
    assert "    python -m autotune tune lenet-k5 --db FOLDER/figures.db --baseline cudnn" in lines


def test_results_md_has_the_minutes_of_the_list() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    together = [sum(figure.minutes for figure in FIGURES if figure.front or not front) for front in (True, False)]
    assert [int(minutes) for minutes in re.findall(r"in\s(\d+)\sminutes", page)] == together


def test_an_unknown_figure_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["resnet5"])
    assert "no figure resnet5; --list shows all" in capsys.readouterr().err


def test_a_failing_command_does_not_keep_the_others_from_running(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = (
        Figure("broken", "results.md", 1, ("no_such_module {folder}", "platform")),
        Figure("works", "results.md", 1, ("platform",)),
    )
    monkeypatch.setattr("tests.benchmarks.all.FIGURES", figures)
    assert main(["--folder", str(tmp_path / "new")]) == 1
    assert "failed: broken" in capfd.readouterr().err
    assert (tmp_path / "new" / "works.txt").read_text().startswith(platform.system())
    assert not (tmp_path / "new" / "broken.txt").read_text()
