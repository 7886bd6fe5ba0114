"""`sanitize`: run a database's best kernels under sanitizers, with small batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.api.sanitizers import open_sanitizer
from autotune.api.study_names import name_of
from autotune.checking.sanitize import ALL_TOOLS, FAULT, SMALL_N, Verdict, Winner
from autotune.cli.options import ACCURACY, DATABASE, DIRECTORIES, Folder, numbers_of, run_on, studies_and_layers
from autotune.cli.output import note
from autotune.cli.progress import counting
from autotune.cli.tables import format_options, show
from autotune.columns import Column, Items
from autotune.devices.host_machine import usable_cores
from autotune.errors import AutotuneError, StoreError, not_written
from autotune.escape import counted
from autotune.family.template_files import load_recorded_templates
from autotune.toml_table import LARGEST

if TYPE_CHECKING:
    from autotune.store import Store

_SMALL = ",".join(map(str, SMALL_N))
_COLUMNS = (
    Column[Verdict]("kernel", lambda verdict: verdict.kernel),
    Column[Verdict]("template", lambda verdict: verdict.template),
    Column[Verdict]("tool", lambda verdict: verdict.tool),
    Column[Verdict]("n", lambda verdict: Items(tuple(verdict.n))),
    Column[Verdict]("verdict", lambda verdict: verdict.word),
    Column[Verdict]("message", lambda verdict: verdict.message or None),
)


@click.command()
@click.argument("what", metavar="[STUDY|LAYER]", required=False, shell_complete=studies_and_layers)
@run_on("cuda:N or host:check", "the first CUDA device, or else host:check")
@click.option(
    "--n",
    "small_n",
    type=numbers_of("numbers of images, such as 1,9", 1, LARGEST),
    default=_SMALL,
    show_default=True,
    help="Numbers of images.",
)
@click.option(
    "--tool",
    "tools",
    type=click.Choice(ALL_TOOLS),
    multiple=True,
    help="Tool of compute-sanitizer; may be repeated. Default: all but synccheck.",
)
@DATABASE
@DIRECTORIES
@ACCURACY
@click.option("--jobs", type=click.IntRange(min=1), help="Number of parallel processes; default: one per core.")
@click.option("--logs", type=Folder(), help="Keep the logs of compute-sanitizer in this folder.")
@format_options
def sanitize(
    what: str | None,
    device: str | None,
    small_n: tuple[int, ...],
    tools: tuple[str, ...],
    db: str,
    directories: tuple[Path, ...],
    accuracy: str | None,
    jobs: int | None,
    logs: Path | None,
    style: str | None,
) -> None:
    """Run the best kernels under sanitizers, with few images.

    Sanitizers find errors that do not change the output on a GPU. The table has a row for each kernel and tool.

    On a GPU, the tools are compute-sanitizer's memcheck, racecheck and initcheck. On `host:check`, they are
    AddressSanitizer and a run with the threads in random order. If a tool finds a fault, autotune exits with 1. Known
    false alarms are listed with the reason.
    """
    from autotune.store import Store

    if logs is not None:
        try:
            logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(not_written(logs, error, "give another --logs")) from None
    with Store(db, create=False) as store:
        winners = _winners(store, what, db, accuracy, directories)
    sanitizer = open_sanitizer(
        device,
        jobs or usable_cores(),
        tools=tools,
        small_n=tuple(dict.fromkeys(small_n)),
        logs=logs,
        say=lambda name, why: note(f"device {name}: {why}"),
    )
    try:
        verdicts = _counted(sanitizer.check(winners), len(winners) * sanitizer.tool_count)
    finally:
        sanitizer.close()
    show(verdicts, _COLUMNS, style)
    counts = Counter(verdict.word for verdict in verdicts)
    note(f"{counted(len(winners), 'kernel')}: {', '.join(f'{count} {word}' for word, count in counts.items())}")
    if counts[FAULT]:
        raise AutotuneError(f"{db}: {counts[FAULT]} of {len(verdicts)} runs found a fault; the table says which")


def _counted(found: Iterator[Verdict], total: int) -> list[Verdict]:
    """Collect the verdicts while showing progress."""
    verdicts: list[Verdict] = []
    with counting("sanitize", total) as tell:
        tell(0, "compiling")
        for verdict in found:
            verdicts.append(verdict)
            counts = Counter(verdict.word for verdict in verdicts)
            tell(len(verdicts), ", ".join(f"{count} {word}" for word, count in counts.items()))
    return verdicts


def _winners(
    store: Store, what: str | None, db: str, accuracy: str | None, directories: tuple[Path, ...]
) -> list[Winner]:
    """Return the best kernels for devices that have a sanitizer, each kernel once."""
    from autotune.analysis.networks import stored_study
    from autotune.api.untuned import selected_kernel

    name = name_of(what, directories)
    rows = store.best.list(name, accuracy=accuracy)
    families = load_recorded_templates(directories, (row.layer.problem.operation for row in rows), what)
    studies = {name: stored_study(store, name) for name in {row.study for row in rows}}
    winners: dict[str, Winner] = {}
    for row in rows:
        if row.row.device.can.sanitize:
            chosen = selected_kernel(store, row, studies[row.study], db, families)
            family = families.get(chosen.source.config.template)
            winners.setdefault(chosen.source.hash, Winner(chosen.stem, chosen.source, chosen.bound, family))
    if not winners:
        raise StoreError(f"{db}: no correct kernel of {what or 'any layer'}; {store.best.advice(name)}")
    return list(winners.values())
