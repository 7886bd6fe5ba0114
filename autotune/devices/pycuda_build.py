"""Build PyCUDA from source with CUDA's Python wheels, without a CUDA toolkit or a checkout."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from autotune.compilation.toolchain import find_cxx
from autotune.errors import ToolchainError
from autotune.tempdirs import temporary_folder

REQUIREMENT = "pycuda>=2026.1"
TOOLKIT = "cuda-toolkit[nvcc,cudart,cccl,profiler]==13.0.*"
_DRIVER = "libcuda.so.1"


def build_pycuda(wheels: Path | None = None) -> None:
    """Install PyCUDA into this environment, or write its wheel to a folder.

    PyCUDA's setup reads .aksetup-defaults.py in the home folder, so the build uses a temporary one. Raises
    ToolchainError if CUDA's wheels, pip or a C++ compiler are missing, or if the build fails.
    """
    toolkit = _toolkit()
    if importlib.util.find_spec("pip") is None:
        raise ToolchainError(f"{sys.prefix}: has no pip; add it with: {sys.executable} -m ensurepip")
    with temporary_folder() as folder:
        home = Path(folder)
        home.joinpath(".aksetup-defaults.py").write_text(_defaults(toolkit, home), encoding="utf-8")
        home.joinpath("libcuda.so").symlink_to(_driver(home))
        into = ["wheel", "--no-deps", "--wheel-dir", str(wheels)] if wheels else ["install"]
        command = [sys.executable, "-m", "pip", *into, REQUIREMENT]
        done = subprocess.run(command, env=_environment(home), check=False)
    if done.returncode:
        raise ToolchainError(f"PyCUDA cannot be built: pip ended with status {done.returncode}; its output is above")


def _toolkit() -> Path:
    site = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    found = sorted(site.glob("cu1*")) or sorted(site.glob("cuda_runtime"))
    if not found:
        raise ToolchainError(f"{site}: CUDA's wheels are not there; install them with: pip install '{TOOLKIT}'")
    return found[0]


def _defaults(toolkit: Path, home: Path) -> str:
    """Return the settings for PyCUDA's setup. In the CUDA 12 wheels, each part of CUDA has its own folder."""
    include = sorted(map(str, toolkit.parent.glob("*/include")))
    return (
        f"CUDA_ROOT = {str(toolkit)!r}\nCUDA_INC_DIR = {include!r}\nCUDADRV_LIB_DIR = [{str(home)!r}]\n"
        f"CUDART_LIB_DIR = [{str(toolkit / 'lib')!r}]\nCUDA_ENABLE_CURAND = False\n"
    )


def _driver(home: Path) -> Path:
    """Return the driver's library, which the linker needs. If there is no driver, build an empty library."""
    known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout.splitlines()
    for line in known:
        if line.strip().startswith(f"{_DRIVER} "):
            return Path(line.split(" => ")[1])
    empty = home / _DRIVER
    command = [str(find_cxx()), "-shared", f"-Wl,-soname,{_DRIVER}", "-o", str(empty), "-x", "c++", os.devnull]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolchainError(f"{command[0]}: cannot make a library: {done.stderr.strip()[-200:]}")
    return empty


def _environment(home: Path) -> dict[str, str]:
    """Return the environment with a different home folder, but with the user's own pip settings and cache."""
    own = Path.home()
    kept = {"PIP_CACHE_DIR": str(own / ".cache" / "pip")}
    for path in (own / ".config" / "pip" / "pip.conf", own / ".pip" / "pip.conf"):
        if path.is_file():
            kept["PIP_CONFIG_FILE"] = str(path)
    return {**kept, **os.environ, "HOME": str(home)}
