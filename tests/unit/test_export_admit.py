"""`export` by accuracy class, on the recorded results of an H200, and by operation."""

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


def test_a_study_of_several_operations_is_exported_by_operation(
    autotune: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    layers = ("n = 2\nc = 4\nh = 8\nw = 8\nk = 4\nr = 3\ns = 3\n", "n = 2\nc = 4\nw = 8\nk = 4\ns = 3\n")
    tables = zip(("conv2d", "conv"), layers, strict=True)
    text = "".join(f'\n[[layer]]\nname = "of-{op}"\nop = "{op}"\n{sizes}' for op, sizes in tables)
    Path("both.toml").write_text(f'name = "both"\n{text}')
    assert autotune("tune", "both.toml", "--device", "null", "--trials", "2").code == 0
    refused = autotune("export", "both", "--out", "out", "--no-proof")
    assert refused.code == 1
    assert "an export has kernels of one operation, not of conv, conv2d; name one by --op" in refused.err
    for op in ("conv2d", "conv"):
        finished = autotune("export", "both", "--out", f"out/{op}", "--no-proof", "--op", op)
        assert finished.code == 0, finished.err
        assert [path.name for path in Path(f"out/{op}").glob("*.cu")] == [f"both.of-{op}.null.cu"]
    missing = autotune("export", "both", "--out", "other", "--no-proof", "--op", "softmax")
    assert missing.code == 1
    assert "no kernel of both to export with --op softmax" in missing.err
