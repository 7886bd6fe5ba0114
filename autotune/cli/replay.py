"""`replay`: run the search on recorded results, without a device, and score it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.api.device_names import jobs_default
from autotune.cli.tables import format_options, show
from autotune.columns import Column
from autotune.errors import StudyError, not_written
from autotune.study import SAMPLERS
from autotune.toml_table import is_whole

if TYPE_CHECKING:
    from autotune.replay.replay import Recorded, Run, Score

_LINE_EVERY_S = 10.0  # between two lines of progress
_MOST_EVALUATIONS = 100_000
_MOST_SEEDS = 10_000


def _budgets(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    """Whole numbers between commas."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not is_whole(word, 1, _MOST_EVALUATIONS):
            raise click.BadParameter(f"{word!r}: expected numbers from 1 to {_MOST_EVALUATIONS}, such as 50,100,200")
    return tuple(sorted({int(word) for word in words}))


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--sampler",
    "samplers",
    multiple=True,
    type=click.Choice(SAMPLERS),
    default=("default",),
    help="Search method; may be repeated.  [default: default]",
)
@click.option(
    "--evaluations", callback=_budgets, default="50,100,200", show_default=True, help="Budgets, separated by commas."
)
@click.option(
    "--seeds",
    type=click.IntRange(1, _MOST_SEEDS),
    default=20,
    show_default=True,
    help="Number of runs for each; their seeds are 0, 1, ...",
)
@click.option(
    "--in-flight",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Number of concurrent evaluations; the oldest ends first.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Number of parallel runs; default: one per core.")
@click.option("--trace", type=click.Path(path_type=Path), help="Write a JSON line per evaluation to this file.")
@format_options
def replay(
    files: tuple[Path, ...],
    samplers: tuple[str, ...],
    evaluations: tuple[int, ...],
    seeds: int,
    in_flight: int,
    jobs: int | None,
    trace: Path | None,
    style: str | None,
) -> None:
    """Score the search on recorded results; needs no GPU.

    The score is the best time found divided by the recorded optimum.

    FILE is a Kernel Tuner cache file, a T4 result file (both may be compressed with gzip) or a results database of
    autotune, in which each layer is a recording. The search proposes only configs that the file lists. A config that
    failed in the recording costs one evaluation.
    """
    from autotune.replay.recorded_trials import read_recordings
    from autotune.replay.replay import replay as run

    if trace is not None and any(trace.exists() and file.exists() and trace.samefile(file) for file in files):
        raise click.BadParameter(f"{trace} is one of the recordings.", param_hint="--trace")
    recordings = [recording for file in dict.fromkeys(files) for recording in read_recordings(file)]
    chosen = tuple(dict.fromkeys(samplers))
    progress = _Progress(len(recordings) * len(chosen) * seeds)
    with _tracing(trace) as write:

        def on_run(recorded: Recorded, run: Run) -> None:
            write(recorded, run)
            progress.add(run)

        scores = run(
            recordings,
            samplers=chosen,
            seeds=seeds,
            budgets=evaluations,
            in_flight=in_flight,
            jobs=min(jobs or jobs_default(), progress.total),
            on_run=on_run,
        )
    progress.end()
    show(scores, _COLUMNS, style)


@contextmanager
def _tracing(path: Path | None) -> Iterator[Callable[[Recorded, Run], None]]:
    """Writes the evaluations of each run to a file. Raises StudyError when it cannot be written."""
    from autotune.replay.replay import trace

    if path is None:
        yield lambda _recorded, _run: None
        return
    try:
        with path.open("w", encoding="utf-8") as file:

            def write(recorded: Recorded, run: Run) -> None:
                file.writelines(f"{json.dumps(entry)}\n" for entry in trace(recorded, run))

            yield write
    except OSError as error:
        raise StudyError(not_written(path, error, "give another file")) from None


class _Progress:
    """Print on standard error how many runs are done, and at the end how many proposals of the samplers
    were rejected.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._done = 0
        self._said = time.monotonic()
        self._refused: dict[str, tuple[int, int]] = {}

    def add(self, run: Run) -> None:
        """Count a run."""
        self._done += 1
        infeasible, repeated = self._refused.get(run.sampler, (0, 0))
        self._refused[run.sampler] = (infeasible + run.refused.infeasible, repeated + run.refused.repeated)
        now = time.monotonic()
        if now - self._said >= _LINE_EVERY_S:
            self._said = now
            print(f"{self._done}/{self.total} runs, now {run.sampler} on {run.file}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Print how many proposals were rejected."""
        for sampler, (infeasible, repeated) in self._refused.items():
            if infeasible or repeated:
                print(f"{sampler}: {infeasible} infeasible and {repeated} repeated proposals, free", file=sys.stderr)


_COLUMNS: Sequence[Column[Score]] = (
    Column("file", lambda row: row.file),
    Column("sampler", lambda row: row.sampler),
    Column("evaluations", lambda row: row.evaluations),
    Column("median", lambda row: row.median, digits=5),
    Column("p90", lambda row: row.p90, digits=5),
    Column("within_5_percent", lambda row: row.within_5_percent),
    Column("seconds_per_evaluation", lambda row: row.seconds_per_evaluation),
)
