"""Frames of records, and the notebook that shows them."""

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
    }
    with pytest.raises(AutotuneError) as raised:
        make[missing]()
    assert str(raised.value) == f"{missing} is not installed: {command}"


def test_a_table_of_something_else_is_refused() -> None:
    with pytest.raises(AutotuneError, match="int: expected trials, best kernels or importances"):
        dataframes.table([3])  # type: ignore[list-item]


@pytest.mark.long
@pytest.mark.cxx
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
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
    best, tried, improved, table = shown
    assert isinstance(best, autotune.Trial)
    # Not always the fastest of the search: finals decide.
    assert best.median_us == tried.median_us[tried.number == best.number].item()
    assert len(improved) > 3
    assert improved.median_us.is_monotonic_decreasing
    assert "direct" in table.columns
