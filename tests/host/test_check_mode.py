"""Check mode: sanitizers find faults that go unnoticed otherwise, and name the line of the kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.compilation.compile import Program, Target
from autotune.devices.host_compile import check_environment
from autotune.errors import DeviceError
from tests.compiled import compiled
from tests.fork_server import ForkServer
from tests.unit.tiny import Finished

from .checked import FAULTY
from .kernels import Bench

ROOT = Path(__file__).parents[2]
ONE = """name = "one"
templates = ["direct"]
[[layer]]
name = "l"
n = 2
c = 2
h = 8
w = 8
k = 4
r = 3
s = 3
"""


@dataclass(frozen=True, slots=True)
class Ending:
    """The exit status and the output of a process that ran the kernel with one fault, or with none."""

    code: int
    words: str


@pytest.fixture(scope="module")
def endings(cxx: str, tmp_path_factory: pytest.TempPathFactory) -> list[Ending]:
    """The result of running the faulty kernel in check mode, by fault."""
    folder = tmp_path_factory.mktemp("checked")
    command = [sys.executable, "-m", "tests.host.checked", cxx, str(folder)]
    environment = {**os.environ, **check_environment(cxx)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return [Ending(int(code), (folder / str(fault)).read_text()) for fault, code in enumerate(done.stdout.split())]


def test_times_under_sanitizers_are_another_devices(tmp_path: Path, fork_server: ForkServer) -> None:
    """Results of one device for a layer are not used for the other."""

    def run(*words: str) -> Finished:
        done = fork_server.run(tmp_path, *words)
        assert done.code == 0, done.err
        return done

    (tmp_path / "one.toml").write_text(ONE)
    said = []
    for device in ("host:check", "host"):
        words = ["tune", "one.toml", "--device", device, "--trials", "1"]
        said.append(run(*words).err)
    assert all("1 evaluated (1 now)" in each for each in said), said
    best = json.loads(run("best", "--json").out)
    assert sorted(row["device"].endswith(", checked") for row in best) == [False, True]
    flags = json.loads(run("query", "SELECT flags FROM environments", "--json").out)
    assert sorted("-fsanitize=address" in row["flags"] for row in flags) == [False, True]


def test_a_correct_kernel_runs_in_every_order(endings: list[Ending]) -> None:
    assert endings[0] == Ending(0, "")


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
def test_a_fault_ends_the_process_and_names_the_line(endings: list[Ending], fault: int, words: str) -> None:
    ending = endings[fault]
    line = next(n for n, text in enumerate(FAULTY.splitlines(), 1) if f"fault == {fault}" in text)
    assert ending.code == 99, ending.words
    assert words in ending.words
    assert f"kernel.cu:{line}" in ending.words


def test_a_process_that_was_not_started_for_it_loads_no_checked_program(bench: Bench) -> None:
    binary = compiled(Program(FAULTY, ("faulty",)), Target("host", check=True), cxx=bench.cxx)
    with pytest.raises(DeviceError, match="check_environment"):
        bench.device.load(binary)
