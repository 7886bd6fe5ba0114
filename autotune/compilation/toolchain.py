"""Find the compilers: nvcc (from the CUDA wheels or the system) and a C++ compiler."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from autotune.errors import ToolchainError

SYSTEM_CUDA = Path("/usr/local/cuda")  # where NVIDIA's installers put the toolkit


def find_nvcc(environ: Mapping[str, str] = os.environ, *, system: Path = SYSTEM_CUDA) -> Path:
    """Find nvcc in $CUDA_HOME, the installed CUDA wheels, the PATH or the system's toolkit, in this order.

    Raises ToolchainError with instructions for installing it.
    """
    if nvcc := _cuda_tool("nvcc", environ, system):
        return nvcc
    raise ToolchainError(
        "nvcc not found; install it into this environment with: pip install 'autotune-conv[cuda13]', "
        "or set CUDA_HOME to a CUDA toolkit"
    )


def _cuda_tool(name: str, environ: Mapping[str, str], system: Path) -> Path | None:
    """Find a CUDA tool in $CUDA_HOME, the installed CUDA wheels, the PATH or the system's toolkit, or return None."""
    paths = [Path(environ["CUDA_HOME"]) / "bin" / name] if environ.get("CUDA_HOME") else []
    if importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.pathfinder"):
        from cuda.pathfinder import find_nvidia_binary_utility

        if wheel := find_nvidia_binary_utility(name):
            paths.append(Path(wheel))
    if on_path := shutil.which(name, path=environ.get("PATH")):
        paths.append(Path(on_path))
    paths.append(system / "bin" / name)
    return next((tool for tool in paths if tool.is_file()), None)


def find_cxx(environ: Mapping[str, str] = os.environ) -> Path:
    """Find the C++ compiler: $CXX, or else g++ or clang++.

    Raises ToolchainError with instructions for installing one.
    """
    wanted = environ.get("CXX")
    for name in (wanted,) if wanted else ("g++", "clang++"):
        if found := shutil.which(name, path=environ.get("PATH")):
            return Path(found)
    if wanted:
        alone = ", without options or a launcher," if " " in wanted else ","
        raise ToolchainError(
            f"CXX={wanted}: is not a program that can be run; give a C++ compiler's path{alone} or unset CXX"
        )
    raise ToolchainError("no C++ compiler found; install one (Debian: apt-get install g++) or set CXX to one")


def compiler_version(compiler: Path) -> str:
    """Return a compiler's name and version on one line, such as `nvcc 13.0.88` or `g++ 12.2.0`."""
    output = output_of(compiler, "--version").strip().splitlines()
    if not output:
        raise ToolchainError(f"{compiler}: --version fails; reinstall it or set another one")
    for line in output:
        if ", V" in line:
            return f"nvcc {line.rsplit(', V', 1)[1]}"
    return f"{compiler.name} {output[0].split()[-1]}"


def output_of(tool: Path, *words: str) -> str:
    """Return a tool's output. Raises ToolchainError if it can't be run.

    For example, the file may not be a program.
    """
    try:
        return subprocess.run([str(tool), *words], capture_output=True, text=True, check=False, errors="replace").stdout
    except OSError as error:
        raise ToolchainError(f"{tool}: cannot be run: {error.strerror}; reinstall it or set another one") from None


def find_ncu(environ: Mapping[str, str] = os.environ, *, system: Path = SYSTEM_CUDA) -> Path:
    """Find Nsight Compute's command-line tool. Raises ToolchainError with instructions for installing it."""
    why = "install NVIDIA Nsight Compute, which is part of the CUDA toolkit,"
    return _find_tool("ncu", why, environ, system)


def find_sanitizer(environ: Mapping[str, str] = os.environ, *, system: Path = SYSTEM_CUDA) -> Path:
    """Find NVIDIA's compute-sanitizer. Raises ToolchainError with instructions for installing it."""
    why = "install it (the CUDA toolkit has it, and the wheel nvidia-cuda-sanitizer-api)"
    return _find_tool("compute-sanitizer", why, environ, system)


def _find_tool(name: str, why: str, environ: Mapping[str, str], system: Path) -> Path:
    """Find a tool. Raises ToolchainError if it is missing; `why` tells the user how to install it."""
    if tool := _cuda_tool(name, environ, system):
        return tool
    raise ToolchainError(f"{name} not found: {why} and put {name} on the PATH")
