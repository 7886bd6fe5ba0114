"""Winners are checked with few images before an export: on the CPU, and with a stand-in for compute-sanitizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from autotune.api.device_names import binary_cache
from autotune.checking.sanitize import ComputeSanitizer, HostCheck, Verdict, Winner
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting import SelectedKernel, export_library
from autotune.exporting.proof import ProofFailed, prove
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_template
from autotune.problem import Conv2dProblem
from autotune.trial import Config
from tests.exports import chosen
from tests.injected_faults import FAULTS, GOOD

pytestmark = pytest.mark.cxx

PROBLEM = Conv2dProblem(4, 2, 19, 21, 3, 3, 3, pad_h=1, pad_w=1)
"""Images that the family's blocks divide, so that a wrong grid may happen to be right."""
SAID = {
    "no_barrier_after_first_thread": ("n = 1: fault: race: kernel.cu", "of one in shared memory"),
    "unused_load_behind_array": (
        "n = 1: fault: oob_read: kernel.cu:",
        "reads 4 bytes of the memory behind x (3192 bytes), at byte 3212",
    ),
    "smem_declared_too_small": ("n = 1: fault: oob_write: kernel.cu:", "shared memory beyond the smem_bytes"),
    "grid_of_whole_blocks": ("n = 1 and 9: fault: unwritten: 1197 of 10773 outputs", "the first at n = 8"),
}
"""Faults that the host device does not find, and their messages."""


def text(name: str) -> str:
    """The correct family with a fault."""
    if name == "grid_of_whole_blocks":
        return GOOD.read_text().replace("ceil_div(n, images)", "max(1, n // images)")
    return GOOD.read_text() if name == "good" else FAULTS[name].text


def written(folder: Path, name: str) -> KernelTemplate:
    path = folder / f"{name}.cu.j2"
    path.write_text(text(name))
    return load_template(path)


def tuned(family: KernelTemplate) -> SelectedKernel:
    return chosen(family, PROBLEM, Config.of(family.name, {"tile": 16, "images": 2}), family.name.replace("_", "-"))


def winner(family: KernelTemplate) -> Winner:
    kernel = tuned(family)
    return Winner(kernel.stem, kernel.source, kernel.bound, family)


@pytest.fixture(scope="module")
def check(binaries: None) -> Iterator[HostCheck]:
    checking = HostCheck(DeviceEvaluator(["host:check"], 2, cache=binary_cache()))
    yield checking
    checking.close()


@pytest.fixture(scope="module")
def verdicts(check: HostCheck, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    """The messages about the correct kernel and about each faulty one that the host device accepts."""
    folder = tmp_path_factory.mktemp("planted")
    names = ("good", *SAID)
    said = check.check([winner(written(folder, name)) for name in names])
    return dict(zip(names, said, strict=True))


def test_a_good_kernel_is_clean(verdicts: dict[str, Verdict]) -> None:
    assert str(verdicts["good"]) == "tested.good: host:check at n = 1 and 9: clean"


def test_a_clean_kernel_that_did_not_run_with_each_size_says_why() -> None:
    said = str(Verdict("tested.good", "host:check", (1,), "clean", "n = 9 breaks a rule"))
    assert said == "tested.good: host:check at n = 1: clean; not every size ran: n = 9 breaks a rule"


@pytest.mark.parametrize("name", SAID)
def test_a_hidden_fault_is_seen_for_few_images(verdicts: dict[str, Verdict], name: str) -> None:
    begins, has = SAID[name]
    assert f"host:check at {begins}" in str(verdicts[name])
    assert has in str(verdicts[name])
    if "kernel.cu" in begins:
        assert f"({name}.cu.j2:" in verdicts[name].message


def test_a_faulty_winner_is_not_exported(check: HostCheck, tmp_path: Path) -> None:
    family = written(tmp_path, "no_barrier_after_first_thread")
    exported = export_library([tuned(family)], tmp_path / "out", ())
    with pytest.raises(ProofFailed, match=r"host:check at n = 1: fault: race: .* of one in shared"):
        list(prove(exported, "no GPU in this test", check, cache=binary_cache()))
    assert (tmp_path / "out" / "proof.txt").read_text().startswith("FAILED: do not use this library\n")


def test_the_proof_says_what_ran_and_what_did_not(check: HostCheck, tmp_path: Path) -> None:
    exported = export_library([tuned(written(tmp_path, "good"))], tmp_path / "out", ())
    not_run = "memcheck: not run: there is no GPU"
    seen = list(prove(exported, "no GPU in this test", check, not_run=not_run, cache=binary_cache()))
    assert seen[:2] == ["tested.good: host:check at n = 1 and 9: clean", not_run]
    assert set(seen) <= set((tmp_path / "out" / "proof.txt").read_text().splitlines())


STAND_IN = """#!/bin/sh
# Runs what it is given, and says of it what a file beside it has for the tool.
said="$(dirname "$0")"
echo "$@" >> "$said/calls"
while [ "$1" != "-m" ]; do
    case "$1" in
        --tool) tool="$2" ;;
        --log-file) log="$2" ;;
    esac
    python="$1"; shift
done
"$python" "$@" || exit $?
cp "$said/$tool" "$log"
grep -q " 0 " "$log" || exit 86
"""
CLEAN = "========= ERROR SUMMARY: 0 errors\n"
RACE = """========= Error: Race reported between Write access at conv2d_shared_tile+0x1f0 in kernel.cu:30
=========     and Read access at conv2d_shared_tile+0x3a0 in kernel.cu:37 [4080 hazards]
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, no warnings)
"""


def judged(folder: Path, families: Sequence[KernelTemplate]) -> list[str]:
    """The output of the stand-in, which runs kernels on the host device."""
    program = folder / "compute-sanitizer"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    (folder / "memcheck").write_text(CLEAN)
    (folder / "racecheck").write_text(RACE)
    (folder / "initcheck").write_text("a tool that breaks off\n")
    evaluator = DeviceEvaluator(["host"], 2, cache=binary_cache())
    sanitizer = ComputeSanitizer(program, "host", evaluator, 2)
    try:
        return [str(verdict) for verdict in sanitizer.check([winner(family) for family in families])]
    finally:
        sanitizer.close()


def test_compute_sanitizer_runs_each_tool_on_each_kernel(tmp_path: Path) -> None:
    memcheck, racecheck, initcheck = judged(tmp_path, [written(tmp_path, "good")])
    assert memcheck == "tested.good: memcheck at n = 1 and 9: clean"
    assert racecheck.startswith(
        "tested.good: racecheck at n = 1 and 9: fault: Error: Race reported between Write access"
    )
    assert "kernel.cu:30 (good.cu.j2:58)" in racecheck
    assert "initcheck: not run: the tool failed" in initcheck
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 3
    assert len({call.split("--port ")[1].split()[0] for call in calls}) == 2, "each that runs at once has its ports"


def test_a_kernel_that_does_not_run_is_a_fault_of_its_process(tmp_path: Path) -> None:
    memcheck, *_ = judged(tmp_path, [written(tmp_path, "trap")])
    assert "memcheck: not run: the tool failed (status 1): " in memcheck
    assert "__trap()" in memcheck
