"""`export --admit`: each layer's fastest kernel among several accuracy classes, on the recorded results of an H200."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.resources import shipped
from tests.unit.tiny import Command

H200 = shipped("studies") / "recorded" / "h200.db"


@pytest.mark.parametrize(
    ("accuracy", "files"),
    [
        ("fp32", ["lenet-k5-conv1.cu", "lenet-k5-conv2.cu"]),
        ("fp32-class", ["lenet-k5-conv1.cu", "lenet-k5-conv2.fp32-3xtf32.cu"]),
        ("tf32", ["lenet-k5-conv1.cu", "lenet-k5-conv2.tf32.cu"]),
    ],
)
def test_each_layers_fastest_that_the_accuracy_admits(
    accuracy: str, files: list[str], autotune: Command, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("export", "fp32-class", "--db", H200, "--out", out, "--no-proof", "--admit", accuracy)
    finished = autotune(*words)
    assert finished.code == 0, finished.err
    written = sorted(path.name.removeprefix("fp32-class.") for path in out.glob("*.cu"))
    assert [name for name in written if name.startswith("lenet-k5")] == files
    assert len(written) == 6, "one a layer"
