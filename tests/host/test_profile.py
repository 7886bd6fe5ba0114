"""`autotune profile`: the process under ncu, ncu's tables, and ncu's messages if it cannot profile.

The tests have an ncu of their own, which runs its command and prints a table in ncu's format.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.analysis.profile import Compiled, Profiler, parse_ncu, profile_trials
from autotune.compilation.compile import Binary
from autotune.compilation.toolchain import find_ncu
from autotune.errors import ToolchainError
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.family.template_files import load_template
from autotune.problem import Conv2dProblem
from autotune.store import Store
from autotune.trial import Config
from tests.compiled import compiled
from tests.injected_faults import GOOD
from tests.unit.store.builders import DRIVER_590, H200, correct, open_scope, run_trial
from tests.unit.tiny import DEVICE

PROBLEM = Conv2dProblem(3, 2, 9, 8, 4, 3, 3)
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
NAMES = [
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size"),
    *("Device", "CC", "dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"),
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    *(STALL.format(reason) for reason in ("barrier", "long_scoreboard", "selected", "wait")),
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
]
UNITS = [
    *[""] * 11,
    *("byte", "Mbyte", "nsecond", "sector/request", "", "%", "%", "%", "inst", "inst", "inst", "inst", "%"),
]
FIRST = [
    *("0", "4242", "python3.12", "127.0.0.1", "conv2d_shared_tile", "1", "7", "(16, 16, 1)", "(1, 1, 2)", "0", "9.0"),
    *("1,048,576", "2.50", "27,520", "4", "0", "61.25", "n/a", "46.37", "0.25", "3.5", "1", "0", "97.01"),
]
SECOND = [*FIRST[:4], "conv2d_shared_tile(const float *, float *, int)", *FIRST[5:13], "1000000", *FIRST[14:]]


def table(*rows: list[str]) -> str:
    """Lines in ncu's format, every cell quoted."""
    return "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows) + "\n"


NOISE = (
    '==PROF== Connected to process 4242 (/usr/bin/python3.12)\n==PROF== Profiling "conv2d" - 0: 0%....100% - 9 passes\n'
)
TABLE = NOISE + table(NAMES, UNITS, FIRST, SECOND) + "==PROF== Disconnected from process 4242\n"


def test_a_table_is_read_with_its_units_and_separators() -> None:
    first, second = parse_ncu(TABLE, "ncu 2025.3.1")
    assert (first.tool, first.position, first.entry) == ("ncu 2025.3.1", 0, "conv2d_shared_tile")
    assert first.time_us == pytest.approx(27.52)
    assert (first.dram_read_bytes, first.dram_written_bytes) == (1048576.0, 2.5e6)
    assert (first.load_sectors_per_request, first.shared_load_conflicts) == (4.0, 0.0)
    fractions = (first.achieved_occupancy, first.load_efficiency_fraction, first.fma_utilisation_fraction)
    assert fractions == pytest.approx((0.4637, 0.9701, 0.6125))
    assert first.stalls == (("long_scoreboard", 3.5), ("barrier", 0.25)), "waiting warps, most first"
    assert {first.tensor_utilisation_fraction, first.l2_bytes, first.shared_store_conflicts} == {None}
    assert (second.position, second.entry, second.time_us) == (1, "conv2d_shared_tile", 1000.0)


def test_the_second_name_of_a_counter_is_taken_where_the_device_lacks_the_first() -> None:
    names = [*NAMES, "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"]
    (found,) = parse_ncu(table(names, [*UNITS, "%"], [*FIRST, "12.5"]), "ncu")
    assert found.tensor_utilisation_fraction == 0.125


@pytest.mark.parametrize(
    "text",
    ["", NOISE, "==ERROR== ERR_NVGPUCTRPERM\n", table(NAMES), table(NAMES, UNITS), TABLE[: TABLE.index('"0"') + 40]],
    ids=["nothing", "noise", "error", "names only", "no launch", "cut short"],
)
def test_a_table_without_launches_is_none(text: str) -> None:
    assert parse_ncu(text, "ncu") == ()


