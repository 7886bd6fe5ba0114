"""The table of the script that times whole networks, and the parts of the script that run on a CPU."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", exc_type=ImportError)

from tests.benchmarks import networks
from tests.benchmarks.networks import Measured, at_most, lines

RESNET = Measured(
    network="resnet50",
    n=64,
    dtype="float16",
    times_ms={"eager, graph": 4.6, "compiled": 2.4, "converted, graph": 2.0, "converted, compiled": 1.6},
    spread={"eager, graph": 0.01, "compiled": 0.02, "converted, graph": 0.004, "converted, compiled": 0.01},
    swapped=50,
    convolutions=53,
    original_error=3e-4,
    converted_error=4e-4,
    top1=(64, 63),
    tuning="autotune tune resnet50.toml",
    tuning_s=158.2,
    compile_s={"compiled": 31.0},
    device="NVIDIA H200",
    versions="PyTorch 2.11",
    clocks=("1980 MHz", "1905 MHz", "1980 MHz"),
)
VGG = replace(RESNET, network="vgg16", times_ms={**RESNET.times_ms, "max-autotune": 1.2}, top1=(None, None))


def test_ours_is_compared_with_the_best_rival() -> None:
    table = list(lines([RESNET, VGG]))
    assert table[0].split(" | ")[3:8] == [
        *("eager, graph, ms", "compiled, ms", "converted, graph, ms", "converted, compiled, ms", "max-autotune, ms")
    ]
    assert table[2].split(" | ")[3:10] == ["4.600", "2.400", "2.000", "1.600", "-", "1.50", "win (compiled)"]
    assert table[2].endswith("| 50 of 53 | 4.0e-04 (3.0e-04) | 63 (64) of 64 |")
    assert table[3].split(" | ")[7:10] == ["1.200", "0.75", "loss (max-autotune)"]
    assert table[4] == "\ngeometric mean 1.06 times as fast as the best rival"
    assert table[5] == "losses: vgg16 n=64"


def test_every_run_says_under_what_it_was_taken() -> None:
    below = "\n".join(list(lines([RESNET]))[-3:])
    for words in ("NVIDIA H200", "autotune tune resnet50.toml, 158 s", "spread at most 2.0 %", "1905 MHz"):
        assert words in below


def test_a_compiler_that_takes_too_long_is_stopped() -> None:
    reached = []
    with at_most(0.05):
        try:
            time.sleep(5)
            reached.append("the end")
        except TimeoutError as error:
            raise RuntimeError("InductorError") from error  # as PyTorch's compilers do
    with at_most(0):
        time.sleep(0.1)
        reached.append("without a limit")
    assert reached == ["without a limit"]


def test_an_error_of_a_compiler_within_its_time_is_raised() -> None:
    with pytest.raises(RuntimeError, match="of its own"), at_most(5):
        raise RuntimeError("of its own")


@pytest.mark.filterwarnings("ignore:::torch")
def test_the_script_runs_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["networks.py", str(tmp_path), "vae_decoder", "--device", "cpu", "--n", "2", "--size", "2"]
    monkeypatch.setattr("sys.argv", [*words, "--dtype", "float32"])
    monkeypatch.setattr(networks, "ROUNDS", 3)
    monkeypatch.setattr(networks, "FLUSH_BYTES", 1 << 10)
    networks.main()
    measured = json.loads((tmp_path / "vae_decoder-n2-float32.json").read_text())
    assert list(measured["times_ms"]) == ["eager, graph", "compiled", "converted, graph", "converted, compiled"]
    assert 0 < measured["converted_error"] < 1e-5
    said = capsys.readouterr()
    assert said.out.startswith("| network | n | dtype |")
    assert "8 batch norms folded" in said.err
