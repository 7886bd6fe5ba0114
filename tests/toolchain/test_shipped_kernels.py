"""Exported kernels compile with nvcc alone, without a warning, for every architecture that their header admits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from autotune.compilation.compile import architecture
from autotune.compilation.toolchain import find_nvcc
from autotune.devices.device import DeviceInfo
from autotune.exporting import export_library
from autotune.family.render import render
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import template_files
from autotune.measurement.calibrate import calibration_program
from autotune.measurement.reference import check_program
from autotune.operation.registry import CONV2D
from autotune.problem import Conv2dProblem, Problem
from autotune.trial import Config, Value
from tests.exports import chosen
from tests.long_run import every, long_run
from tests.problems import PROBLEMS
from tests.templates.shipped_families import family

pytestmark = pytest.mark.nvcc

FILES = template_files()
EXPORTED = [name for name, file in FILES.items() if file.operation.name == CONV2D]
SMEM_BYTES = {75: 65536, 80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
"""Architecture to the largest shared memory of a block (CUDA C++ Programming Guide, compute capabilities)."""
ARCHS = tuple(SMEM_BYTES)
SEED = 11
PREFERRED = ("half_nhwc", "half", "bfloat", "groups", "pointwise", *PROBLEMS)  # for the sampled config


def device(arch: int) -> DeviceInfo:
    """A small device of an architecture."""
    return DeviceInfo("cuda", f"sm_{arch}", arch, 40, 1 << 34, smem_per_block_bytes=SMEM_BYTES[arch])


def tightest(archs: tuple[int, ...]) -> DeviceInfo:
    """The device with the least shared memory: a kernel that fits there fits all devices."""
    return device(min(archs, key=lambda arch: SMEM_BYTES[arch]))


def admitted(name: str, problem: Problem) -> tuple[int, ...]:
    """Architectures on which a family supports a problem."""
    return tuple(arch for arch in ARCHS if BoundTemplate(family(name), problem, device(arch)).supported)


def served(name: str, order: tuple[str, ...], *, configs: int) -> tuple[SearchSpace, tuple[int, ...]]:
    """The first problem that a family supports with configs for every admitted architecture; those configs and the
    architectures.
    """
    for problem in (PROBLEMS[label] for label in order):
        if archs := admitted(name, problem):
            bound = BoundTemplate(family(name), problem, tightest(archs))
            space = SearchSpace(bound, seed=SEED, most_rows=0, sampled_rows=configs)
            if space.default is not None:
                return space, archs
    raise AssertionError(f"{name} has no config for any awkward problem")


def nvcc(source: Path, archs: tuple[int, ...]) -> None:
    """Compile as an exported folder is built; every warning fails, and products of four warps run one by one.

    Front ends differ only where a text asks for its architecture. Of one that does not, the oldest architecture's PTX
    is assembled for all, and front ends run for the newest and for sm_90 besides.
    """
    text = source.read_text()
    command = [str(find_nvcc()), "-std=c++17", "-Werror", "all-warnings", "-Xptxas=-v", "-fatbin"]
    own = archs if "__CUDA_ARCH__" in text else (archs[0], 90, archs[-1])
    for arch in archs:
        front = architecture(arch if arch in own else archs[0], text)
        command += ["-gencode", f"arch=compute_{front},code=sm_{architecture(arch, text)}"]
    done = subprocess.run(
        [*command, "-o", "kernel.out", str(source)], capture_output=True, text=True, check=False, cwd=source.parent
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower()
    assert "wgmma.mma_async instructions are serialized" not in done.stdout + done.stderr


def exported(folder: Path, space: SearchSpace, row: int) -> Path:
    """One config of a space as `autotune export` writes it."""
    kernel = chosen(family(space.template), space.bound.problem, space.config(row), "layer")
    (source,) = export_library([kernel], folder, ()).sources
    return source


@pytest.mark.parametrize("name", every(4, EXPORTED))
def test_exported_default_compiles_on_the_newest(name: str, tmp_path: Path) -> None:
    space, archs = served(name, ("stride", *PROBLEMS), configs=1)
    nvcc(exported(tmp_path, space, 0), archs[-1:])


@pytest.mark.long
@pytest.mark.parametrize("name", EXPORTED)
def test_exported_default_compiles_everywhere(name: str, tmp_path: Path) -> None:
    space, archs = served(name, ("stride", *PROBLEMS), configs=1)
    nvcc(exported(tmp_path, space, 0), archs)


@pytest.mark.long
@pytest.mark.parametrize("name", EXPORTED)
def test_exported_sample_compiles_on_the_oldest_and_the_newest(name: str, tmp_path: Path) -> None:
    space, archs = served(name, PREFERRED, configs=8)
    nvcc(exported(tmp_path, space, len(space.rows) - 1), (archs[0], archs[-1]))


def test_rows_of_input_that_no_output_row_needs_do_not_crash_the_compiler(tmp_path: Path) -> None:
    """nvcc 13.0 did so if their registers were never set."""
    problem = Conv2dProblem(2, 1, 9, 75, 1, 7, 7, 2, 1, 14, 14, 2, 2, dtype="bf16", layout="nhwc")
    values: dict[str, Value] = {
        "mma": "warp",
        "warp_p": 11,
        "warp_tiles_k": 1,
        "warps_k": 1,
        "row_tiles": 1,
        "column_tiles": 4,
        "images": 1,
        "frames": 1,
        "contiguous_taps": "pixel",
        "channel_slices": 1,
        "stages": 4,
        "register_prefetch": 0,
        "filters": "resident",
        "min_blocks": 2,
        "arithmetic": "mma",
    }
    bound = BoundTemplate(family("mma_gemm"), problem, device(90))
    kernel = render(bound, Config.of("mma_gemm", values))
    (tmp_path / "kernel.cu").write_text(kernel.program.text)
    nvcc(tmp_path / "kernel.cu", (90,))


@pytest.mark.parametrize("dtype", ["f16", *long_run(("f32",), ("bf16",))])
def test_verification_program_compiles_everywhere(dtype: str, tmp_path: Path) -> None:
    problem = Conv2dProblem(2, 4, 9, 8, 6, 3, 2, groups=2, pad_h=1, dtype=dtype, epilogue="bias_relu")
    (tmp_path / "check.cu").write_text(check_program(problem).text)
    nvcc(tmp_path / "check.cu", ARCHS if dtype == "f32" else ARCHS[::3])


@pytest.mark.long
def test_calibration_program_compiles_everywhere(tmp_path: Path) -> None:
    (tmp_path / "calibrate.cu").write_text(calibration_program().text)
    nvcc(tmp_path / "calibrate.cu", ARCHS)


@pytest.mark.parametrize(("arch", "instructions"), [(75, ()), (90, ("mma", "wgmma")), *long_run((80, ("mma",)))])
def test_calibration_kernels_have_the_instructions_that_they_are_named_after(
    arch: int, instructions: tuple[str, ...], tmp_path: Path
) -> None:
    """Otherwise a rate would be the rate of an empty kernel."""
    program = calibration_program()
    (tmp_path / "calibrate.cu").write_text(program.text)
    target = f"compute_{architecture(arch, program.text)}"
    command = [str(find_nvcc()), "-std=c++17", f"-arch={target}", "-ptx", "-o", "calibrate.ptx", "calibrate.cu"]
    subprocess.run(command, check=True, cwd=tmp_path)
    _, *kernels = (tmp_path / "calibrate.ptx").read_text().split(".visible .entry ")
    found = {
        text.split("(")[0]: {word for word in ("mma.sync", "wgmma.mma_async") if f"\t{word}." in text}
        for text in kernels
    }
    assert found.keys() == set(program.entries)
    for entry, there in found.items():
        named = entry.split("_")[0]
        assert {word.split(".")[0] for word in there} == {named} & set(instructions), entry
    for name in ("copy_ahead", "copy_streamed"):
        (text,) = (text for text in kernels if text.startswith(f"{name}("))
        moves = [line.split(".")[0].strip() for line in text.splitlines() if ".v4.f32" in line]
        assert moves == 4 * ["ld"] + 4 * ["st"], "loads are under way together"
