"""`best LAYER --nearest`: the layer's own kernel if it was tuned, else the config that is predicted to be fastest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.unit.tiny import Command, Finished

H200 = Path(__file__).parents[2] / "tests" / "data" / "databases" / "report-layers.db"
STRANGE = """name = "strange"
[[layer]]
name = "like"
n = 500
c = 12
h = 34
w = 34
k = 24
r = 5
s = 5
[[layer]]
name = "unlike"
n = 1
c = 512
h = 7
w = 7
k = 512
r = 1
s = 1
layout = "nhwc"
dtype = "f16"
"""


@pytest.fixture
def nearest(autotune: Command) -> Command:
    """Ask the recorded results of an H200."""
    shutil.copy(H200, "h200.db")
    Path("strange.toml").write_text(STRANGE)

    def run(*words: object) -> Finished:
        return autotune("best", *words, "--nearest", "--db", "h200.db")

    return run


def rows(finished: Finished) -> list[dict[str, object]]:
    """The rows of a `--json` answer."""
    assert finished.code == 0, finished.err
    found: list[dict[str, object]] = json.loads(finished.out)
    return found


def test_a_tuned_layer_answers_for_itself(nearest: Command, autotune: Command) -> None:
    found = rows(nearest("lenet-k5.conv1", "--json"))
    assert {(row["match"], row["predicted_us"], row["nearest"]) for row in found} == {("exact", None, None)}
    plain = rows(autotune("best", "lenet-k5.conv1", "--db", "h200.db", "--json"))
    assert [row["source_hash"] for row in found] == [row["source_hash"] for row in plain]


def test_an_untuned_layer_has_a_predicted_config(nearest: Command) -> None:
    like, unlike = rows(nearest("strange.toml", "--device", "H200", "--json"))
    assert (like["layer"], like["match"], like["device"]) == ("strange.like", "predicted", "NVIDIA H200")
    assert like["nearest"] == "lenet-k5.conv2 on NVIDIA H200"
    assert isinstance(like["distance"], float)
    assert 0 < like["distance"] < 1
    assert like["median_us"] is None, "it was never timed"
    assert isinstance(like["predicted_us"], float)
    assert 96 < like["predicted_us"] < 300, "6.06 GFLOP take 96 us at the peak of FFMA"
    assert unlike["problem"] == "n1 c512 7x7 k512 1x1 f16 nhwc", "the problem is what was asked for"
    assert (unlike["match"], unlike["nearest"], unlike["accuracy"]) == ("predicted", None, "fp16")


def test_layers_of_shipped_studies_can_be_asked_for(nearest: Command) -> None:
    (name,) = {row["layer"] for row in rows(nearest("reports/003.conv2-n1000", "--json"))}
    assert name == "report-003.conv2-n1000"
    assert "report-003 has no layer 'conv9'; it has conv1-n1000" in nearest("reports/003.conv9").complaint
    assert "no study or layer 'nothing'" in nearest("nothing").complaint


def test_a_device_that_is_not_a_gpu_has_no_answer(nearest: Command) -> None:
    (row,) = rows(nearest("strange.toml", "--device", "null", "--json"))[:1]
    assert (row["match"], row["predicted_us"], row["median_us"]) == ("none", None, None)
