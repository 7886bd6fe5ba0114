"""`watch`: the progress of a study that another process tunes, read from its database and lock."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.api.study_names import name_of
from autotune.cli.options import DATABASE, SECONDS, studies_and_layers
from autotune.cli.tables import console
from autotune.columns import Cells
from autotune.study import distinct_layers
from autotune.trial import Outcome

_LONG_AGO_S = 3600  # after this long, a date is more useful than a number of seconds


@click.command()
@click.argument("what", metavar="STUDY", shell_complete=studies_and_layers)
@DATABASE
@click.option("--every", "every_s", type=SECONDS, default=2.0, show_default=True, help="Seconds between updates.")
@click.option("--once", is_flag=True, help="Print the state once and exit.")
def watch(what: str, db: str, every_s: float, once: bool) -> None:
    """Show the progress of STUDY while another process tunes it.

    For each layer it shows the evaluations, the best time so far and the failures, and then the running trials. It only
    reads the database, so you can start and stop it at any time.
    """
    out = console()
    name = name_of(what) or what
    seen = _look(name, db)
    if once or not out.is_terminal:
        out.print(seen)
        return
    with Live(seen, console=out, auto_refresh=False) as shown:
        while True:
            time.sleep(every_s)
            shown.update(_look(name, db), refresh=True)


def _look(name: str, db: str) -> Group:
    from autotune.analysis.networks import stored_study
    from autotune.analysis.trial_rows import config_cell
    from autotune.api.run import latest_run_of
    from autotune.store import Store

    with Store(db, create=False) as store:
        rows = [row for row in store.results.list(name) if row["operation"] is not None]
        if not rows:
            return Group(Text(f"{name}: no trial yet"))
        newest = max(rows, key=lambda row: (row["origin"] == "measured", row["trial_id"]))
        study = stored_study(store, newest["study"])
        run = latest_run_of(store, study.name, store.devices.by_id()[newest["device_id"]])
        imported = newest["origin"] == "imported" and not store.best.list(name)
        advice = [Text(store.best.advice(name))] if imported else []
    groups: dict[tuple[str, str], list[Cells]] = {}
    for row in rows:
        groups.setdefault((row["layer"] or "", _where(row)), []).append(row)
    trials, total = (study.trials, study.trials_total) if run is None else (run.budget.trials, run.budget.trials_total)
    here = [group for (_, where), group in groups.items() if where == _where(newest)]
    layers = len(distinct_layers(study.layers)) if name == study.name else 0
    budget = (layers and total) or trials * max(layers, len(here))
    state = "" if run is None else ", running" if run.is_running else ", not running"
    head = (
        f"{name} on {newest['device']}: {_of(sum(map(_evaluated, here)), budget)} evaluations{state}, "
        f"last trial {_when(here)}"
    )
    word = "running" if run is None or run.is_running else "cut off"
    running = [
        Text(
            f"{word}: {row['layer']} trial {row['number']}, {config_cell(row['template'], row['config'])}", style="dim"
        )
        for row in rows
        if row["outcome"] == Outcome.RUNNING
    ]
    return Group(Text(head), _table(groups, trials), *running, *advice)


def _where(row: Cells) -> str:
    """The device, and whether the trial was copied from another database."""
    return f"{row['device']}, imported" if row["origin"] == "imported" else str(row["device"])


def _evaluated(trials: Sequence[Cells]) -> int:
    """Number of distinct compiled configs, which the budget counts."""
    return len({row["source_hash"] for row in trials if row["outcome"] != Outcome.RUNNING} - {None})


def _when(layers: Sequence[Sequence[Cells]]) -> str:
    """When the last trial ended, or began if none has ended."""
    last = max(datetime.fromisoformat(row["ended_at"] or row["started_at"]) for trials in layers for row in trials)
    ago_s = max((datetime.now(UTC) - last).total_seconds(), 0)
    return f"ended {ago_s:.0f} s ago" if ago_s < _LONG_AGO_S else f"on {last:%Y-%m-%d %H:%M}"


def _of(done: int, budget: int) -> str:
    """The count and the budget; a run may have another budget than its study."""
    return f"{done} of {budget}" if done <= budget else str(done)


def _table(groups: dict[tuple[str, str], list[Cells]], budget: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    several = len({where for _, where in groups}) > 1
    for key in ("layer", *(["device"] if several else []), "done", "best_us", "family", "failures"):
        table.add_column(key, justify="right" if key in ("done", "best_us") else "left", overflow="fold")
    for (layer, where), trials in groups.items():
        timed = [row for row in trials if row["median_us"] is not None]
        best = min(timed, key=lambda row: row["median_us"], default=None)
        failures = Counter(row["outcome"] for row in trials) - Counter({Outcome.CORRECT: len(trials)})
        table.add_row(
            Text(layer),
            *([Text(where)] if several else []),
            _of(_evaluated(trials), budget),
            f"{best['median_us']:.4g}" if best else "-",
            Text(best["template"] if best else "-"),
            ", ".join(f"{count} {outcome}" for outcome, count in failures.most_common() if outcome != Outcome.RUNNING)
            or "-",
        )
    return table
