"""Exported libraries on a GPU: every family's proof succeeds; wrong kernels, slow ones and wrong devices fail."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from autotune.compilation.toolchain import find_cxx, find_nvcc
from autotune.devices.device import DeviceInfo
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting import Exported, SelectedKernel, export_library
from autotune.exporting.build import Built, build_for_cuda, self_test
from autotune.exporting.proof import ProofFailed, prove
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template, template_files
from autotune.trial import Value
from tests.exports import chosen
from tests.problems import PROBLEMS

pytestmark = pytest.mark.gpu

FILES = template_files()
IMAGES = 1500  # microseconds of a layer: a few tens


def kernel(name: str, info: DeviceInfo, images: int = IMAGES, **pinned: Value) -> SelectedKernel:
    """The first config of a family with these values, on the first awkward problem that has one."""
    template = load_template(FILES[name])
    for problem in PROBLEMS.values():
        bound = BoundTemplate(template, problem.with_runtime(images), info)
        if bound.supported:
            narrowed = {param: [value] for param, value in pinned.items()}
            default = SearchSpace(bound, narrowed, most_rows=0, sampled_rows=1).default
            if default is not None:
                return chosen(template, bound.problem, default, name, info)
    raise AssertionError(f"{name} has no config with {pinned}")


def built(exported: Exported, folder: Path) -> Built:
    """The library, built as the proof builds it."""
    folder.mkdir()
    return build_for_cuda(exported, folder, nvcc=find_nvcc(), cxx=find_cxx())


@pytest.mark.parametrize("of", sorted({file.operation.name for file in FILES.values()}))
def test_every_family_of_an_operation_proves_itself(of: str, gpu: DeviceEvaluator, tmp_path: Path) -> None:
    names = [name for name, file in FILES.items() if file.operation.name == of]
    kernels = [kernel(name, gpu.info, IMAGES + at) for at, name in enumerate(names)]
    lines = list(prove(export_library(kernels, tmp_path, ()), gpu, "not in this test"))
    assert "self-test passed" in lines
    for one in kernels:
        right, timed = (line for line in lines if line.startswith(f"{one.name}: "))
        assert f": right at {one.problem.operation.leading} = " in right
        assert "the tuner's own kernel" in timed
    assert (tmp_path / "proof.txt").read_text().startswith("PROVEN\n")


def test_filters_in_constant_memory_and_packed_ones(gpu: DeviceEvaluator, tmp_path: Path) -> None:
    kernels = [
        kernel(name, gpu.info, IMAGES + at, filters="constant")
        for at, (name, file) in enumerate(FILES.items())
        if file.operation.name == "conv2d"
        and any(param.name == "filters" and "constant" in param.values for param in load_template(file).params)
    ]
    assert len(kernels) >= 5
    assert all(one.source.constants for one in kernels)
    exported = export_library([*kernels, kernel("mma_strip", gpu.info)], tmp_path / "exported", ())
    passed, words = self_test(built(exported, tmp_path / "built"))
    assert passed, words


def test_sanitizer_finds_nothing(gpu: DeviceEvaluator, tmp_path: Path) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    kernels = [
        kernel("direct", gpu.info, filters="constant"),
        kernel("mma_strip", gpu.info),
        kernel("im2col_gemm", gpu.info, IMAGES + 1, chunk="100"),
    ]
    made = built(export_library(kernels, tmp_path / "exported", ()), tmp_path / "built")
    command = [sanitizer, "--tool", "memcheck", "--leak-check", "full", "--error-exitcode", "9"]
    done = subprocess.run([*command, str(made.folder / "selftest")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "ERROR SUMMARY: 0 errors" in done.stdout


def test_wrong_kernel_fails_the_proof(gpu: DeviceEvaluator, tmp_path: Path) -> None:
    exported = export_library([kernel("tiled", gpu.info)], tmp_path, ())
    source = tmp_path / "tested.tiled.cu"
    text = source.read_text()
    changed = re.sub(r"\bDILATION_W = 1\b", "DILATION_W = 0", text)
    assert changed != text
    source.write_text(changed)
    with pytest.raises(ProofFailed, match=r"the self-test failed on .*WRONG on integers"):
        list(prove(exported, gpu, "not in this test"))
    assert (tmp_path / "proof.txt").read_text().startswith("FAILED: do not use this library\n")


def test_slower_kernel_fails_the_proof(gpu: DeviceEvaluator, tmp_path: Path) -> None:
    exported = export_library([kernel("direct", gpu.info)], tmp_path, ())
    source = tmp_path / "tested.direct.cu"
    spin = " for (const long long start = clock64(); clock64() - start < 3000;) {}"
    text, count = re.subn(r'(extern "C" __global__[^{]*\{)', rf"\1{spin}", source.read_text())
    assert count == 1
    source.write_text(text)
    with pytest.raises(ProofFailed, match=r"slower than the tuner's own kernel: tested\.direct: "):
        list(prove(exported, gpu, "not in this test"))
    proof = (tmp_path / "proof.txt").read_text()
    assert proof.startswith("FAILED: do not use this library\nslower than the tuner's own kernel")
    assert "self-test passed" in proof


def test_device_that_it_was_not_compiled_for_is_refused(gpu: DeviceEvaluator, tmp_path: Path) -> None:
    exported = export_library([kernel("direct", gpu.info)], tmp_path / "exported", (75,))
    passed, words = self_test(built(exported, tmp_path / "built"))
    assert not passed
    assert "not tested: the kernel for this problem does not run on this device (cuModuleLoadData: " in words
    assert "no kernel of this library is for this device" in words
