"""`autotune.export`: choose kernels from a results database, write them as a library, and build and test it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from autotune.analysis.networks import stored_study
from autotune.api.answers import devices_asked, dispatcher_of, latest_dispatchers
from autotune.api.device_names import Say, binary_cache, first_gpu
from autotune.api.sanitizers import sanitizer_here
from autotune.api.study_names import as_study, check_layer_names, matches, name_of
from autotune.api.untuned import opened_results, selected_kernel, untuned_kernels
from autotune.atomic_write import folder_named
from autotune.devices.device import DeviceInfo
from autotune.devices.host_machine import usable_cores
from autotune.dispatch.dispatcher import Dispatcher
from autotune.errors import AutotuneError, DeviceError, StoreError, ToolchainError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting import Exported, export_library
from autotune.exporting.kernel import stem
from autotune.exporting.proof import prove, runs_on
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_recorded_templates, load_templates
from autotune.problem import Layer
from autotune.store import BestRow, DispatcherRow, Store
from autotune.study import ADMITTED, Study, distinct_layers, operations_of


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of `export`: an exported library."""

    folder: Path
    """the folder of the library"""
    sources: tuple[Path, ...]
    """the `.cu` files of the kernels"""
    left_out: Mapping[str, str]
    """layers of the study that the library does not support, each with the reason"""
    proof: tuple[str, ...] = ()
    """output of building and testing the folder, as in proof.txt; empty with `proof=False`"""


def export(
    what: Study | str | Path,
    out: str | Path,
    *,
    db: str | Path = "autotune.db",
    device: str | None = None,
    layers: Sequence[str] = (),
    op: str | None = None,
    accuracy: str | None = None,
    admit: str | None = None,
    dispatcher: bool = False,
    untuned: bool = False,
    archs: Sequence[int] = (),
    templates: Sequence[str | Path] = (),
    proof: bool = True,
) -> ExportResult:
    """Write the best kernel of each layer of a study, or of one layer, as a library; then build and test it.

    `device` (cuda, host, null, replay, or part of a recorded device's name) is the device on which the kernels were
    tuned. `layers` and `op` (an operation's name) select layers; an export contains kernels of only one operation.
    `accuracy` selects kernels of one accuracy class, and `admit` the fastest kernel that a study with this accuracy
    admits. With `dispatcher`, the export contains the kernels chosen by the study's dispatcher. With `untuned`, layers
    without results get the config that the cost model predicts to be fastest, and `db` need not exist. `archs` are
    compute capabilities times ten, by default the device's own. `templates` are folders that contain a folder for each
    operation.

    Raises StoreError if there is nothing to export or the folder can't be written, DeviceError if the database has no
    results from the device, ProofFailed (an AutotuneError) if the library is wrong or slower than the tuned kernels,
    and ToolchainError if the library can't be built.
    """
    written = write_export(
        what,
        folder_named(out, "--out"),
        str(db),
        request=ExportRequest(device, tuple(layers), accuracy, admit, dispatcher=dispatcher, op=op, untuned=untuned),
        archs=archs,
        templates=tuple(map(Path, templates)),
    )
    lines = tuple(proof_of(written)) if proof else ()
    return ExportResult(written.exported.folder, written.exported.sources, written.left_out, lines)


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Which kernels of a study or layer to export. Raises AutotuneError if options contradict each other."""

    device: str | None = None
    """the device that the kernels were tuned on: a kind, or a part of a recorded device's name"""
    layers: tuple[str, ...] = ()
    accuracy: str | None = None
    admit: str | None = None
    dispatcher: bool = False
    op: str | None = None
    """the operation of the layers to export; None: layers of every operation"""
    untuned: bool = False
    """whether layers without results get the config that is predicted to be fastest"""

    def __post_init__(self) -> None:
        chosen = [f"--{name}" for name in ("untuned", "dispatcher", "accuracy", "admit") if getattr(self, name)]
        if len(chosen) > 1:
            raise AutotuneError(f"{' and '.join(chosen)}: give only one of them; each selects kernels differently")
        if self.admit is not None and self.admit not in ADMITTED:
            raise AutotuneError(f"--admit {self.admit}: expected one of {', '.join(ADMITTED)}")

    def admits(self, name: str, layer: Layer) -> bool:
        """Return whether the export includes a layer, given as `study.layer`."""
        return matches(name, self.layers) and self.op in (None, layer.problem.operation.name)

    def __str__(self) -> str:
        options = {"device": self.device, "layer": " --layer ".join(self.layers), "op": self.op}
        options |= {"accuracy": self.accuracy, "admit": self.admit}
        return " ".join(f"--{key} {word}" for key, word in options.items() if word)