def test_a_table_without_units_is_taken_as_it_is() -> None:
    (found,) = parse_ncu(table(NAMES, FIRST), "ncu")
    assert (found.dram_read_bytes, found.time_us) == (1048576.0, 27520.0)


FAKE = """#!{python}
import pathlib, subprocess, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 1)")
    sys.exit()
folder = pathlib.Path(__file__).parent
with open(folder / "runs", "a") as runs:
    print(" ".join(words), file=runs)
log = pathlib.Path(words[words.index("--log-file") + 1])
counters = words[words.index("--metrics") + 1].split(",")
unknown = (folder / "unknown").read_text().split() if (folder / "unknown").exists() else []
for name in unknown:
    if name in counters:
        log.write_text(f"==ERROR== Failed to find metric {{name}}\\n")
        sys.exit(1)
if (folder / "says").exists():
    log.write_text((folder / "says").read_text())
    sys.exit(1)
done = subprocess.run(words[words.index("--kernel-name") + 2 :], capture_output=True, text=True)
if done.returncode:
    log.write_text("==PROF== Connected\\n==ERROR== The application returned an error code (1).\\n")
    sys.stderr.write(done.stderr)
    sys.exit(1)
log.write_text((folder / "table").read_text())
"""


@pytest.fixture
def ncu(tmp_path: Path) -> Path:
    """A program that takes ncu's options, runs the given process, and prints the table."""
    path = tmp_path / "ncu"
    path.write_text(FAKE.format(python=sys.executable))
    path.chmod(0o755)
    (tmp_path / "table").write_text(TABLE)
    return path


@pytest.fixture(scope="module")
def kernel(cxx: str) -> tuple[KernelSource, Binary]:
    bound = BoundTemplate(load_template(GOOD), PROBLEM, DEVICE)
    source = render(bound, Config.of("shared_tile", {"tile": 16, "images": 2}))
    return source, compiled(source.program, cxx=cxx)


@pytest.mark.cxx
def test_kernels_of_a_problem_run_under_one_ncu(ncu: Path, kernel: tuple[KernelSource, Binary]) -> None:
    profiled = Profiler(ncu).profile("host", [kernel, kernel])
    assert [[(launch.tool, launch.position, launch.time_us) for launch in each] for each in profiled.launches] == [
        [("ncu 2025.3.1.0", 0, pytest.approx(27.52))],
        [("ncu 2025.3.1.0", 0, 1000.0)],
    ], "each kernel's launches are counted from 0"
    assert profiled.why_not == ""
    (run,) = (ncu.parent / "runs").read_text().splitlines()
    assert "--csv --page raw" in run
    assert "--clock-control none" in run
    assert "--kernel-name regex:^(conv2d_shared_tile)$" in run
    assert "-m autotune.workers.profiled" in run


@pytest.mark.cxx
def test_a_process_that_ends_early_keeps_what_it_saw(ncu: Path, kernel: tuple[KernelSource, Binary]) -> None:
    (ncu.parent / "table").write_text(TABLE + "==ERROR== The application returned an error code (11).\n")
    profiled = Profiler(ncu).profile("host", [kernel, kernel, kernel])
    assert [len(launches) for launches in profiled.launches] == [1, 1, 0]
    assert profiled.why_not == "The application returned an error code (11)."


@pytest.mark.cxx
def test_what_was_seen_is_stored_and_what_was_not_is_said(
    ncu: Path, kernel: tuple[KernelSource, Binary], tmp_path: Path
) -> None:
    said: list[str] = []
    (ncu.parent / "table").write_text(table(NAMES, UNITS, FIRST) + "==ERROR== The application hung.\n")
    with Store(tmp_path / "profiled.db") as store:
        for number in (0, 1):
            run_trial(store, open_scope(store), correct(number, 30.0))
        first, second = store.trials.list("lenet.conv1")
        made = profile_trials(
            *(store, Profiler(ncu), [Compiled(first, *kernel), Compiled(second, *kernel)]),
            device="host",
            info=H200,
            environment=DRIVER_590,
            say=said.append,
        )
        assert [row.row.id for row in made] == [first.id]
        assert [(row.row.id, row.profile.entry) for row in store.profiles.list()] == [(first.id, "conv2d_shared_tile")]
    assert said == [f"lenet.conv1: {second.trial.config}: not profiled: The application hung."]


