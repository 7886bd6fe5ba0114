"""trials -> Nsight Compute -> counters of kernel launches: occupancy, efficiency, traffic, stalls.

`ncu` runs `autotune.workers.profiled` and prints a CSV table with a line of column names, a line of units, and a line
for each launch. All kernels for one problem are launched by one process, because starting a process and filling the
arrays takes longer than profiling most kernels.
"""

from __future__ import annotations

import csv
import math
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from pathlib import Path

from autotune.analysis.rerender import kernel_of
from autotune.compilation.compile import MAX_MESSAGE, Binary
from autotune.devices.device import DeviceInfo, Environment
from autotune.errors import ToolchainError
from autotune.evaluation.evaluator import Evaluator
from autotune.family.source import KernelSource
from autotune.family.template import KernelTemplate
from autotune.store import ProfileRow, Store, TrialRow
from autotune.tempdirs import temporary_folder
from autotune.trial import KernelProfile
from autotune.workers.profiled import Job, Kernel

_DEADLINE_S = 600.0  # ncu replays every launch once for each set of counters that can be read together
_MOST_RETRIES = 8  # each retry leaves out counters that this ncu or this device lacks

COUNTERS: Mapping[str, tuple[str, ...]] = {
    "time_us": ("gpu__time_duration.sum",),
    "achieved_occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "load_sectors_per_request": ("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",),
    "store_sectors_per_request": ("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",),
    "load_efficiency_fraction": ("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",),
    "store_efficiency_fraction": ("smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",),
    "shared_efficiency_fraction": ("smsp__sass_average_data_bytes_per_wavefront_mem_shared.pct",),
    "shared_load_conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",),
    "shared_store_conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",),
    "dram_read_bytes": ("dram__bytes_read.sum",),
    "dram_written_bytes": ("dram__bytes_write.sum",),
    "l2_bytes": ("lts__t_bytes.sum",),
    "fma_utilisation_fraction": ("sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",),
    "tensor_utilisation_fraction": (
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    ),
    "l1_hit_fraction": ("l1tex__t_sector_hit_rate.pct",),
    "l2_hit_fraction": ("lts__t_sector_hit_rate.pct",),
    "sm_throughput_fraction": ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
    "memory_throughput_fraction": ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",),
    "issue_fraction": ("smsp__issue_active.avg.pct_of_peak_sustained_active",),
    "active_threads": ("smsp__thread_inst_executed_per_inst_executed.ratio",),
    "shared_load_wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",),
}
"""The ncu counters behind each number in KernelProfile. The first one that the device has is used."""
STALLS = (
    *("barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard"),
    *("math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "short_scoreboard"),
    *("sleeping", "tex_throttle", "wait"),
)
"""ncu's names for the reasons why a warp doesn't issue, except `selected`, which isn't a stall."""
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_SCALE = {  # unit to the factor that converts it to microseconds, bytes or a fraction
    "%": 1e-2,
    "nsecond": 1e-3,
    "ns": 1e-3,
    "usecond": 1.0,
    "us": 1.0,
    "msecond": 1e3,
    "ms": 1e3,
    "second": 1e6,
    "s": 1e6,
    "Kbyte": 1e3,
    "Mbyte": 1e6,
    "Gbyte": 1e9,
    "Tbyte": 1e12,
}
_UNKNOWN = re.compile(r"^==(?:ERROR|WARNING)==.*?\b([a-z0-9]+__[a-z0-9_.]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Profiled:
    """The profile of several kernels' launches."""

    launches: tuple[tuple[KernelProfile, ...], ...]
    """for each kernel, the profiles of its stages in order; empty for a kernel that the process did not reach"""
    why_not: str
    """the error that ended the process early; empty if every kernel was profiled"""


class Profiler:
    """Runs Nsight Compute with those counters that it is known to support."""

    def __init__(self, ncu: Path) -> None:
        """Run `ncu --version`. Raises ToolchainError if ncu does not start."""
        self._ncu = ncu
        self._tool = _version(ncu)
        self._wanted = [*(name for names in COUNTERS.values() for name in names), *map(_STALL.format, STALLS)]

    def profile(self, device: str, kernels: Sequence[Kernel]) -> Profiled:
        """Run all of the kernels' stages once under ncu. The kernels must all be for the same problem.

        Raises ToolchainError if ncu isn't allowed to read the device's counters, or fails for another reason.
        """
        stages = [[stage.entry for stage in source.stages] for source, _ in kernels]
        entries = [entry for kernel in stages for entry in kernel]
        with temporary_folder() as folder:
            job, log = Path(folder) / "job", Path(folder) / "ncu.csv"
            job.write_bytes(pickle.dumps(Job(device, tuple(kernels), first_round=True)))
            for _ in range(_MOST_RETRIES):
                output = _run(self._ncu, self._wanted, set(entries), job, log)
                found = parse_ncu(output, self._tool)
                unknown = set(_UNKNOWN.findall(output)) & set(self._wanted)
                if found or not unknown:
                    break
                self._wanted = [name for name in self._wanted if name not in unknown]
        if not found:
            raise ToolchainError(f"{self._ncu}: {_why(output)}")
        if [launch.entry for launch in found] != entries[: len(found)]:
            raise ToolchainError(
                f"{self._ncu}: profiled {', '.join(launch.entry for launch in found)} where {', '.join(entries)} ran"
            )
        whole = len(found) == len(entries)
        return Profiled(_of_each(found, [len(kernel) for kernel in stages]), "" if whole else _why(output))


def _of_each(launches: Sequence[KernelProfile], counts: Sequence[int]) -> tuple[tuple[KernelProfile, ...], ...]:
    """Assign launches to kernels by the number of stages. A kernel with missing launches gets none."""
    ends = list(accumulate(counts))
    return tuple(
        tuple(replace(launch, position=at) for at, launch in enumerate(launches[end - count : end]))
        if end <= len(launches)
        else ()
        for end, count in zip(ends, counts, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Compiled:
    """A trial and its kernel, ready to be profiled."""

    row: TrialRow
    source: KernelSource
    binary: Binary


def compiled(
    store: Store,
    evaluator: Evaluator,
    rows: Sequence[TrialRow],
    families: Mapping[str, KernelTemplate],
    say: Callable[[str], None],
) -> tuple[Compiled, ...]:
    """Compile trials' kernels. A kernel whose text isn't stored is rendered again.

    `say` is called with a line about each kernel that isn't available.
    """
    found: list[tuple[TrialRow, KernelSource, Future[Binary]]] = []
    for row in rows:
        source = kernel_of(row, store, families)
        if isinstance(source, str):
            say(f"{row.name}: {row.trial.config}: not profiled: {source}")
        else:
            found.append((row, source, evaluator.compile(source)))
    return tuple(Compiled(row, source, binary.result()) for row, source, binary in found)


def profile_trials(
    store: Store,
    profiler: Profiler,
    kernels: Sequence[Compiled],
    *,
    device: str,
    info: DeviceInfo,
    environment: Environment,
    say: Callable[[str], None],
) -> list[ProfileRow]:
    """Profile kernels, with one process per problem, and store the profiles after each process.

    `say` is called with a line about each kernel that a process didn't reach. Raises the same errors as
    `Profiler.profile`.
    """
    problems = list(dict.fromkeys(kernel.source.problem for kernel in kernels))
    in_turn = sorted(kernels, key=lambda kernel: problems.index(kernel.source.problem))
    made: list[ProfileRow] = []
    for _, same in groupby(in_turn, key=lambda kernel: kernel.source.problem):
        of_one = list(same)
        profiled = profiler.profile(device, [(kernel.source, kernel.binary) for kernel in of_one])
        for kernel, launches in zip(of_one, profiled.launches, strict=True):
            if launches:
                made += store.profiles.add(kernel.row, info, environment, launches)
            else:
                say(f"{kernel.row.name}: {kernel.row.trial.config}: not profiled: {profiled.why_not}")
    return made


def parse_ncu(text: str, tool: str) -> tuple[KernelProfile, ...]:
    """Parse the launches in the table printed by `ncu --csv --page raw`, ignoring other lines.

    Numbers may have thousands separators, and units may have any prefix. A counter that is missing or isn't a number
    becomes None.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.reader(lines))
    heads = [position for position, row in enumerate(rows) if "Kernel Name" in row]
    if not heads:
        return ()
    names, rest = rows[heads[0]], rows[heads[0] + 1 :]
    launches = [row for row in rest if len(row) == len(names) and row[0].strip().isdigit()]
    units = next((row for row in rest if len(row) == len(names) and not row[0].strip()), [""] * len(names))
    return tuple(
        _profile(position, tool, dict(zip(names, row, strict=True)), dict(zip(names, units, strict=True)))
        for position, row in enumerate(launches)
    )


def _profile(position: int, tool: str, row: Mapping[str, str], units: Mapping[str, str]) -> KernelProfile:
    def number(counter: str) -> float | None:
        return _number(row.get(counter, ""), units.get(counter, ""))

    found = {
        name: next((value for counter in counters if (value := number(counter)) is not None), None)
        for name, counters in COUNTERS.items()
    }
    waiting = {reason: number(_STALL.format(reason)) or 0.0 for reason in STALLS}
    stalls = sorted(((reason, warps) for reason, warps in waiting.items() if warps > 0), key=lambda item: -item[1])
    return KernelProfile(tool, position, _entry(row["Kernel Name"]), **found, stalls=tuple(stalls))


def _entry(name: str) -> str:
    """Return a kernel's name without its arguments."""
    return name.partition("(")[0].split()[-1]


def _number(text: str, unit: str) -> float | None:
    try:
        value = float(text.replace(",", "").strip())
    except ValueError:  # n/a, (!) nan, an empty cell
        return None
    return value * _SCALE.get(unit.strip(), 1.0) if math.isfinite(value) else None


def _run(ncu: Path, counters: Sequence[str], entries: set[str], job: Path, log: Path) -> str:
    """Run ncu, and return its table and everything that it and the profiled process printed."""
    command = [
        *(str(ncu), "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)),
        *("--clock-control", "none", "--metrics", ",".join(counters)),
        *("--kernel-name", f"regex:^({'|'.join(sorted(map(re.escape, entries)))})$"),
        *(sys.executable, "-m", "autotune.workers.profiled", str(job)),
    ]
    log.unlink(missing_ok=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise ToolchainError(f"{ncu}: no answer within {_DEADLINE_S:.0f} s") from None
    except OSError as error:
        raise ToolchainError(f"{ncu}: does not start: {error.strerror}") from None
    table = log.read_text(errors="replace") if log.is_file() else ""
    return "\n".join((table, done.stdout, done.stderr))


def _version(ncu: Path) -> str:
    """Return `ncu` and its version."""
    try:
        done = subprocess.run([str(ncu), "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolchainError(f"{ncu}: does not start: {error.strerror}") from None
    found = re.search(r"Version (\S+)", done.stdout)
    return f"ncu {found[1]}" if found else "ncu"


def _why(output: str) -> str:
    """Return the reason why there is no profile, from ncu's output."""
    if "ERR_NVGPUCTRPERM" in output:
        return (
            "this user may not read the GPU's counters; run as root, or load the driver with "
            "NVreg_RestrictProfilingToAdminUsers=0"
        )
    lines = list(_complaints(output))
    return " ".join(lines)[:MAX_MESSAGE] or "it profiled no launch and said nothing"


def _complaints(output: str) -> Iterator[str]:
    """Yield ncu's errors, or else the last lines printed by the profiled process."""
    errors = [line.removeprefix("==ERROR==").strip() for line in output.splitlines() if line.startswith("==ERROR==")]
    yield from errors or [line.strip() for line in output.splitlines() if line.strip()][-3:]
