"""`autotune export --untuned`: a library of a study that was never tuned."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune import resources
from autotune.api.built_library import main
from autotune.autotune_runtime import load
from autotune.compilation.compile import sections
from autotune.resources import cost_model_file
from tests.unit.conftest import autotune, folder
from tests.unit.tiny import Command

__all__ = ["autotune", "folder"]

RESNET = """
[[layer]]
name = "known"
n = 8
c = 2048
h = 7
w = 7
k = 512
r = 1
s = 1
dtype = "f16"
layout = "nhwc"
epilogue = "bias_relu"
"""
NEW = """
[[layer]]
name = "new"
n = 8
c = 72
h = 28
w = 28
k = 200
r = 3
s = 3
pad = 1
dtype = "f16"
layout = "nhwc"
epilogue = "bias_silu"
"""
SMALL = """
[[layer]]
name = "small"
n = 2
c = 2
h = 6
w = 6
k = 4
r = 3
s = 3
epilogue = "bias_relu"
"""


def test_a_layer_has_its_recorded_kernel_else_the_model_s(autotune: Command) -> None:
    Path("net.toml").write_text(f'name = "net"\n{RESNET}{NEW}')
    done = autotune("export", "net.toml", "--untuned", "--device", "H200", "--no-proof", "--out", "kernels")
    assert done.code == 0, done.err
    known, new = sorted(line for line in done.err.splitlines() if line.startswith("net."))
    assert known.startswith("net.known: recorded, ")
    assert known.endswith(" us as resnet50-fp16-n8.layer4-conv1 in recorded-networks")
    assert new.startswith("net.new: cost model, ")
    assert new.endswith(" us predicted and never timed")
    assert "NEVER RUN" not in Path("kernels/net.known.fp16.cu").read_text()
    assert "NVIDIA H200 (sm_90, 132 SMs): NEVER RUN" in Path("kernels/net.new.fp16.cu").read_text()
    decided = {each["name"]: each for each in json.loads(Path("kernels/provenance.json").read_text())["kernels"]}
    assert (decided["net.new"]["decided_by"], decided["net.new"]["median_us"]) == ("prediction", None)
    assert decided["net.known"]["median_us"] > 0
    assert "| NVIDIA H200, never run |" in Path("kernels/README.md").read_text()


def test_own_results_come_before_the_bundled_ones(autotune: Command) -> None:
    Path("net.toml").write_text(f'name = "net"\n{RESNET}')
    words = ("--device", "replay:recorded-networks", "--trials", "3")
    assert autotune("tune", "net.toml", *words).code == 0
    done = autotune("export", "net.toml", "--untuned", "--device", "replay of NVIDIA H200", "--no-proof", "--out", "k")
    assert done.code == 0, done.err
    assert " us as net.known in autotune.db" in done.err


def test_results_of_another_gpu_are_marked(autotune: Command) -> None:
    words = ("export", "fp16", "--untuned", "--layer", "lenet-k5-conv1", "--no-proof", "--out", "kernels")
    done = autotune(*words, "--device", "H100")
    assert done.code == 0, done.err
    assert "fp16.lenet-k5-conv1: cost model from results of NVIDIA H200, " in done.err


def test_a_cost_model_in_the_current_folder_is_used(autotune: Command) -> None:
    Path("net.toml").write_text(f'name = "net"\ntemplates = ["implicit_gemm_sm90"]\n{NEW}')
    words = ("export", "net.toml", "--untuned", "--device", "H200", "--no-proof", "--out", "kernels")
    bundled = autotune(*words)
    model = json.loads(cost_model_file().read_text())
    for weights in model["weights"].values():
        weights[0] *= 20
    Path("cost-model.json").write_text(json.dumps(model))
    own = autotune(*words)
    assert own.code == 0, own.err
    first, second = (float(done.err.partition("cost model, ")[2].split()[0]) for done in (bundled, own))
    assert first != second
    Path("cost-model.json").write_text("{}")
    assert autotune(*words).err.strip().endswith("cost-model.json: is not a cost model: 'terms'")


@pytest.mark.cxx
def test_without_a_gpu_it_is_tested_on_the_cpu_and_not_timed(autotune: Command) -> None:
    Path("net.toml").write_text(f'name = "net"\n{SMALL}')
    done = autotune("export", "net.toml", "--untuned", "--device", "host", "--out", "kernels")
    assert done.code == 0, done.err
    proof = Path("kernels/proof.txt").read_text()
    assert proof.startswith("NOT TIMED\n")
    assert "chosen without a run: net.small" in proof


def test_it_refuses_what_chooses_kernels_otherwise(autotune: Command) -> None:
    Path("net.toml").write_text(f'name = "net"\n{SMALL}')
    done = autotune("export", "net.toml", "--untuned", "--accuracy", "fp32", "--out", "kernels")
    assert "--untuned and --accuracy: give only one of them; each selects kernels differently" in done.err
    done = autotune("export", "net.toml", "--untuned", "--device", "RTX", "--out", "kernels")
    assert (
        "RTX: no recorded device of this name; there are NVIDIA H200, NVIDIA H100 80GB HBM3; or give cuda:N, host or "
        "null" in done.err
    )


@pytest.mark.cxx
def test_a_library_alone_has_the_bounds_of_its_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = (NEW, f'name = "net"\n{SMALL}')  # the first one has no name, but the second is still exported
    requests = "\n".join(json.dumps({"study": text, "out": "kernels"}) for text in texts)
    monkeypatch.setattr("sys.argv", ["built_library", "host", "autotune.db"])
    monkeypatch.setattr("sys.stdin", io.StringIO(requests))
    main()
    files = {path.name for path in Path("kernels").iterdir()}
    assert files == {"libconv2d.json", "net.small.host", "network.new.fp16.host", "origins.json"}
    (built,) = json.loads(Path("kernels/origins.json").read_text()).items()
    bounds = {"error_bound": pytest.approx((4 + 18**0.5) * 2**-24), "most_error": pytest.approx(5 * 2**-24)}
    assert built == ("net.small", {"origin": "default config", **bounds})
    (kernel,) = load(Path("kernels/libconv2d.json").resolve()).kernels()
    assert kernel.name == "net.small"


@pytest.mark.nvrtc
def test_a_library_for_a_gpu_needs_no_cxx_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = json.dumps({"study": f'name = "net"\n{RESNET}{NEW}', "out": "kernels"})
    monkeypatch.setattr("sys.argv", ["built_library", "NVIDIA H200", "autotune.db"])
    monkeypatch.setattr("sys.stdin", io.StringIO(request))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    main()
    library = load(Path("kernels/libconv2d.json").resolve())
    assert {kernel.name: kernel.device for kernel in library.kernels()} == dict.fromkeys(
        ("net.known", "net.new"), "NVIDIA H200"
    )
    for kernel in library.kernels():
        image = Path(f"kernels/{kernel.name}.fp16").read_bytes()
        assert any(section.name.startswith(".text.conv2d_") for section in sections(image)), kernel


def test_libraries_of_an_older_installation_are_not_used(tmp_path: Path) -> None:
    """A checkout whose templates or modules change keeps its version."""
    source = Path(resources.__file__).parents[1]
    shutil.copytree(source / "autotune", tmp_path / "autotune")
    shutil.copytree(source / "templates", tmp_path / "templates")
    (tmp_path / "studies").symlink_to(source / "studies")

    def libraries() -> str:
        script = (
            "from autotune.autotune_runtime.untuned_build import UntunedBuild\n"
            "build = UntunedBuild('host', 'a model', 'none.db')\n"
            "build.expect({}, None)\nbuild.cancel()\nprint(build.folder)"
        )
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        command = [sys.executable, "-c", script]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return ended.stdout.strip()

    folders = [libraries(), libraries()]
    for file in ("templates/conv2d/direct.cu.j2", "autotune/exporting/exporter.py"):
        with (tmp_path / file).open("a") as changed:
            changed.write("\n")
        folders.append(libraries())
    assert folders[0] == folders[1]
    assert len(set(folders)) == 3
