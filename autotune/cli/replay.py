"""`replay`: run the search on recorded results, without a device, and score it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.api.device_names import jobs_default
from autotune.cli.options import numbers_of
from autotune.cli.progress import LINE_EVERY_S, counting
from autotune.cli.tables import format_options, show
from autotune.columns import Column, attributes
from autotune.errors import StudyError, not_written
from autotune.study import SAMPLERS

if TYPE_CHECKING:
    from autotune.replay.replay import Recorded, Run, Score

_MOST_EVALUATIONS = 100_000
_MOST_SEEDS = 10_000


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
    "--evaluations",
    type=numbers_of(f"numbers from 1 to {_MOST_EVALUATIONS}, such as 50,100,200", 1, _MOST_EVALUATIONS),
    metavar="N[,N...]",
    default="50,100,200",
    show_default=True,
    help="Budgets, separated by commas.",
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
    total = len(recordings) * len(chosen) * seeds
    with _tracing(trace) as write, counting("replay", total, quiet_s=LINE_EVERY_S) as tell:
        runs = count(1)

        def on_run(recorded: Recorded, run: Run) -> None:
            write(recorded, run)
            tell(next(runs), f"now {run.sampler} on {run.file}")

        scores = run(
            recordings,
            samplers=chosen,
            seeds=seeds,
            budgets=tuple(sorted(set(evaluations))),
            in_flight=in_flight,
            jobs=min(jobs or jobs_default(), total),
            on_run=on_run,
        )
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


_COLUMNS: tuple[Column[Score], ...] = attributes(
    *("file", "sampler", "evaluations", "median", "p90", "within_5_percent", "seconds_per_evaluation"), digits=5
)
