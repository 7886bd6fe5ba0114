"""compute-sanitizer's output as findings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.checking.findings import FalseAlarm, false_alarm, findings, finished
from autotune.resources import shipped
from autotune.store import Store

MEMCHECK = """========= COMPUTE-SANITIZER
a line of the program itself
========= Invalid __global__ read of size 4 bytes
=========     at conv2d(const float *, const float *, float *, int)+0x2b0 in kernel.cu:3
=========     by thread (4,0,0) in block (0,0,0)
=========     Address 0x7f5a63c00414 is out of bounds
=========     and is 21 bytes after the nearest allocation at 0x7f5a63c00200 of size 512 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========
========= Invalid __global__ read of size 4 bytes
=========     at conv2d(const float *, const float *, float *, int)+0x2b0 in kernel.cu:3
=========     by thread (5,0,0) in block (0,0,0)
=========     Address 0x7f5a63c00418 is out of bounds
=========     and is 25 bytes after the nearest allocation at 0x7f5a63c00200 of size 512 bytes
=========
========= Target application returned an error
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at conv2d(const float *, float *, int)+0x1f0 in kernel.cu:4
=========     and Read access at conv2d(const float *, float *, int)+0x3a0 in kernel.cu:8 [4080 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
INITCHECK = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at conv2d+0x40 in kernel.cu:2
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f5a63c00200
=========
========= ERROR SUMMARY: 1 error
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
NO_RACE = "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
FAILED = "========= COMPUTE-SANITIZER\n========= Error: No attachable process found. compute-sanitizer timed-out.\n"
TEXT = """// one
two
three
asm volatile(
    "cp.async.bulk.shared::cluster.global [%0], [%1]");
six
seven
channels[e] = from[e];
"""
ALARM = FalseAlarm("mma", "racecheck", "Error: Race", (r"cp\.async\.bulk", r"from\["), "one lane arrives for all")


def test_reports_of_one_place_are_one_finding() -> None:
    (found,) = findings(MEMCHECK)
    assert str(found) == (
        "Invalid __global__ read of size 4 bytes at conv2d in kernel.cu:3 "
        "and is some bytes after the nearest allocation of size 512 bytes (2 reports)"
    )
    assert (found.lines, found.count) == ((3,), 2)


def test_races_name_both_accesses() -> None:
    (found,) = findings(RACECHECK)
    assert str(found) == (
        "Error: Race reported between Write access at conv2d in kernel.cu:4 and Read access at conv2d in kernel.cu:8"
    )


def test_memory_that_was_never_written_is_a_finding() -> None:
    (found,) = findings(INITCHECK)
    assert str(found).startswith("Uninitialized __global__ memory read of size 4 bytes at conv2d in kernel.cu:2")


@pytest.mark.parametrize("log", [CLEAN, NO_RACE, "", FAILED])
def test_nothing_else_is_a_finding(log: str) -> None:
    assert findings(log) == ()


def test_a_tool_that_did_not_end_said_nothing() -> None:
    assert all(map(finished, (CLEAN, NO_RACE, MEMCHECK, RACECHECK, INITCHECK)))
    assert not finished(FAILED)
    assert not finished("")


def test_known_false_alarms_are_told_by_family_tool_and_both_lines() -> None:
    (race,) = findings(RACECHECK)
    (read,) = findings(MEMCHECK)
    assert false_alarm(race, "mma", "racecheck", TEXT, (ALARM,)) == "one lane arrives for all"
    assert not false_alarm(race, "other", "racecheck", TEXT, (ALARM,))
    assert not false_alarm(race, "mma", "memcheck", TEXT, (ALARM,))
    assert not false_alarm(race, "mma", "racecheck", TEXT.replace("from[", "to["), (ALARM,))
    assert not false_alarm(read, "mma", "racecheck", TEXT, (ALARM,))


@pytest.mark.parametrize(
    ("kernel", "accuracy", "lines"),
    [
        ("tf32.lenet-k5-conv1", "fp32-3xtf32", (486, 361)),
        ("fp32-class.fashion-k7-conv2", "fp32-3xtf32", (578, 472)),
        ("tf32.fashion-k7-conv2", "tf32", (515, 754)),
    ],
)
def test_what_racecheck_says_of_recorded_winners_is_known(kernel: str, accuracy: str, lines: tuple[int, int]) -> None:
    with Store(shipped("studies") / "recorded" / "h200.db", create=False) as store:
        (best,) = [
            row for row in store.best.list(kernel) if row.row.trial.accuracy == accuracy and row.row.trial.deterministic
        ]
        source = store.sources.get(best.row.trial.source_hash or "")
    assert source is not None
    read, written = lines
    log = f"""========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at loads()+0xc60 in kernel.cu:{read}
=========     and Write access at stores()+0x5d40 in kernel.cu:{written} [12 hazards]
=========     and Write access at stores()+0x5d50 in kernel.cu:{written} [12 hazards]
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
    (found,) = findings(log)
    family = best.row.trial.config.template
    assert false_alarm(found, family, "racecheck", source.program.text)
    elsewhere = replace(found, lines=(read, 1))
    assert not false_alarm(elsewhere, family, "racecheck", source.program.text), "any other report stays a fault"