@pytest.mark.cxx
def test_launches_that_were_not_asked_for_are_refused(ncu: Path, kernel: tuple[KernelSource, Binary]) -> None:
    with pytest.raises(ToolchainError, match="profiled conv2d_shared_tile, conv2d_shared_tile where conv2d_shared_t"):
        Profiler(ncu).profile("host", [kernel])


@pytest.mark.cxx
def test_counters_that_ncu_does_not_know_are_asked_for_once(ncu: Path, kernel: tuple[KernelSource, Binary]) -> None:
    unknown = [STALL.format("gmma"), "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"]
    (ncu.parent / "unknown").write_text(" ".join(unknown))
    profiler = Profiler(ncu)
    for _ in range(2):
        assert profiler.profile("host", [kernel, kernel]).why_not == ""
    runs = (ncu.parent / "runs").read_text().splitlines()
    assert [sum(name in run for name in unknown) for run in runs] == [2, 1, 0, 0]


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("says", "complaint"),
    [
        (
            "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU\n",
            "this user may not read the GPU's counters; run as root, or",
        ),
        (
            "==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n==ERROR== Failed to profile\n",
            "Failed to initialize the profiler: LibraryNotLoaded Failed to profile",
        ),
        ("==WARNING== No kernels were profiled.\n", "No kernels were profiled."),
        ("", "it profiled no launch and said nothing"),
    ],
    ids=["permission", "library", "no kernels", "nothing"],
)
def test_why_there_is_no_profile_is_one_line(
    ncu: Path, kernel: tuple[KernelSource, Binary], says: str, complaint: str
) -> None:
    (ncu.parent / "says").write_text(says)
    with pytest.raises(ToolchainError) as caught:
        Profiler(ncu).profile("host", [kernel])
    assert complaint in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.cxx
def test_a_process_that_fails_is_reported(ncu: Path, kernel: tuple[KernelSource, Binary]) -> None:
    with pytest.raises(ToolchainError, match="The application returned an error code"):
        Profiler(ncu).profile("cuda:99", [kernel])


def test_ncu_is_found_or_asked_for(ncu: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert find_ncu({"PATH": str(ncu.parent)}, system=nowhere) == ncu
    (nowhere / "bin").mkdir(parents=True)
    other = nowhere / "bin" / "ncu"
    other.write_text("")
    assert find_ncu({"PATH": ""}, system=nowhere) == other
    assert find_ncu({"PATH": str(ncu.parent), "CUDA_HOME": str(nowhere)}, system=tmp_path) == other
    with pytest.raises(ToolchainError, match=r"ncu not found: .* put ncu on the PATH"):
        find_ncu({"PATH": ""}, system=tmp_path)


def autotune(folder: Path, *words: str, path: str) -> subprocess.CompletedProcess[str]:
    """The command line in a folder, with a PATH of its own."""
    environ = {**os.environ, "PATH": path}
    environ.pop("CUDA_HOME", None)
    command = [sys.executable, "-m", "autotune", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environ)


@pytest.mark.skipif(Path("/usr/local/cuda/bin/ncu").exists(), reason="this machine has an ncu that is always found")
def test_without_ncu_the_command_says_so_in_one_line(tmp_path: Path) -> None:
    done = autotune(tmp_path, "profile", "lenet.conv1", path="")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("autotune: ncu not found")
    assert len(done.stderr.splitlines()) == 1


def test_only_cuda_devices_are_profiled(ncu: Path, tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parents[1] / "data" / "databases" / "report-layers.db", tmp_path / "autotune.db")
    done = autotune(tmp_path, "profile", "lenet.conv1", "--device", "null", path=str(ncu.parent))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "autotune: null: Nsight Compute profiles CUDA devices only; give --device cuda:N"
    )