@dataclass(frozen=True, slots=True)
class WrittenExport:
    """An export that has been written but not yet proven."""

    exported: Exported
    left_out: Mapping[str, str]
    families: Mapping[str, KernelTemplate]
    """the installed families and the families of the given folders"""
    origins: Mapping[str, str] = field(default_factory=dict)
    """`study.layer` to the origin of the layer's kernel; only for an untuned export"""


@dataclass(frozen=True, slots=True)
class _Selection:
    rows: Sequence[BestRow]
    dispatcher: Dispatcher | None = None
    left_out: dict[str, str] = field(default_factory=dict)


def write_export(
    what: Study | str | Path,
    out: Path,
    db: str,
    *,
    request: ExportRequest,
    archs: Sequence[int],
    templates: Sequence[Path] = (),
    say: Say = lambda *_: None,
) -> WrittenExport:
    """Choose the kernels and write their folder.

    `say` is called with the chosen device. Raises the same errors as `export`.
    """
    if request.untuned:
        return _write_untuned(what, out, db, request, tuple(archs), tuple(templates), say)
    name = name_of(what, templates) or ""
    with Store(db, create=False) as store:
        devices = devices_asked(store, request.device, say=say)
        check_layer_names(request.layers, store.studies.layers(name), name, db)
        selected = _selected(store, name, db, request, devices)
        if not selected.rows:
            why = f" with {request}; leave that out, or" if str(request) else ";"
            raise StoreError(f"{db}: no kernel of {name} to export{why} {store.best.advice(name)}")
        recorded = (row.layer.problem.operation for row in selected.rows)
        families = load_recorded_templates(templates, recorded, None if isinstance(what, Study) else what)
        studies = {name: stored_study(store, name) for name in {row.study for row in selected.rows}}
        exported = export_library(
            [selected_kernel(store, row, studies[row.study], db, families) for row in selected.rows],
            out,
            tuple(archs),
            dispatcher=selected.dispatcher,
        )
    return WrittenExport(exported, selected.left_out, families)


def _write_untuned(
    what: Study | str | Path,
    out: Path,
    db: str,
    request: ExportRequest,
    archs: Sequence[int],
    templates: Sequence[Path],
    say: Say,
) -> WrittenExport:
    """Write a study's recorded kernels, and predicted ones for layers without any."""
    study = as_study(what, db, templates)
    operations = operations_of(study)
    families = load_templates(templates, operations, of={each.name for each in operations})
    layers = [layer for layer in distinct_layers(study.layers) if request.admits(f"{study.name}.{layer.name}", layer)]
    with opened_results(db, request.device, say) as results:
        untuned = untuned_kernels(study, layers, families, results)
    if not untuned.kernels:
        why = "; ".join(untuned.left_out.values()) or f"no layer with {request}"
        raise StoreError(f"{study.name}: no kernel to export: {why}")
    exported = export_library(untuned.kernels, out, archs)
    return WrittenExport(exported, untuned.left_out, families, untuned.origins)


def _selected(
    store: Store, what: str, db: str, request: ExportRequest, devices: Sequence[DeviceInfo] | None
) -> _Selection:
    """Select the recorded kernels on these devices, or on any device if `devices` is None."""
    if request.dispatcher:
        made = latest_dispatchers(store, [row.layer for row in store.studies.layers(what)], devices, what)[0]
        dispatcher = dispatcher_of(store, made)
        return _dispatched(store, made, dispatcher, request.layers)
    rows = _best(store, what, request, devices)
    rows = _fastest(rows, ADMITTED[request.admit]) if request.admit else rows
    wanted = {row.name for row in store.studies.layers(what) if request.admits(row.name, row.layer)}
    missing = wanted - {row.name for row in rows}
    return _Selection(rows, None, dict.fromkeys(sorted(missing), f"no such kernel in {db}"))


