"""Convert records to pandas or polars dataframes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.analysis.trial_columns import ROOFLINE_KEYS, TRIAL_COLUMNS
from autotune.analysis.trial_rows import cells_of
from autotune.api.family_importance import FamilyImportance
from autotune.columns import Cell
from autotune.errors import AutotuneError
from autotune.store import BestRow, TrialRow

if TYPE_CHECKING:
    import pandas
    import polars

Record = TrialRow | BestRow | FamilyImportance


@dataclass(frozen=True, slots=True)
class Table:
    """Records as rows with the same columns, ready for conversion to a dataframe."""

    columns: Mapping[str, Sequence[Cell]]
    """column name to cells of one type; None where a record lacks the value"""

    def to_pandas(self) -> pandas.DataFrame:
        """Convert the table to a pandas dataframe. Raises AutotuneError if pandas is not installed."""
        try:
            import pandas as library
        except ImportError:
            raise _lacking("pandas", "pip install pandas") from None
        gaps = {int: "Int64", bool: "boolean"}  # types that keep integers and booleans in a column that contains None
        return library.DataFrame(
            {
                name: library.array(cells, dtype=gaps[kind]) if (kind := _kind(cells)) in gaps else cells
                for name, cells in self.columns.items()
            }
        )

    def to_polars(self) -> polars.DataFrame:
        """Convert the table to a polars dataframe. Raises AutotuneError if polars is not installed."""
        try:
            import polars as library
        except ImportError:
            raise _lacking("polars", "pip install polars") from None
        return library.DataFrame(dict(self.columns))


def table(records: Iterable[Record]) -> Table:
    """Make a table from records, with one row per trial, best kernel or parameter of an importance.

    Like in Optuna's dataframes, a config's parameters become columns `params_NAME`. If a parameter has both numbers and
    words as values, its column contains words.
    """
    rows = [row for record in records for row in _rows(record)]
    names = dict.fromkeys(name for row in rows for name in row)
    return Table({name: _of_one_type([row.get(name) for row in rows]) for name in names})


def _lacking(what: str, command: str) -> AutotuneError:
    return AutotuneError(f"{what} is not installed: {command}")


def _rows(record: Record) -> list[dict[str, Cell]]:
    match record:
        case TrialRow():
            return [_trial(record)]
        case BestRow():
            of_best: dict[str, Cell] = {
                "layer": record.name,
                "match": record.match,
                "decided_by": record.decided_by,
                "median_us": record.median_us,
                "gflops": record.gflops,
            }
            return [of_best | {key: value for key, value in _trial(record.row).items() if key not in of_best}]
        case FamilyImportance():
            family: dict[str, Cell] = {
                "layer": record.layer,
                "device": record.device,
                "template": record.template,
                "trials": record.found.trials,
            }
            return [family | {"parameter": name, "importance": share} for name, share in record.found.params]
    raise AutotuneError(f"{type(record).__name__}: expected trials, best kernels or importances")


_NOT_IN_FRAMES = ROOFLINE_KEYS | {"config", "date"}


def _trial(row: TrialRow) -> dict[str, Cell]:
    trial = cells_of(row)
    cells = {c.key: c.value(trial) for c in TRIAL_COLUMNS if c.key not in _NOT_IN_FRAMES}
    cells |= {"started_at": row.started_at, "ended_at": row.ended_at}
    return cells | {f"params_{name}": value for name, value in row.trial.config.pairs}


def _kind(cells: Sequence[Cell]) -> type[object]:
    return next((type(cell) for cell in cells if cell is not None), type(None))


def _of_one_type(cells: Sequence[Cell]) -> Sequence[Cell]:
    kinds = {type(cell) for cell in cells if cell is not None}
    if len(kinds) < 2:
        return cells
    make: Callable[[Cell], Cell] = float if kinds == {int, float} else str  # type: ignore[assignment]
    return [None if cell is None else make(cell) for cell in cells]
