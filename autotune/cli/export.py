"""`export`: write the best kernels as a library, and have it prove itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli.answers import ACCURACY, DATABASE, asked, undominated, with_roofline
from autotune.cli.choose import dispatcher_of
from autotune.cli.devices import first_gpu, jobs_default
from autotune.cli.sanitizers import sanitizer_here
from autotune.devices.device import devices_named
from autotune.dispatch.dispatcher import Dispatcher
from autotune.errors import DeviceError, StoreError, ToolchainError
from autotune.family.template import load_templates
from autotune.study import ADMITTED

if TYPE_CHECKING:
    from autotune.evaluation.evaluator import DeviceEvaluator
    from autotune.exporting import Chosen, Exported
    from autotune.store import BestRow, DispatcherRow, Store


def _archs(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Compute capabilities times ten, such as `80,90` or `sm_90`."""
    if text is None:
        return None
    words = [word.strip().removeprefix("sm_") for word in text.split(",")]
    if not all(word.isdecimal() and 50 <= int(word) <= 200 for word in words):
        raise click.BadParameter(f"{text!r}: expected compute capabilities times ten, such as 90 or 80,90")
    return tuple(dict.fromkeys(int(word) for word in words))


@click.command()
@click.argument("what", metavar="LAYER|STUDY")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write into; made when missing.")
@DATABASE
@click.option("--device", "kind", type=click.Choice(["cuda", "host", "null", "replay"]), help="Tuned there only.")
@click.option("--gpu", help="Tuned on this GPU only: its name or a part of it, where the database has several.")
@ACCURACY
@click.option("--admit", type=click.Choice(tuple(ADMITTED)), help="Only each layer's fastest that such a study admits.")
@click.option("--dispatcher", is_flag=True, help="What the study's dispatcher chooses for each layer: fewer configs.")
@click.option(
    "--arch", "archs", callback=_archs, metavar="ARCH", help="Compute capabilities, such as 80,90; default: its own."
)
@click.option("--cubin", is_flag=True, help="Write each kernel's machine code too.")
@click.option("--ptx", is_flag=True, help="Write each kernel's PTX too.")
@click.option("--proof/--no-proof", default=True, show_default=True, help="Build, test and time what was written.")
def export(
    what: str,
    out: Path,
    db: str,
    kind: str | None,
    gpu: str | None,
    accuracy: str | None,
    admit: str | None,
    dispatcher: bool,
    archs: tuple[int, ...] | None,
    cubin: bool,
    ptx: bool,
    proof: bool,
) -> None:
    """Write the best kernel of each layer as a `.cu` file that says where it comes from, and a library of them.

    Kernels tuned on a GPU come first; where a layer has none, one tuned on the host is written and marked. Then the
    folder is built and its self-test run, and on a CUDA device it is timed beside the tuner's own kernels. A library
    that is wrong or slower ends the command with status 1; proof.txt in the folder says so.
    """
    from autotune.compilation.toolchain import find_nvcc
    from autotune.exporting import export_library
    from autotune.exporting.build import images
    from autotune.store import Store

    if dispatcher and (accuracy or admit):
        option = "--accuracy" if accuracy else "--admit"
        raise click.UsageError(f"--dispatcher has chosen its kernels' accuracy classes; leave {option} out")
    if accuracy and admit:
        raise click.UsageError("--accuracy names one class, --admit chooses among several; leave one of them out")
    name = asked(what)
    with Store(db, create=False) as store:
        made = _dispatcher(store, name, db, kind=kind, gpu=gpu) if dispatcher else None
        chooses = dispatcher_of(store, made) if made else None
        if made is None or chooses is None:
            rows = _best(store, name, kind=kind, gpu=gpu, accuracy=accuracy)
            rows = _fastest(rows, ADMITTED[admit]) if admit else rows
        else:
            rows = list(_dispatched(store, made, chooses))
        if not rows:
            options = {"device": kind, "accuracy": accuracy, "admit": admit}
            asked_for = [f"--{key} {word}" for key, word in options.items() if word]
            why = f" with {' '.join(asked_for)}; leave that out or" if asked_for else ";"
            raise StoreError(f"{db}: no correct trial of {what} to export{why} run `autotune tune STUDY` first")
        kernels = [chosen_of(store, row, db) for row in rows]
        exported = export_library(
            kernels,
            out,
            archs or (),
            dispatcher=chooses,
            images=images(find_nvcc(), cubin=cubin, ptx=ptx) if cubin or ptx else None,
        )
        missing = {row.name for row in store.studies.layers(name)} - {row.name for row in rows}
        if made is None and missing:
            click.echo(f"left out, without such a kernel in {db}: {', '.join(sorted(missing))}", err=True)
        noise = {
            row.row.policy: floor.noise_fraction
            for row in rows
            if (floor := store.noise_floors.latest(row.row.device, row.row.policy))
        }
    for name in exported.written.edited:
        click.echo(f"{out / name}: left as it is, edited after the export that wrote it", err=True)
    for path in exported.sources:
        click.echo(path)
    if proof:
        _prove(exported, noise)


