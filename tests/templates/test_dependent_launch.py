"""Kernels and stages that may start before the previous one has ended: they wait before they access global memory."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from pathlib import Path

import pytest

from autotune.compilation.compile import architecture
from autotune.compilation.toolchain import find_cxx, find_nvcc
from autotune.exporting import SelectedKernel, export_library
from autotune.exporting.build import self_test
from autotune.exporting.kernel import NVCC_FLAGS
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.problem import Conv2dProblem, Problem, make_problem
from tests.compiled import built_for_host
from tests.exports import kernel
from tests.long_run import every
from tests.problems import FILTER_GRADIENT

from .shipped_families import H200, default_of, family, supported

WAITS = {
    "depthwise_toeplitz_sm90": 1,
    "grouped_sm90": 1,
    "implicit_gemm_sm90": 2,
    "split_k_sm90": 2,
    "implicit_gemm_fp32_sm90": 1,
    "implicit_gemm_rs_sm90": 1,
    "conv_transpose_phases_sm90": 2,
    "gemm_sm90": 1,
    "gemm_split_k_sm90": 2,
}
"""Families, and the place where each waits: before the roles split, or in each role."""
GLOBAL = re.compile(r"\s(ld\.global|st\.global|atom\.|red\.|cp\.async\.bulk\.tensor|prefetch\.global)")
GROUPED = Conv2dProblem(
    *(4, 16, 9, 7, 16, 3, 3), pad_h=1, pad_w=1, groups=4, dtype="f16", layout="nhwc", epilogue="bias_relu"
)
HERE = dataclasses.replace(H200, sm_count=os.cpu_count() or 1)
"""A device with as many multiprocessors as the driver's emulation on this machine has, for which kernels are made."""
FILTERS = make_problem(FILTER_GRADIENT, {"n": 40, "c": 64, "h": 9, "w": 9, "k": 64, "r": 1, "s": 1, "dtype": "bf16"})


def source_of(name: str) -> KernelSource:
    """A family's default kernel on the last awkward problem with one launch, if possible with a residual."""
    for problem in reversed(list(supported(name).values())):
        source = rendered(name, problem)
        if len(source.stages) == 1:
            return source
    raise LookupError(name)


def rendered(name: str, problem: Problem) -> KernelSource:
    """A family's default kernel on a problem, with a residual if it is a convolution of two dimensions."""
    if isinstance(problem, Conv2dProblem):
        problem = dataclasses.replace(problem, epilogue="bias_add_relu")
    config = default_of(name, problem)
    assert config is not None
    return render(BoundTemplate(family(name), problem, H200), config)


def ptx(source: KernelSource, folder: Path, *flags: str) -> list[list[str]]:
    """The lines of each stage's kernel as PTX."""
    text = folder / "kernel.cu"
    text.write_text(source.program.text)
    arch = f"-arch=compute_{architecture(90, source.program.text)}"
    command = [str(find_nvcc()), *NVCC_FLAGS[:-1], *flags, arch, "-ptx", "-o", "kernel.ptx", text.name]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    whole = (folder / "kernel.ptx").read_text()
    entries = (re.split(rf"\.entry {stage.entry}\(", whole)[1] for stage in source.stages)
    return [entry.split(".entry")[0].splitlines() for entry in entries]


@pytest.mark.nvcc
@pytest.mark.parametrize("name", every(6, WAITS))
def test_it_waits_before_anything_is_read_or_written(name: str, tmp_path: Path) -> None:
    (lines,) = ptx(source_of(name), tmp_path, NVCC_FLAGS[-1])
    wait = next(at for at, line in enumerate(lines) if "griddepcontrol.wait" in line)
    assert any("griddepcontrol.launch_dependents" in line for line in lines[:wait])
    touched = [line for line in lines[:wait] if GLOBAL.search(line)]
    assert not touched
    assert sum("griddepcontrol.wait" in line for line in lines) == WAITS[name]
    assert any(GLOBAL.search(line) for line in lines[wait:])


@pytest.mark.nvcc
def test_a_stage_that_overlaps_the_one_before_waits_for_it(tmp_path: Path) -> None:
    name = "conv_filter_gradient_sm90"
    source = next(source for each in supported(name).values() if len((source := rendered(name, each)).stages) == 2)
    assert source.overlaps
    first, second = ptx(source, tmp_path)
    assert any("griddepcontrol.launch_dependents" in line for line in first)
    wait = next(line for line in second if "griddepcontrol" in line or GLOBAL.search(line))
    assert "griddepcontrol.wait" in wait


@pytest.mark.nvcc
def test_a_kernel_that_is_tuned_does_not(tmp_path: Path) -> None:
    assert not [line for line in ptx(source_of("grouped_sm90"), tmp_path)[0] if "griddepcontrol" in line]


@pytest.mark.cxx
@pytest.mark.long
@pytest.mark.parametrize(
    ("made", "wait", "environment"),
    [
        (kernel("grouped_sm90", "grouped", GROUPED), "begin_dependent", {"AUTOTUNE_DEPENDENT_LAUNCH": "1"}),
        (kernel("conv_filter_gradient_sm90", "filters", FILTERS, HERE, splits=1), "wait_for_stage_before", {}),
    ],
)
def test_what_does_not_wait_is_found_without_a_gpu(
    made: SelectedKernel, wait: str, environment: dict[str, str], tmp_path: Path
) -> None:
    exported = export_library([made], tmp_path / "exported", ())
    library = built_for_host(exported, tmp_path / "built", cxx=str(find_cxx()))
    early = dataclasses.replace(library, environment={**library.environment, **environment})
    assert self_test(early)[0]
    (text,) = exported.folder.glob(f"tested.{made.name.rpartition('.')[2]}.*.cu")
    text.write_text(text.read_text().replace(f"    {wait}();\n", ""))
    library = built_for_host(exported, tmp_path / "built", cxx=str(find_cxx()))
    early = dataclasses.replace(library, environment={**library.environment, **environment})
    passed, words = self_test(early)
    assert not passed
    assert "did not wait for them" in words
