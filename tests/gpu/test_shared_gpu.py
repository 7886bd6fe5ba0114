"""`tune` prints a warning if other programs use the GPU, and none otherwise."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import autotune

pytestmark = pytest.mark.gpu
pytest.importorskip("pynvml", reason="NVML's bindings tell whether a GPU is used")

OTHER = """
import pycuda.autoinit, pycuda.driver as driver
memory = driver.mem_alloc(1 << 28)
print("ready", flush=True)
while True:
    for _ in range(100):
        driver.memset_d32(memory, 1, 1 << 26)
    driver.Context.synchronize()
"""


STUDY = """
name = "one"
trials = 1

[[layer]]
name = "conv"
n = 8
c = 4
h = 20
w = 20
k = 8
r = 3
s = 3
"""


@contextmanager
def another_program() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", OTHER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(2.0)
        try:
            yield
        finally:
            process.kill()


def warned(folder: Path) -> str:
    """The standard error of `tune`."""
    (folder / "one.toml").write_text(STUDY)
    line = (sys.executable, "-m", "autotune", "tune", "one.toml", "--device", "cuda:0", "--fresh")
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=True).stderr


def test_who_shares_a_gpu_is_told(tmp_path: Path) -> None:
    with another_program():
        said = warned(tmp_path)
        assert "cuda:0: other programs keep it busy for " in said
        assert "stop them or use another GPU" in said
        with pytest.warns(UserWarning, match="cuda:0: other programs keep it busy for "):
            autotune.tune(tmp_path / "one.toml", device="cuda:0", db=tmp_path / "api.db")
    time.sleep(2.0)
    assert "other programs" not in warned(tmp_path)
    assert "other programs" not in warned(tmp_path)  # a program that has just ended does not count
