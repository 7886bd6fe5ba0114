"""Records -> frames and charts: pandas, polars and Altair, if they are installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from types import ModuleType
from typing import TYPE_CHECKING

from autotune.analysis.trial_columns import ROOFLINE_KEYS, TRIAL_COLUMNS
from autotune.analysis.trial_rows import cells_of
from autotune.api.family_importance import FamilyImportance
from autotune.columns import Cell
from autotune.errors import AutotuneError
from autotune.escape import printable
from autotune.store import BestRow, TrialRow

if TYPE_CHECKING:
    import altair
    import pandas
    import polars

Record = TrialRow | BestRow | FamilyImportance

_WIDTH, _HEIGHT = 560, 260  # size of a chart, pixels


@dataclass(frozen=True, slots=True)
class Table:
    """Records as rows with the same columns, ready to become a frame."""

    columns: Mapping[str, Sequence[Cell]]
    """columns, each of one type; None for a record without the value"""

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas frame. Raises AutotuneError if pandas is not installed."""
        try:
            import pandas as library
        except ImportError:
            raise _lacking("pandas", "pip install pandas") from None
        gaps = {int: "Int64", bool: "boolean"}  # keeps integers and booleans next to None
        return library.DataFrame(
            {
                name: library.array(cells, dtype=gaps[kind]) if (kind := _kind(cells)) in gaps else cells
                for name, cells in self.columns.items()
            }
        )

    def to_polars(self) -> polars.DataFrame:
        """A polars frame. Raises AutotuneError if polars is not installed."""
        try:
            import polars as library
        except ImportError:
            raise _lacking("polars", "pip install polars") from None
        return library.DataFrame(dict(self.columns))


def table(records: Iterable[Record]) -> Table:
    """A row for each trial or best kernel, for each parameter of an importance.

    Parameters of a config are columns `params_NAME`, as in Optuna's frames; a parameter with both
    numbers and words becomes a column of words.
    """
    rows = [row for record in records for row in _rows(record)]
    names = dict.fromkeys(name for row in rows for name in row)
    return Table({name: _of_one_type([row.get(name) for row in rows]) for name in names})


def convergence(trials: Iterable[TrialRow]) -> altair.FacetChart:
    """Every correct trial and the best so far by evaluation, for each layer and device; an Altair chart.

    Trials in the order in which they were tried, as `Store.trials.list` gives them.
    """
    values: list[dict[str, Cell]] = []
    evaluations: dict[str, int] = {}
    least: dict[str, float] = {}
    for row in trials:
        if not row.trial.compiled:
            continue
        of = _shown(f"{row.name} on {row.device.name}")
        evaluations[of] = evaluations.get(of, 0) + 1
        if row.median_us is None:
            continue
        least[of] = min(row.median_us, least.get(of, row.median_us))
        tried: dict[str, Cell] = {
            "of": of,
            "evaluation": evaluations[of],
            "template": _shown(row.trial.config.template),
        }
        config = _shown(str(row.trial.config))
        values.append(tried | {"median_us": row.median_us, "best_us": least[of], "config": config})
    library = _altair()
    x = library.X("evaluation:Q", title="evaluations")
    scale = library.Scale(type="log", zero=False, nice=False)
    base = library.Chart().properties(width=_WIDTH, height=_HEIGHT)
    trial = base.mark_circle(size=22).encode(
        x=x,
        y=library.Y("median_us:Q", scale=scale, title="median, us"),
        color=library.Color("template:N", title="family"),
        tooltip=["median_us:Q", "config:N"],
    )
    line = base.mark_line(interpolate="step-after", color="black").encode(x=x, y=library.Y("best_us:Q", scale=scale))
    return _facets(library.layer(trial, line, data=library.Data(values=values)))


def importance(families: Iterable[FamilyImportance]) -> altair.FacetChart:
    """The importance of each parameter as a bar, for each layer and family; an Altair chart."""
    values = [
        {
            "of": _shown(f"{family.layer} on {family.device}: {family.template}"),
            "parameter": _shown(name),
            "importance": share,
        }
        for family in families
        for name, share in family.found.params
    ]
    library = _altair()
    bars = library.Chart(library.Data(values=values)).mark_bar().properties(width=_WIDTH)
    return _facets(
        bars.encode(
            x=library.X("importance:Q", axis=library.Axis(format="%")),
            y=library.Y("parameter:N", sort="-x", title=None),
            tooltip=["parameter:N", library.Tooltip("importance:Q", format=".1%")],
        )
    )


def _shown(text: str) -> str:
    """Escape a text for a chart. Altair puts it into a script of the page, which `</script>` would end."""
    return printable(text).replace("<", "\\x3c")


def _facets(chart: altair.Chart | altair.LayerChart) -> altair.FacetChart:
    """A chart for each value of `of`, stacked, each with its own axes."""
    return chart.facet(facet=_altair().Facet("of:N", title=None), columns=1).resolve_scale(
        x="independent", y="independent"
    )


def _altair() -> ModuleType:
    try:
        import altair as library
    except ImportError:
        raise _lacking("altair", "pip install 'autotune-conv[notebook]'") from None
    found: ModuleType = library
    return found


def _lacking(what: str, command: str) -> AutotuneError:
    return AutotuneError(f"{what} is not installed: {command}")


@singledispatch
def _rows(record: Record) -> list[dict[str, Cell]]:
    raise AutotuneError(f"{type(record).__name__}: expected trials, best kernels or importances")


@_rows.register
def _(row: TrialRow) -> list[dict[str, Cell]]:
    return [_trial(row)]


@_rows.register
def _(best: BestRow) -> list[dict[str, Cell]]:
    of_best: dict[str, Cell] = {
        "layer": best.name,
        "match": best.match,
        "decided_by": best.decided_by,
        "median_us": best.median_us,
        "gflops": best.gflops,
    }
    return [of_best | {key: value for key, value in _trial(best.row).items() if key not in of_best}]


@_rows.register
def _(family: FamilyImportance) -> list[dict[str, Cell]]:
    return [
        {
            "layer": family.layer,
            "device": family.device,
            "template": family.template,
            "trials": family.found.trials,
            "parameter": name,
            "importance": share,
        }
        for name, share in family.found.params
    ]


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
