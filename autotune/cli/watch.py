"""`watch`: the progress of a study that another process tunes, read from its database and lock."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.api.study_names import name_of
from autotune.cli.options import DATABASE, SECONDS, studies_and_layers
from autotune.cli.tables import console, sparkline
from autotune.study import distinct_layers
from autotune.trial import Outcome

if TYPE_CHECKING:
    from autotune.store import TrialRow
    from autotune.study import Study
    from autotune.tuning.study_lock import LatestRun, RunBudget

_FALL = 16  # characters of the convergence of a layer
_LONG_AGO_S = 3600  # after this long, a date is more useful than a number of seconds


@click.command()
@click.argument("what", metavar="STUDY", shell_complete=studies_and_layers)
@DATABASE
@click.option("--every", "every_s", type=SECONDS, default=2.0, show_default=True, help="Seconds between updates.")
@click.option("--once", is_flag=True, help="Print the state once and exit.")
def watch(what: str, db: str, every_s: float, once: bool) -> None:
    """Show the progress of STUDY while another process tunes it.

    It shows the best kernels so far, the running trial, failures and the time left. It only reads the database, so you
    can start and stop it at any time. It shows the time left only while the study is being tuned on this machine.
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


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer's trials on one device: either those tuned into this database, or those copied from another."""

    trials: Sequence[TrialRow]

    @property
    def where(self) -> str:
        """The device, and whether the trials were copied from another database."""
        (row, *_) = self.trials
        return f"{row.device.name}, imported" if row.origin == "imported" else row.device.name

    @property
    def evaluated(self) -> int:
        """Number of distinct compiled configs, which the budget counts."""
        return len({row.trial.source_hash for row in self.trials if row.trial.compiled})

    @property
    def timed(self) -> list[float]:
        """Times of correct trials, in order."""
        return [us for row in self.trials if (us := row.median_us)]

    @property
    def failures(self) -> str:
        """Number of failed trials by outcome."""
        counted = Counter(row.trial.outcome.value for row in self.trials if row.trial.outcome not in _NO_FAILURES)
        return ", ".join(f"{number} {outcome}" for outcome, number in counted.most_common()) or "-"


_NO_FAILURES = (Outcome.CORRECT, Outcome.RUNNING)


def _look(name: str, db: str) -> Group:
    from autotune.analysis.networks import stored_study
    from autotune.api.run import latest_run_of
    from autotune.store import Store

    with Store(db, create=False) as store:
        rows = store.trials.list(name)
        study = stored_study(store, rows[0].study) if rows else None
        imported = bool(rows) and all(row.origin == "imported" for row in rows)
        advice = store.best.advice(name) if imported and not store.best.list(name) else ""
        run = None if study is None else latest_run_of(store, study.name, _newest(rows).device)
    if study is None:
        return Group(Text(f"{name}: no trial yet"))
    groups: dict[tuple[str, str, str], list[TrialRow]] = {}
    for row in rows:
        groups.setdefault((row.name, row.device.name, row.origin), []).append(row)
    layers = [_Layer(sorted(of_one, key=lambda row: row.trial.number)) for of_one in groups.values()]
    trials = study.trials if run is None else run.budget.trials
    word = "running" if run is None or run.is_running else "cut off"
    running = [_running(row, word) for row in rows if row.trial.outcome == Outcome.RUNNING]
    below = [*running, *([Text(advice)] if advice else [])]
    return Group(Text(_headline(name, study, layers, run)), _table(layers, trials), *below)


def _newest(rows: Iterable[TrialRow]) -> TrialRow:
    """The newest trial; an imported one only if there are no others."""
    return max(rows, key=lambda row: (row.origin == "measured", row.id))


def _headline(name: str, study: Study, layers: Sequence[_Layer], run: LatestRun | None) -> str:
    """The progress on the device of the newest trial: the latest change, and how long the running trial still takes."""
    newest = _newest(row for layer in layers for row in layer.trials)
    device = _Layer([newest]).where
    here = [layer for layer in layers if layer.where == device]
    rows = [row for layer in here for row in layer.trials]
    done = sum(layer.evaluated for layer in here)
    all_layers = len(distinct_layers(study.layers)) if name == study.name else 0
    trials, total = (study.trials, study.trials_total) if run is None else (run.budget.trials, run.budget.trials_total)
    whole = (all_layers and total) or trials * max(all_layers, len(here))
    begun = min(row.started_at for row in rows)
    ended = max((row.ended_at for row in rows if row.ended_at), default=begun)
    spent_s = (ended - begun).total_seconds()
    parts = [f"{name} on {newest.device.name}: {_of(done, whole)} evaluations", f"{spent_s:.0f} s so far"]
    ago_s = max((datetime.now(UTC) - ended).total_seconds(), 0)
    if ago_s >= _LONG_AGO_S:
        return ", ".join((*parts, f"last trial on {ended:%Y-%m-%d %H:%M}"))
    if run is not None and not run.is_running:
        parts.append("not running")
    elif run is not None and (left_s := _left_s(run.budget, here, whole - done)) is not None:
        parts.append(f"about {left_s:.0f} s left" if left_s >= 0.5 else "finals")
    parts.append(f"last trial ended {ago_s:.0f} s ago")
    return ", ".join(parts)


def _left_s(budget: RunBudget, layers: Sequence[_Layer], due: int) -> float | None:
    """Estimated seconds until the run ends, or those left of its time budget. None before the first trial, 0 in the
    finals.
    """
    elapsed_s = time.time() - budget.started_at
    since = [
        _Layer(rows)
        for layer in layers
        if (rows := [row for row in layer.trials if row.started_at.timestamp() >= budget.started_at])
    ]
    done = sum(layer.evaluated for layer in since)
    left = [] if budget.time_budget_total_s is None else [max(budget.time_budget_total_s - elapsed_s, 0)]
    left += [0.0] if due <= 0 else [due * elapsed_s / done] if done else []
    return min(left, default=None)


def _of(done: int, whole: int) -> str:
    """The count and the budget; a run may have another budget than its study."""
    return f"{done} of {whole}" if done <= whole else str(done)


def _table(layers: Sequence[_Layer], budget: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    several = len({layer.where for layer in layers}) > 1
    for key in ("layer", *(["device"] if several else []), "done", "best_us", "family", "best so far", "failures"):
        table.add_column(key, justify="right" if key in ("done", "best_us") else "left", overflow="fold")
    for layer in layers:
        timed = [row for row in layer.trials if row.median_us]
        best = min(timed, key=lambda row: row.median_us or 0.0, default=None)
        table.add_row(
            Text(layer.trials[0].layer.name),
            *([Text(layer.where)] if several else []),
            _of(layer.evaluated, budget),
            f"{best.median_us:.4g}" if best and best.median_us else "-",
            Text(best.trial.config.template if best else "-"),
            sparkline(list(accumulate(layer.timed, min)), _FALL),
            layer.failures,
        )
    return table


def _running(row: TrialRow, word: str) -> Text:
    return Text(f"{word}: {row.layer.name} trial {row.trial.number}, {row.trial.config}", style="dim")