def _best(store: Store, what: str, request: ExportRequest, devices: Sequence[DeviceInfo] | None) -> Sequence[BestRow]:
    """Return the best kernels for one GPU and, for layers that have none, kernels from other devices.

    If several kernels would get the same file name, only the first one is returned.
    """
    on = None if devices is None else {info.identity for info in devices}
    recorded = store.best.list(what, accuracy=request.accuracy)
    rows = [
        row for row in recorded if (on is None or row.row.device.identity in on) and request.admits(row.name, row.layer)
    ]
    gpus = list(dict.fromkeys(row.row.device for row in rows if row.row.device.can.gpu))
    if len(gpus) > 1:
        names = ", ".join(info.name for info in gpus)
        raise StoreError(f"{what}: expected kernels of one GPU; the database has {names}: name it with --device")
    on_gpu = {row.name for row in rows if row.row.device in gpus}
    rows = [row for row in rows if row.row.device in gpus or row.name not in on_gpu]
    files: dict[str, BestRow] = {}
    for row in rows:
        trial = row.row.trial
        file = stem(row.name, row.row.device, trial.accuracy, deterministic=trial.deterministic)
        files.setdefault(file, row)  # kernels for a cold cache precede kernels for a hot cache
    return list(files.values())


def _fastest(rows: Sequence[BestRow], classes: Collection[str]) -> Sequence[BestRow]:
    """Return each layer's fastest kernel in these accuracy classes.

    Only kernels in the same measurement mode as the layer's first one are compared.
    """
    layers: dict[str, list[BestRow]] = {}
    for row in rows:
        if row.row.trial.accuracy in classes:
            layers.setdefault(row.name, []).append(row)
    return [
        min(
            (row for row in same if row.row.measurement_mode == same[0].row.measurement_mode),
            key=lambda row: row.median_us,
        )
        for same in layers.values()
    ]


def _dispatched(store: Store, made: DispatcherRow, dispatcher: Dispatcher, layers: Sequence[str]) -> _Selection:
    """Return the trials behind a dispatcher's kernels for these layers, and the layers without such a trial."""
    configs = {kernel.name: kernel.config for kernel in dispatcher.all_kernels}
    rows, left_out = [], {}
    for one in (layer for layer in made.layers if matches(f"{made.study}.{layer.layer.name}", layers)):
        trials = [
            row
            for row in store.trials.list(one.layer.problem, outcome="correct", generations="all")
            if one.kernel is not None
            and row.trial.config == configs[one.kernel]
            and (row.device.identity, row.measurement_mode) == (made.device.identity, made.measurement_mode)
        ]
        if trials:
            latest = trials[-1]
            assert latest.trial.timing is not None  # noqa: S101 - a correct trial has one
            rows.append(BestRow(made.study, one.layer, latest.trial.timing, "median", latest))
        else:
            why = (
                "no kernel of the dispatcher supports it" if one.kernel is None else "its kernel was not measured on it"
            )
            left_out[f"{made.study}.{one.layer.name}"] = why
    return _Selection(rows, dispatcher, left_out)


def proof_of(written: WrittenExport, *, stage: Callable[[str], None] = lambda _: None) -> Iterator[str]:
    """Prove a folder on the first CUDA device, or on the CPU if the library doesn't support it, and yield lines of
    output.

    `stage` is called at the beginning of each stage of the proof.
    """
    exported = written.exported
    with ExitStack() as opened:
        device: DeviceEvaluator | str
        try:
            device = first_gpu(usable_cores())
        except DeviceError as error:
            device = str(error)
        else:
            opened.callback(device.close)
            if not runs_on(exported, device.info):
                archs = ", ".join(f"sm_{arch}" for arch in exported.archs)
                device = f"the library is for {archs} and not for {device.info.name}"
        try:
            sanitizer, not_run = sanitizer_here(usable_cores(), gpu=not isinstance(device, str))
            if not isinstance(sanitizer, str):
                opened.callback(sanitizer.close)
            yield from prove(
                exported,
                device,
                sanitizer,
                not_run=not_run,
                families=written.families,
                stage=stage,
                cache=binary_cache(),
            )
        except (ToolchainError, DeviceError) as error:
            raise type(error)(f"{error}; or leave the proof out with --no-proof") from None
