"""An exported library is built by its own CMakeLists.txt, as a user builds it, without a warning."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from autotune.compilation.toolchain import find_cxx, find_nvcc
from autotune.exporting import SelectedKernel, export_library
from autotune.exporting.build import build_for_cuda
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.problem import Conv2dProblem
from tests.exports import H200, chosen, kernel
from tests.long_run import every
from tests.templates.shipped_families import family

pytestmark = pytest.mark.nvcc

LAYERS = {"direct": Conv2dProblem(40, 2, 9, 11, 4, 3, 3), "direct_strip": Conv2dProblem(40, 2, 40, 44, 4, 3, 3)}
"""A family for sm_75 and newer, and one for other architectures."""

NO_GPU = "not run: there is no GPU on this machine\n"
TELLING = "a $HOME `true` folder"
"""A folder name that a shell would expand."""

PROJECT = """
cmake_minimum_required(VERSION 3.18)
project(program LANGUAGES CXX)
add_subdirectory(conv2d)
file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/own.cpp" "int own;")
add_library(own "${CMAKE_CURRENT_BINARY_DIR}/own.cpp")
add_executable(program program.cpp)
target_link_libraries(program PRIVATE conv2d)
install(TARGETS program conv2d EXPORT program DESTINATION lib)
install(EXPORT program DESTINATION lib/cmake)
"""
PROGRAM = """
#include <autotune_runtime.h>
#if __has_include(<kernel.h>)
#error "its other headers are in the way of this project's own"
#endif
int main() { return conv2d_abi_version() - CONV2D_ABI_VERSION; }
"""


def cmake(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run CMake in a folder."""
    command = [shutil.which("cmake") or "cmake", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def kernels() -> list[SelectedKernel]:
    """The default config of each family."""
    found = []
    for name, problem in LAYERS.items():
        config = SearchSpace(BoundTemplate(family(name), problem, H200), most_rows=0, sampled_rows=1).default
        assert config is not None
        found.append(chosen(family(name), problem, config, name))
    return found


def test_nothing_runs_that_a_folders_name_says(tmp_path: Path) -> None:
    folder = tmp_path / "`touch ran` $(touch ran)"
    (into := tmp_path / "built").mkdir()
    exported = export_library(kernels()[:1], folder, (90,))
    built = build_for_cuda(exported, into, nvcc=find_nvcc(), cxx=find_cxx(), run=False)
    assert built.library.is_file()
    assert not list(tmp_path.rglob("ran"))


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
@pytest.mark.long
def test_cmake_builds_it_for_several_architectures_in_any_folder(tmp_path: Path) -> None:
    tmp_path = tmp_path / TELLING
    export_library(kernels(), tmp_path, ())
    built_in = tmp_path.parent / "built"
    within = cmake(tmp_path, "-B", "build", f"-DCONV2D_NVCC={find_nvcc()}", "-DCONV2D_ARCHS=90")
    assert "nvcc would run a part of this name; build in another folder" in " ".join(within.stderr.split())
    configured = cmake(
        *(tmp_path, "-B", str(built_in), f"-DCONV2D_NVCC={find_nvcc()}", "-DCONV2D_ARCHS=75;90"),
        "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror",
    )
    assert configured.returncode == 0, configured.stderr
    assert "tested.direct_strip is not for compute capability 75" in configured.stdout
    assert "tested.direct is not for" not in configured.stdout
    built = cmake(tmp_path, "--build", str(built_in))
    assert built.returncode == 0, built.stdout + built.stderr
    assert "warning" not in (built.stdout + built.stderr).lower()
    for name in ("selftest", "benchmark"):
        assert (built_in / name).is_file()
    tested = subprocess.run(["ctest"], cwd=built_in, capture_output=True, text=True, check=False)
    ran = subprocess.run(["./selftest"], cwd=built_in, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout
    assert ("***Skipped" in tested.stdout) == (ran.returncode == 77) == (ran.stderr == NO_GPU), tested.stdout
    symbols = ["nm", "--dynamic", "--defined-only", "--format=posix", str(built_in / "libconv2d.so")]
    listed = subprocess.run(symbols, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    functions = re.findall(r"^CONV2D_API [^(]*?\*?(conv2d_\w+)\(", (tmp_path / "autotune_runtime.h").read_text(), re.M)
    assert sorted(line.split()[0] for line in listed.splitlines()) == sorted(functions), "its interface, nothing else"
    refused = cmake(tmp_path, "-B", str(tmp_path.parent / "older"), f"-DCONV2D_NVCC={find_nvcc()}", "-DCONV2D_ARCHS=75")
    assert refused.returncode != 0
    words = " ".join(refused.stderr.split())
    assert "tested.direct_strip needs a compute capability of at least 80 in CONV2D_ARCHS" in words


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_kernel_of_one_architecture_alone_is_not_for_a_newer_one(tmp_path: Path) -> None:
    pair = kernel("mma_pair", "pair", Conv2dProblem(64, 12, 33, 33, 24, 5, 5, dtype="f16"))
    export_library([pair], tmp_path, ())
    refused = cmake(tmp_path, "-B", "build", f"-DCONV2D_NVCC={find_nvcc()}", "-DCONV2D_ARCHS=100")
    words = "tested.pair.fp16 needs a compute capability of 90 itself in CONV2D_ARCHS"
    assert words in " ".join(refused.stderr.split())


@pytest.mark.long
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
@pytest.mark.skipif(shutil.which("ninja") is None, reason="ninja is not installed")
def test_second_library_in_a_project_gets_a_name_of_its_own(tmp_path: Path) -> None:
    for name in ("conv2d", "other"):
        export_library(kernels()[:1], tmp_path / name, (90,))
    (tmp_path / "program.cpp").write_text(PROGRAM)

    def configured(*more: str) -> tuple[bool, str]:
        (tmp_path / "CMakeLists.txt").write_text("\n".join((PROJECT, *more)))
        done = cmake(tmp_path, "-G", "Ninja", "-B", "build", f"-DCONV2D_NVCC={find_nvcc()}")
        return done.returncode == 0, " ".join(done.stderr.split())

    passed, words = configured("add_subdirectory(other)")
    assert not passed
    assert "this project has a target conv2d already; before add_subdirectory, set CONV2D_TARGET to another" in words
    named = ("set(CONV2D_TARGET other_conv2d)", "add_subdirectory(other)", "add_executable(another program.cpp)")
    passed, words = configured(*named, "target_link_libraries(another PRIVATE other_conv2d)")
    assert passed, words
    built = cmake(tmp_path, "--build", "build")
    assert built.returncode == 0, built.stdout + built.stderr
    linked = subprocess.run(["ldd", "build/another"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "libother_conv2d.so" in linked
    assert "libconv2d.so" not in linked
    passed, words = configured(*named, "target_link_libraries(another PRIVATE conv2d other_conv2d)")
    assert not passed
    assert "INTERFACE_CONV2D_EXPORT" in words


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
@pytest.mark.parametrize("archs", every(2, ["sm_90", "90a", "80 90", "80,90", "native"]))
def test_cmake_says_which_architecture_is_none(archs: str, tmp_path: Path) -> None:
    export_library(kernels()[:1], tmp_path, ())
    refused = cmake(tmp_path, "-B", "build", f"-DCONV2D_NVCC={find_nvcc()}", f"-DCONV2D_ARCHS={archs}")
    words = f"CONV2D_ARCHS: '{archs}' is no compute capability times ten; give such as 90 or 80;90"
    assert words in " ".join(refused.stderr.split())


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_another_export_into_the_folder_is_built_for_its_own_architectures(tmp_path: Path) -> None:
    for archs in ((90,), (80,)):
        export_library(kernels()[:1], tmp_path, archs)
        configured = cmake(tmp_path, "-B", "build", f"-DCONV2D_NVCC={find_nvcc()}", "-DCMAKE_CUDA_ARCHITECTURES=75")
        words = f"CMAKE_CUDA_ARCHITECTURES is not used: the kernels are for {archs[0]}; give CONV2D_ARCHS"
        assert words in " ".join(configured.stderr.split())
    built = cmake(tmp_path, "--build", "build", "--verbose", "--target", "conv2d")
    assert built.returncode == 0, built.stdout + built.stderr
    assert "code=sm_80 " in built.stdout


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_cmake_takes_the_nvcc_that_cudacxx_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_library(kernels()[:1], tmp_path, ())
    own = tmp_path / "own" / "nvcc"
    own.parent.mkdir()
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("CUDACXX", str(own))
    configured = cmake(tmp_path, "-B", "build")
    assert configured.returncode == 0, configured.stderr
    assert f"CONV2D_NVCC:FILEPATH={own}\n" in (tmp_path / "build" / "CMakeCache.txt").read_text()


def test_commands_of_its_readme_build_programs_that_run_from_anywhere(tmp_path: Path) -> None:
    exported = tmp_path / "the $HOME of kernels"
    export_library(kernels()[:1], exported, ())
    _, _, rest = (exported / "README.md").read_text().partition("Without CMake:\n\n```\n")
    environment = {**os.environ, "PATH": f"{find_nvcc().parent}:{os.environ['PATH']}"}
    script = rest.partition("```")[0].replace(" -O2 ", " -O0 ")  # for this test
    command = ["sh", "-e", "-c", script]
    built = subprocess.run(command, cwd=exported, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    for program in ("selftest", "benchmark"):
        run = subprocess.run([str(exported / program)], cwd="/", capture_output=True, text=True, check=False)
        assert "autotune" in run.stdout or run.stderr == NO_GPU, run.stderr


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_another_cmake_project_has_it_and_nothing_else_of_it(tmp_path: Path) -> None:
    export_library(kernels()[:1], tmp_path / "conv2d", ())
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    (tmp_path / "program.cpp").write_text(PROGRAM)
    configured = cmake(tmp_path, "-B", "build", f"-DCONV2D_NVCC={find_nvcc()}")
    assert configured.returncode == 0, configured.stderr
    built = cmake(tmp_path, "--build", "build")
    assert built.returncode == 0, built.stdout + built.stderr
    assert subprocess.run([str(tmp_path / "build" / "program")], check=False).returncode == 0
    assert (tmp_path / "build" / "libown.a").is_file(), "the project's own libraries are what they were"
    installed = cmake(tmp_path, "--install", "build", "--prefix", str(tmp_path / "installed"))
    assert installed.returncode == 0, installed.stderr
    assert (tmp_path / "installed" / "lib" / "libconv2d.so").is_file()


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_a_cmake_project_of_c_alone_links_it_as_a_static_library_too(tmp_path: Path) -> None:
    export_library(kernels()[:1], tmp_path / "conv2d", ())
    project = PROJECT.replace("LANGUAGES CXX", "LANGUAGES C").replace(".cpp", ".c")
    (tmp_path / "CMakeLists.txt").write_text(project)
    (tmp_path / "program.c").write_text(
        '#include "autotune_runtime.h"\n#include "autotune_conv2d.h" /* its old name */\n'
        "int main(void) { return conv2d_kernel_count() - 1; }\n"
    )
    configured = cmake(tmp_path, "-B", "build", f"-DCONV2D_NVCC={find_nvcc()}", "-DBUILD_SHARED_LIBS=OFF")
    assert configured.returncode == 0, configured.stderr
    built = cmake(tmp_path, "--build", "build")
    assert built.returncode == 0, built.stdout + built.stderr
    assert subprocess.run([str(tmp_path / "build" / "program")], check=False).returncode == 0
