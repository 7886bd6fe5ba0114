"""A user puts one file into a folder: it is listed, checked, tuned, verified and exported."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.compilation.toolchain import find_nvcc
from tests.fork_server import ForkServer
from tests.unit.tiny import Finished

pytestmark = pytest.mark.cxx

FILE = Path(__file__).parent.parent / "data" / "stranger" / "pointwise.cu.j2"
STUDY = """
name = "mine"
trials = 4
[measure]
cache = "hot"
[space.pointwise]
block = [64]
[[layer]]
name = "squeeze"
n = 3
c = 7
h = 9
w = 11
k = 6
r = 1
s = 1
stride = [1, 2]
epilogue = "bias_relu"
"""


@dataclass(frozen=True, slots=True)
class Stranger:
    """A folder with a study and one family of the user; results go into it."""

    folder: Path
    fork_server: ForkServer

    def run(self, *words: str) -> Finished:
        """The command line in that folder."""
        return self.fork_server.run(self.folder, *words)

    def rows(self, *words: str) -> list[dict[str, str | int | float | bool | None]]:
        """The JSON output of a command."""
        done = self.run(*words, "--json")
        assert done.code == 0, done.err
        rows: list[dict[str, str | int | float | bool | None]] = json.loads(done.out)
        return rows


@pytest.fixture(scope="module")
def stranger(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    """The folder after tuning: the user's family against the shipped ones."""
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "kernels").mkdir()
    shutil.copy(FILE, folder / "kernels")
    (folder / "mine.toml").write_text(STUDY)
    stranger = Stranger(folder, fork_server)
    tuned = stranger.run(
        *("tune", "mine.toml", "--family-dir", "kernels", "--family", "pointwise"),
        *("--device", "host", "--jobs", "2"),
    )
    assert tuned.code == 0, tuned.err
    return stranger


def test_family_is_listed_beside_the_shipped_ones(stranger: Stranger) -> None:
    names = [row["name"] for row in stranger.rows("templates", "--family-dir", "kernels")]
    assert {"pointwise", "direct", "implicit_gemm"} <= set(names)
    assert "output maps a thread" in stranger.run("templates", "pointwise", "--family-dir", "kernels").out


def test_family_is_checked(stranger: Stranger) -> None:
    checked = stranger.rows(
        *("check", "pointwise", "--family-dir", "kernels", "--device", "host", "--configs", "3", "--jobs", "2")
    )
    assert [row["outcome"] for row in checked] == ["correct"] * 3
    assert all(" 1x1 " in str(row["problem"]) for row in checked), "what it supports"


def test_family_is_tuned_and_verified(stranger: Stranger) -> None:
    trials = stranger.rows("trials", "mine")
    assert {row["template"] for row in trials} == {"pointwise"}
    correct = [row for row in trials if row["outcome"] == "correct"]
    assert len(correct) == 3
    for row in correct:
        error = row["error_over_bound"]
        assert isinstance(error, float)
        assert 0 < error < 1
    (best,) = stranger.rows("best", "mine.squeeze")
    assert best["config"] in [row["config"] for row in correct]


def test_family_competes_with_the_shipped_ones(stranger: Stranger) -> None:
    done = stranger.run(
        *("tune", "mine.toml", "--family-dir", "kernels", "--family", "pointwise", "--family", "direct"),
        *("--device", "null", "--db", "rehearsal.db", "--trials", "8"),
    )
    assert done.code == 0, done.err
    templates = {row["template"] for row in stranger.rows("trials", "mine", "--db", "rehearsal.db")}
    assert templates == {"pointwise", "direct"}


def test_best_kernel_is_exported_with_its_origin(stranger: Stranger) -> None:
    path = exported(stranger)
    text = path.read_text()
    for words in ("template pointwise", "n3 c7 9x11 k6 1x1", "block=64", "NOT TUNED FOR A GPU", "conv2d_pointwise("):
        assert words in text


@pytest.mark.nvcc
def test_exported_kernel_compiles_with_nvcc_alone(stranger: Stranger) -> None:
    path = exported(stranger)
    command = [str(find_nvcc()), "-std=c++17", "-Werror=all-warnings", "-arch=sm_90", "-fatbin", "-o", "k.fatbin"]
    done = subprocess.run([*command, str(path)], cwd=stranger.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def exported(stranger: Stranger) -> Path:
    """The exported file of the layer."""
    done = stranger.run("export", "mine.squeeze", "--out", "out", "--no-proof")
    assert done.code == 0, done.err
    return stranger.folder / done.out.strip()
