"""`profile`: run the best kernels under Nsight Compute, or show stored profiles."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.analysis.profile import COUNTERS
from autotune.api.study_names import name_of
from autotune.cli.options import ACCURACY, DATABASE, DIRECTORIES, open_filled, refuse_with, run_on, studies_and_layers
from autotune.cli.output import note
from autotune.cli.run import open_evaluator
from autotune.cli.tables import format_options, show
from autotune.columns import Column, Row, Shares, attributes
from autotune.compilation.toolchain import find_ncu
from autotune.devices.host_machine import usable_cores
from autotune.errors import DeviceError, StoreError
from autotune.family.template_files import load_recorded_templates

if TYPE_CHECKING:
    from autotune.devices.device import DeviceInfo
    from autotune.evaluation.evaluator import Evaluator
    from autotune.family.template import KernelTemplate
    from autotune.store import ProfileRow, Store, TrialRow
    from autotune.trial import KernelProfile

_SHOWN = {
    *("time_us", "achieved_occupancy", "load_efficiency_fraction", "store_efficiency_fraction"),
    *("shared_efficiency_fraction", "dram_read_bytes", "dram_written_bytes", "fma_utilisation_fraction"),
    *("tensor_utilisation_fraction", "l1_hit_fraction", "l2_hit_fraction", "sm_throughput_fraction"),
}
"""the counters to show on a terminal"""
_STALLS_SHOWN = 3  # number of stall reasons to show on a terminal


def _profile_of(row: ProfileRow) -> KernelProfile:
    return row.profile


def counter_columns(profile_of: Callable[[Row], KernelProfile | None]) -> tuple[Column[Row], ...]:
    """Return the columns of a launch's profile: the counters, and why warps stalled."""

    def stalls(row: Row, most: int | None = None) -> Shares | None:
        found = profile_of(row)
        return None if found is None else Shares(found.stalls[:most])

    return (
        *attributes("entry", *COUNTERS, of=profile_of, hidden=COUNTERS.keys() - _SHOWN),
        Column("stalls", stalls, text=lambda row: stalls(row, _STALLS_SHOWN)),
        *attributes("tool", of=profile_of, hidden=("tool",)),
    )


_COLUMNS = (
    Column["ProfileRow"]("layer", lambda row: row.row.name),
    Column["ProfileRow"]("accuracy", lambda row: row.row.trial.accuracy, terminal=False),
    Column["ProfileRow"]("device", lambda row: row.row.device.name, terminal=False),
    Column["ProfileRow"]("template", lambda row: row.row.trial.config.template, terminal=False),
    Column["ProfileRow"]("config", lambda row: row.row.trial.config, terminal=False),
    Column["ProfileRow"]("occupancy", lambda row: row.row.trial.occupancy),
    *counter_columns(_profile_of),
    Column["ProfileRow"]("profiled_at", lambda row: row.profiled_at, terminal=False),
    Column["ProfileRow"]("source_hash", lambda row: row.row.trial.source_hash, terminal=False),
)


@click.command()
@click.argument("what", metavar="LAYER|STUDY", shell_complete=studies_and_layers)
@run_on("cuda:N", "the first CUDA device")
@DATABASE
@DIRECTORIES
@ACCURACY
@click.option("--stored", is_flag=True, help="Print the stored profiles; run nothing.")
@format_options
def profile(
    what: str,
    device: str | None,
    db: str,
    directories: tuple[Path, ...],
    accuracy: str | None,
    stored: bool,
    style: str | None,
) -> None:
    """Run the best kernel of LAYER under Nsight Compute.

    The metrics of each launch are stored and printed.

    This requires `ncu`, which is part of the CUDA toolkit, and permission to read the GPU's counters.
    """
    from autotune.store import Store

    name = name_of(what, directories)  # raises for an invalid study file before anything else
    if stored:
        refuse_with("--stored", "device")
        with Store(db, create=False) as store:
            rows = [row for row in store.profiles.list(name) if accuracy in (None, row.row.trial.accuracy)]
        if not rows:
            made = shlex.join(["autotune", "profile", what])
            raise StoreError(f"{db}: no profile of {what} is stored; `{made}` makes one")
        show(rows, _COLUMNS, style)
        return
    ncu = find_ncu()
    with open_filled(db) as store, closing(open_evaluator(device, usable_cores())) as evaluator:
        info = evaluator.info
        require_profiler(info)
        found = store.best.list(name, kind=info.kind, accuracy=accuracy)
        best = {row.row.trial.source_hash: row.row for row in found if row.row.device.identity == info.identity}
        if not best:
            advice = store.best.advice(name, info)
            raise StoreError(f"{store.path}: no correct kernel of {what} on {info.name}; {advice}")
        families = load_recorded_templates(directories, (row.problem.operation for row in best.values()), what)
        show(profile_kernels(store, ncu, device, evaluator, list(best.values()), families), _COLUMNS, style)


def profile_kernels(
    store: Store,
    ncu: Path,
    device: str | None,
    evaluator: Evaluator,
    rows: Sequence[TrialRow],
    families: Mapping[str, KernelTemplate],
) -> list[ProfileRow]:
    """Compile kernels, close the evaluator, and profile the kernels; store and return their profiles.

    The evaluator is closed so that nothing else uses the device in the meantime.
    """
    from autotune.analysis.profile import Profiler, compiled, profile_trials

    profiler = Profiler(ncu)
    with closing(evaluator):
        info, environment = evaluator.info, evaluator.environment
        kernels = compiled(store, evaluator, rows, families, note)
    name = "cuda:0" if device in (None, "all") else device.split(",")[0]
    return profile_trials(store, profiler, kernels, device=name, info=info, environment=environment, say=note)


def require_profiler(info: DeviceInfo) -> None:
    """Raise DeviceError if Nsight Compute doesn't support the device."""
    if not info.can.profile:
        raise DeviceError(f"{info.kind}: Nsight Compute profiles CUDA devices only; give --device cuda:N")
