"""`profile`: run the best kernels under Nsight Compute, or show stored profiles."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
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
from autotune.columns import Cells, Column, Shares, field_cells, key_columns
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


def _shown_stalls(row: Cells) -> Shares | None:
    stalls: Shares | None = row["stalls"]
    return stalls and Shares(stalls.numbers[:_STALLS_SHOWN])


COUNTER_COLUMNS = (
    *key_columns("entry"),
    *(Column(name, terminal=name in _SHOWN) for name in COUNTERS),
    Column("stalls", text=_shown_stalls),
    *key_columns("tool", hidden=True),
)
"""The columns of a launch's profile: the counters, and why warps stalled."""


def counter_cells(profile: KernelProfile | None) -> Cells:
    """Return the cells of COUNTER_COLUMNS, which are empty without a profile."""
    if profile is None:
        return dict.fromkeys(column.key for column in COUNTER_COLUMNS)
    return {**field_cells(profile), "stalls": Shares(profile.stalls)}


_COLUMNS = (
    *key_columns("layer"),
    *key_columns("accuracy", "device", "template", "config", hidden=True),
    *key_columns("occupancy"),
    *COUNTER_COLUMNS,
    *key_columns("profiled_at", "source_hash", hidden=True),
)


def _show(rows: Iterable[ProfileRow], style: str | None) -> None:
    from autotune.analysis.trial_rows import kernel_cells

    cells = ({**kernel_cells(row.row), **counter_cells(row.profile), "profiled_at": row.profiled_at} for row in rows)
    show(cells, _COLUMNS, style)


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
        _show(rows, style)
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
        _show(profile_kernels(store, ncu, device, evaluator, list(best.values()), families), style)


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
