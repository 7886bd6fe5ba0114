"""`autotune accuracy` as a user meets it: on tuned kernels, on one with a wrong tap, on what cannot be a network."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.planted import GOOD

pytestmark = pytest.mark.cxx

STUDY = """name = "chain"
trials = 1
templates = ["shared_tile"]
[[layer]]
name = "conv1"
n = 32
c = 1
h = 14
w = 13
k = 4
r = 3
s = 3
[[layer]]
name = "conv2"
n = 20
c = 4
h = 6
w = 5
k = 6
r = 3
s = 3
pad = 1
epilogue = "bias_relu"
"""


def autotune(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line in a folder."""
    command = [sys.executable, "-m", "autotune", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def accuracy(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`autotune accuracy` of the study on the host."""
    return autotune(folder, "accuracy", "chain.toml", "--device", "host", "--jobs", "1", *words)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the study and its results."""
    folder = tmp_path_factory.mktemp("chain")
    (folder / "chain.toml").write_text(STUDY)
    words = ("tune", "chain.toml", "--device", "host", "--templates", str(GOOD.parent), "--jobs", "1")
    done = autotune(folder, *words)
    assert done.returncode == 0, done.stderr
    return folder


def test_tuned_kernels_change_no_class(tuned: Path) -> None:
    done = accuracy(tuned, "--images", "300", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["accuracy"], row["images"], row["agreeing"], row["agreeing_fraction"]) == ("fp32", 300, 300, 1.0)
    assert row["passed"] is True
    assert 0 < row["largest_logit_difference"] < 1e-4
    assert row["largest_class_fraction"] <= 0.3
    assert row["first"] == "shared_tile (fp32)"
    assert row["second_config"] == "tile=16 images=2"


def test_a_wrong_tap_in_the_stored_kernel_fails_the_command(tuned: Path, tmp_path: Path) -> None:
    (tmp_path / "chain.toml").write_text(STUDY)
    raw = sqlite3.connect(tmp_path / "wrong.db")
    with sqlite3.connect(tuned / "autotune.db") as whole:
        whole.backup(raw)
    whole.close()
    tap = "sum += w[((k * C + c) * R + r) * S + s]"
    for row_id, packed, size in raw.execute("SELECT id, text_zlib, text_bytes FROM sources").fetchall():
        text = (packed if len(packed) == size else zlib.decompress(packed)).decode()
        if "constexpr int C = 1," in text:
            assert text.count(tap) == 1
            edited = text.replace(tap, tap.replace("+ s]", "+ (r == 1 && s == 1 ? 2 : s)]")).encode()
            raw.execute("UPDATE sources SET text_zlib = ?, text_bytes = ? WHERE id = ?", (edited, len(edited), row_id))
    raw.commit()
    raw.close()
    done = accuracy(tmp_path, "--images", "300", "--db", "wrong.db", "--json")
    assert done.returncode == 1
    (row,) = json.loads(done.stdout)
    assert row["agreeing_fraction"] < 0.9
    assert row["passed"] is False
    assert done.stderr.splitlines()[-1] == (
        "autotune: chain: fp32: the network predicts other classes than in float64 on more than 0.1% of the images"
    )


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (
            ("h = 6", "h = 7"),
            "conv2 cannot follow conv1: 2x2 pooling of its 12x11 output leaves 4 channels of 6x5, but",
        ),
        (("c = 4", "c = 2"), "conv2 cannot follow conv1"),
        (('epilogue = "bias_relu"', 'dtype = "f16"'), "it stores f16, conv1 f32"),
        (("pad = 1\n", "pad = 0\nstride = 3\n"), "pooling leaves nothing of conv2's 2x1 output"),
        ((STUDY[STUDY.index('[[layer]]\nname = "conv2"') :], ""), "two convolutions, the study 1 layer(s)"),
    ],
    ids=["height", "channels", "dtype", "too small", "one layer"],
)
def test_layers_that_do_not_follow_each_other(tuned: Path, edit: tuple[str, str], complaint: str) -> None:
    assert STUDY.count(edit[0]) == 1
    (tuned / "other.toml").write_text(STUDY.replace(*edit))
    done = autotune(tuned, "accuracy", "other.toml", "--device", "host")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("autotune: other.toml: ")
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_study_without_results(tuned: Path) -> None:
    (tuned / "new.toml").write_text(STUDY.replace('"chain"', '"new"'))
    done = autotune(tuned, "accuracy", "new.toml", "--device", "host", "--jobs", "1")
    assert done.returncode == 1
    assert "no correct kernel of new on" in done.stderr.splitlines()[-1]


def test_null_runs_no_network(tuned: Path) -> None:
    done = autotune(tuned, "accuracy", "chain.toml", "--device", "null")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "autotune: the null device runs no network; take cuda:N or host"
