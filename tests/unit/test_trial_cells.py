"""What is printed of very many trials: the cells that columns make of records, written as json and csv write them."""

from __future__ import annotations

import csv
import io
import json
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autotune.analysis.rooflines import with_rooflines
from autotune.cli.answers import trial_columns
from autotune.cli.cells import Cell, Items, Shares, json_object, plain_csv_line
from autotune.cli.trial_cells import TrialCells
from autotune.shipped import shipped
from autotune.store import Store
from autotune.trial import Config
from tests.unit.store.test_dump import fill

MANY = 2000
PLAIN = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=9)
FINITE: st.SearchStrategy[Any] = (
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
CELLS = (
    PLAIN
    | st.dictionaries(st.text(max_size=5), FINITE, max_size=3).map(lambda values: Config.of("direct", values))
    | st.lists(PLAIN, max_size=3).map(lambda values: Items(tuple(values)))
    | st.dictionaries(st.text(max_size=5), st.floats(), max_size=3).map(lambda them: Shares(tuple(them.items())))
    | st.datetimes().map(lambda date: date.replace(tzinfo=UTC))
)


def by_json(record: dict[str, Cell]) -> str:
    """The object as json alone writes it in an array."""

    def plain(cell: Cell) -> object:
        if isinstance(cell, Config):
            return cell.values()
        if isinstance(cell, datetime):
            return cell.isoformat()
        if isinstance(cell, Items):
            return [plain(value) for value in cell.values]
        if isinstance(cell, Shares):
            return {name: plain(number) for name, number in cell.numbers}
        return None if isinstance(cell, float) and cell - cell != 0 else cell

    return json.dumps([{name: plain(cell) for name, cell in record.items()}], indent=1)


@given(st.dictionaries(st.text(max_size=9), CELLS, min_size=1, max_size=6))
@example({"a\x7f": 1, "small": 1e-05, "large": 1e16, "most": 9999999999999998.0, "least": 0.0001, "none": -0.0})
@example({"delete": "\x7f", "umlaut": "\xe4"})
@example({"config": Config.of("direct", json.loads('{"small": 0.00001234, "lines": "a\\n    b\\n  }"}'))})
def test_an_object_is_written_as_json_does(record: dict[str, Cell]) -> None:
    assert f"[\n {json_object(list(record), list(record.values()))}\n]" == by_json(record)


@given(st.lists(PLAIN, min_size=1, max_size=6))
@example(["null", None, "", 1.5])
@example([1e-05, 1e16, 0.0001, -3.5])
@example(["a,b", 'say "x"', "two\nlines", "back\\slash", "\r"])
def test_a_line_is_written_as_csv_does_or_left_to_it(cells: list[str | int | float | bool | None]) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(cells)
    line = plain_csv_line(cells)
    assert line in (None, out.getvalue().replace("\r\n", "\n"))


def test_most_lines_are_not_left_to_it() -> None:
    assert plain_csv_line(["lenet.conv1", 7, 123.5, None, "", 0.0]) == "lenet.conv1,7,123.5,,,0.0\n"


@pytest.mark.parametrize("which", ["filled", "recorded", "networks"])
def test_a_stream_has_the_cells_that_columns_make_of_records(tmp_path: Path, which: str) -> None:
    path = tmp_path / "filled.db"
    if which == "filled":
        with Store(path) as store:
            fill(store)
    else:
        path = shipped("studies") / "recorded" / {"recorded": "h200.db", "networks": "networks.db"}[which]
    columns = trial_columns(imported=True)
    noted: list[tuple[str, str, float | None]] = []

    def is_admitted(row: object) -> bool:
        return getattr(row, "name", "").count("conv2") == 0

    with Store(path, create=False) as store:
        every = store.trials.list(sort="started", generations="all", limit=MANY)
        found = with_rooflines(store, filter(is_admitted, every))
        expected = [[column.value(trial) for column in columns] for trial in found]
        with closing(store.trials.each(sort="started", generations="all", limit=MANY)) as stream:
            cells = TrialCells(store, is_admitted, lambda _: pytest.fail("no kind"), lambda *one: noted.append(one))
            assert list(islice(cells.of(stream), MANY)) == expected
    assert len(expected) > (100 if which != "filled" else 3)
    place = [column.key for column in columns].index("floor_fraction")
    assert [fraction for _, _, fraction in noted] == [row[place] for row in expected]
