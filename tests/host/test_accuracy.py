"""`autotune accuracy` as a user meets it: on tuned kernels, on one with a wrong tap, on what cannot be a network."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.injected_faults import GOOD

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


WORDS = ("accuracy", "chain.toml", "--device", "host", "--jobs", "1")


@pytest.fixture(scope="module")
def tuned(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the study and its results."""
    folder = tmp_path_factory.mktemp("chain")
    (folder / "chain.toml").write_text(STUDY)
    words = ("tune", "chain.toml", "--device", "host", "--templates", str(GOOD.parent), "--jobs", "1")
    done = fork_server.run(folder, *words)
    assert done.code == 0, done.err
    return folder


def test_tuned_kernels_change_no_class(tuned: Path, fork_server: ForkServer) -> None:
    done = fork_server.run(tuned, *WORDS, "--images", "300", "--json")
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)
    assert (row["accuracy"], row["images"], row["agreeing"], row["agreeing_fraction"]) == ("fp32", 300, 300, 1.0)
    assert row["passed"] is True
    assert 0 < row["largest_logit_difference"] < 1e-4
    assert row["largest_class_fraction"] <= 0.3
    assert row["first"] == "shared_tile (fp32)"
    assert row["second_config"] == {"tile": 16, "images": 2}


def test_a_wrong_tap_in_the_stored_kernel_fails_the_command(
    tuned: Path, tmp_path: Path, fork_server: ForkServer
) -> None:
    (tmp_path / "chain.toml").write_text(STUDY)
    raw = sqlite3.connect(tmp_path / "wrong.db")
    with closing(sqlite3.connect(tuned / "autotune.db")) as whole, whole:
        whole.backup(raw)
    whole.close()
    tap = "sum += w[((k * C + c) * R + r) * S + s]"
    for source_id, text in raw.execute("SELECT source_id, text FROM kernels").fetchall():
        if "constexpr int C = 1," in text:
            assert text.count(tap) == 1
            edited = text.replace(tap, tap.replace("+ s]", "+ (r == 1 && s == 1 ? 2 : s)]"))
            raw.execute("DELETE FROM source_paragraphs WHERE source_id = ?", (source_id,))
            raw.execute("INSERT INTO paragraphs VALUES (?, ?)", (source_id, edited))
            raw.execute("INSERT INTO source_paragraphs VALUES (?, 0, ?)", (source_id, source_id))
    raw.commit()
    raw.close()
    done = fork_server.run(tmp_path, *WORDS, "--images", "300", "--db", "wrong.db", "--json")
    assert done.code == 1
    (row,) = json.loads(done.out)
    assert row["agreeing_fraction"] < 0.9
    assert row["passed"] is False
    assert done.err.splitlines()[-1] == (
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
def test_layers_that_do_not_follow_each_other(
    tuned: Path, edit: tuple[str, str], complaint: str, fork_server: ForkServer
) -> None:
    assert STUDY.count(edit[0]) == 1
    (tuned / "other.toml").write_text(STUDY.replace(*edit))
    done = fork_server.run(tuned, "accuracy", "other.toml", "--device", "host")
    assert done.code == 1
    assert done.out == ""
    assert done.err.startswith("autotune: other.toml: ")
    assert complaint in done.err
    assert len(done.err.splitlines()) == 1


def test_a_study_without_results(tuned: Path, fork_server: ForkServer) -> None:
    (tuned / "new.toml").write_text(STUDY.replace('"chain"', '"new"'))
    done = fork_server.run(tuned, "accuracy", "new.toml", "--device", "host", "--jobs", "1")
    assert done.code == 1
    assert "no correct kernel of new on" in done.err.splitlines()[-1]


def test_null_runs_no_network(tuned: Path, fork_server: ForkServer) -> None:
    done = fork_server.run(tuned, "accuracy", "chain.toml", "--device", "null")
    assert done.code == 1
    assert done.err.splitlines()[-1] == "autotune: the null device runs no network; take cuda:N or host"
