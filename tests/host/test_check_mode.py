"""Check mode: sanitizers find what runs by luck, and name the line of the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.compilation.compile import Program, Target
from autotune.devices.host_compile import check_environment, compile_host
from autotune.errors import DeviceError

from .checked import FAULTY
from .kernels import Bench

ROOT = Path(__file__).parents[2]


def run_checked(cxx: str, fault: int) -> subprocess.CompletedProcess[str]:
    """Run the faulty kernel in a process started for check mode."""
    command = [sys.executable, "-m", "tests.host.checked", cxx, str(fault)]
    environment = {**os.environ, **check_environment(cxx)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100)


def test_a_correct_kernel_runs_in_every_order(cxx: str) -> None:
    done = run_checked(cxx, 0)
    assert (done.returncode, done.stdout.strip()) == (0, "ran"), done.stderr


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (1, "heap-buffer-overflow"),
        (2, "heap-buffer-overflow"),
        (3, "use-after-poison"),
        (4, "out of bounds for type 'float [4][16]'"),
        (5, "misaligned address"),
        (6, "signed integer overflow"),
    ],
    ids=["load behind x", "store behind y", "dynamic shared", "static shared", "misaligned float4", "int overflow"],
)
def test_a_fault_ends_the_process_and_names_the_line(cxx: str, fault: int, words: str) -> None:
    done = run_checked(cxx, fault)
    line = next(n for n, text in enumerate(FAULTY.splitlines(), 1) if f"fault == {fault}" in text)
    assert done.returncode == 99, done.stderr
    assert words in done.stderr
    assert f"kernel.cu:{line}" in done.stderr


def test_a_process_that_was_not_started_for_it_loads_no_checked_program(bench: Bench) -> None:
    binary = compile_host(Program(FAULTY, ("faulty",)), Target("host", check=True), cxx=bench.cxx)
    with pytest.raises(DeviceError, match="check_environment"):
        bench.device.load(binary)