def _best(
    store: Store, what: str | None, *, kind: str | None, gpu: str | None, accuracy: str | None
) -> Sequence[BestRow]:
    """The best kernels of one GPU, and of what runs none for layers that no GPU has; each file's first."""
    from autotune.exporting.kernel import stem

    rows = store.best.list(what, kind=kind, accuracy=accuracy)
    gpus = list(dict.fromkeys(row.row.device for row in rows if row.row.device.kind == "cuda"))
    if gpu is not None:
        gpus = devices_named(gpu, gpus)
    if len(gpus) > 1 or (gpu is not None and not gpus):
        names = ", ".join(dict.fromkeys(row.row.device.name for row in rows if row.row.device.kind == "cuda")) or "none"
        why = "expected kernels of one GPU" if gpus else f"no kernel of a GPU named {gpu!r}"
        raise StoreError(f"{what}: {why}; the database has {names}{': name it with --gpu' if gpus else ''}")
    on_gpu = {row.name for row in rows if row.row.device in gpus}
    rows = tuple(row for row in rows if row.row.device in gpus or (not gpu and row.name not in on_gpu))
    files: dict[str, BestRow] = {}
    for row in undominated(rows):
        files.setdefault(stem(row), row)  # what was tuned for a cold cache comes before what was for a hot one
    return list(files.values())


def _fastest(rows: Sequence[BestRow], classes: Collection[str]) -> Sequence[BestRow]:
    """Each layer's fastest of these accuracy classes, among what was tuned as its first was."""
    layers: dict[str, list[BestRow]] = {}
    for row in rows:
        if row.row.trial.accuracy in classes:
            layers.setdefault(row.name, []).append(row)
    return [
        min((row for row in same if row.row.policy == same[0].row.policy), key=lambda row: row.median_us)
        for same in layers.values()
    ]


def _dispatcher(store: Store, what: str | None, db: str, *, kind: str | None, gpu: str | None) -> DispatcherRow:
    """The latest dispatcher of all layers of a study on a device."""
    rows = [row for row in store.dispatchers.list(what) if not row.held_out and kind in (None, row.device.kind)]
    if gpu is not None:
        rows = [row for row in rows if row.device in devices_named(gpu, [one.device for one in rows])]
    if not rows:
        raise StoreError(f"{db}: no dispatcher of all layers of {what}; run `autotune dispatch STUDY` first")
    return rows[0]


def _dispatched(store: Store, made: DispatcherRow, dispatcher: Dispatcher) -> Iterator[BestRow]:
    """The trials that a dispatcher's choices were measured in; layers that nothing serves are told."""
    from autotune.store import BestRow

    configs = {kernel.name: kernel.config for kernel in dispatcher.all_kernels}
    for one in made.layers:
        trials = [
            row
            for row in store.trials.list(one.layer.problem, outcome="correct", generations="all")
            if one.kernel is not None
            and row.trial.config == configs[one.kernel]
            and (row.device.identity, row.policy) == (made.device.identity, made.policy)
        ]
        if trials:
            latest = trials[-1]
            assert latest.trial.timing is not None  # noqa: S101 - a correct trial has one
            yield BestRow(made.study, one.layer, latest.trial.timing, "median", latest)
        else:
            why = "nothing of the dispatcher fits it" if one.kernel is None else "its kernel was not measured on it"
            click.echo(f"{made.study}.{one.layer.name} is left out: {why}", err=True)


def chosen_of(store: Store, row: BestRow, db: str) -> Chosen:
    """A recorded kernel with everything that its export needs."""
    from autotune.exporting import Chosen

    source = store.sources.get(row.row.trial.source_hash or "")
    if source is None:
        raise StoreError(f"{db}: the source of {row.name} is not in the database; tune it again")
    header = store.templates.header(source.config.template, row.row.template_hash)
    if not header:
        raise StoreError(f"{db}: the header of {source.config.template} is not in the database; tune {row.name} again")
    return Chosen(row, source, header, with_roofline(store, row).floor_us)


def _prove(exported: Exported, noise: Mapping[str, float]) -> None:
    """Prove a folder on the first CUDA device, where there is one that it is for, else on the CPU; say what is seen."""
    from autotune.exporting.proof import prove, runs_on

    with ExitStack() as opened:
        device: DeviceEvaluator | str
        try:
            device = first_gpu(jobs_default())
        except DeviceError as error:
            device = str(error)
        else:
            opened.callback(device.close)
            if not runs_on(exported, device.info):
                device = f"{device.info.name} is for none of {', '.join(f'sm_{arch}' for arch in exported.archs)}"
        try:
            sanitizer, not_run = sanitizer_here(jobs_default(), gpu=not isinstance(device, str))
            if not isinstance(sanitizer, str):
                opened.callback(sanitizer.close)
            lines = prove(
                exported,
                device,
                sanitizer,
                not_run=not_run,
                known_noise=lambda kernel: noise.get(kernel.row.row.policy, 0.0),
                families=load_templates(()),
            )
            for line in lines:
                click.echo(line, err=True)
        except (ToolchainError, DeviceError) as error:
            raise type(error)(f"{error}; or leave the proof out with --no-proof") from None
