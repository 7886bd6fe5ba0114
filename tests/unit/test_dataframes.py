"""Frames and charts of records, and the notebook that shows them."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import autotune
from autotune import dataframes
from autotune.errors import AutotuneError
from autotune.resources import shipped
from autotune.store import TrialRow

RECORDED = shipped("studies") / "recorded" / "h200.db"
NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


@pytest.fixture(scope="module")
def trials() -> tuple[TrialRow, ...]:
    """Recorded trials of two layers, of several families."""
    with autotune.Store(RECORDED, create=False) as store:
        return store.trials.list("lenet-k5", kind="cuda")


def test_a_table_has_a_row_for_each_trial_and_a_column_for_each_parameter(trials: tuple[TrialRow, ...]) -> None:
    columns = dataframes.table(trials).columns
    assert {len(cells) for cells in columns.values()} == {len(trials)}
    for name in ("block_q", "tile_q"):
        assert columns[f"params_{name}"] == [row.trial.config.params.get(name) for row in trials]
    for name, cells in columns.items():
        assert len({type(cell) for cell in cells if cell is not None}) <= 1, name
    assert {"all", "8"} <= set(columns["params_images"]), "numbers and words become words"


def test_pandas_and_polars_say_what_the_records_say(trials: tuple[TrialRow, ...]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = dataframes.table(trials).to_pandas()
    best = frame.loc[frame[frame.layer == "lenet-k5.conv2"].median_us.idxmin()]
    fastest = min((row for row in trials if row.name == "lenet-k5.conv2"), key=lambda row: row.median_us or 1e9)
    assert (best.median_us, best.number, best.ended_at) == (fastest.median_us, fastest.trial.number, fastest.ended_at)
    assert pandas.api.types.is_integer_dtype(frame.registers)
    assert frame.started_at.dt.tz is not None
    kernels = autotune.best("lenet-k5", db=RECORDED)
    assert list(dataframes.table(kernels).to_pandas().median_us) == [row.median_us for row in kernels]


def test_polars_says_the_same(trials: tuple[TrialRow, ...]) -> None:
    pytest.importorskip("polars")
    frame = dataframes.table(trials).to_polars()
    assert frame["median_us"].to_list() == [row.median_us for row in trials]
    assert frame["ended_at"].to_list() == [row.ended_at for row in trials]
    assert dataframes.table(()).to_polars().shape == (0, 0)


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("pandas", "pip install pandas"),
        ("polars", "pip install polars"),
        ("altair", "pip install 'autotune-conv[notebook]'"),
    ],
)
def test_what_is_not_installed_is_told_with_the_command(
    missing: str, command: str, trials: tuple[TrialRow, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    table = dataframes.table(trials)
    make: dict[str, Callable[[], object]] = {
        "pandas": table.to_pandas,
        "polars": table.to_polars,
        "altair": lambda: dataframes.convergence(trials),
    }
    with pytest.raises(AutotuneError) as raised:
        make[missing]()
    assert str(raised.value) == f"{missing} is not installed: {command}"


def test_a_table_of_something_else_is_refused() -> None:
    with pytest.raises(AutotuneError, match="int: expected trials, best kernels or importances"):
        dataframes.table([3])  # type: ignore[list-item]


def test_convergence_has_a_point_for_each_correct_trial_and_falls_to_the_best(trials: tuple[TrialRow, ...]) -> None:
    pytest.importorskip("altair")
    values = dataframes.convergence(trials).to_dict()["data"]["values"]
    assert len(values) == sum(row.median_us is not None for row in trials)
    for name in ("lenet-k5.conv1", "lenet-k5.conv2"):
        line = [value for value in values if value["of"] == f"{name} on NVIDIA H200"]
        assert [value["best_us"] for value in line] == sorted((value["best_us"] for value in line), reverse=True)
        assert line[-1]["best_us"] == min(row.median_us for row in trials if row.median_us and row.name == name)
        evaluated = [row for row in trials if row.name == name and row.trial.compiled]
        assert line[-1]["evaluation"] <= len(evaluated)
        assert evaluated[line[5]["evaluation"] - 1].median_us == line[5]["median_us"]


def test_importance_has_a_bar_for_each_parameter() -> None:
    pytest.importorskip("altair")
    found = autotune.importance("lenet-k5.conv1", db=RECORDED, families=("direct",))
    values = dataframes.importance(found).to_dict()["data"]["values"]
    assert [(value["parameter"], value["importance"]) for value in values] == list(found[0].found.params)
    assert sum(value["importance"] for value in values) == pytest.approx(1)


@pytest.mark.long
@pytest.mark.cxx
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("pandas", "altair"):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    shown = []
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        body = ast.parse("".join(cell["source"])).body
        last = body.pop()
        assert isinstance(last, ast.Expr), "a cell shows something"
        exec(compile(ast.Module(body, []), cell["id"], "exec"), names)
        shown.append(eval(compile(ast.Expression(last.value), cell["id"], "eval"), names))
    best, tried, line, bars, table = shown
    assert isinstance(best, autotune.Trial)
    # Not always the fastest of the search: finals decide.
    assert best.median_us == tried.median_us[tried.number == best.number].item()
    assert line.to_dict()["data"]["values"]
    assert len(bars.to_dict()["data"]["values"]) == table.count().sum()
