"""Compile a program with NVRTC, which PyTorch's CUDA wheels contain. Unlike nvcc, it needs no C++ compiler."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.compilation.compile import CUDA_INCLUDE, Binary, Program, architecture, binary_of, first_errors
from autotune.compilation.toolchain import SYSTEM_CUDA
from autotune.errors import Rejected, ToolchainError
from autotune.trial import Outcome

_OPTIONS = (
    "-std=c++17",
    "-default-device",
    "--ptxas-options=-v",
    "-D__builtin_memcpy=memcpy",  # two of g++'s functions that nvcc has, but NVRTC lacks
    "-D__builtin_huge_valf()=__builtin_bit_cast(float, 0x7f800000)",
)
_MAJORS = (13, 12)
_SYSTEM = (SYSTEM_CUDA / "lib64", Path("/usr/lib") / (sysconfig.get_config_var("MULTIARCH") or ""), Path("/usr/lib64"))


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """A loaded NVRTC library."""

    library: ctypes.CDLL
    version: str
    """such as `nvrtc 13.0`, and the library's size, because NVRTC doesn't report its build"""
    includes: tuple[Path, ...]
    """folders with CUDA's headers"""

    def compile(self, text: str, options: Sequence[str]) -> tuple[bytes, str]:
        """Return the cubin and the log. Raises Rejected('compile', 'compile_error', the first error lines)."""
        program = ctypes.c_void_p()
        created = self.library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
        if created:
            raise Rejected(Outcome.COMPILE, "compile_error", f"NVRTC: error {created}")
        try:
            words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self.library.nvrtcCompileProgram(program, len(options), words)
            log = self._content(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if status:
                raise Rejected(Outcome.COMPILE, "compile_error", first_errors(log))
            return self._content(program, "CUBIN"), log
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _content(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        getattr(self.library, f"nvrtcGet{what}")(program, content)
        return content.raw


def compile_by_nvrtc(program: Program, arch: int, nvrtc: Nvrtc) -> Binary:
    """Compile a program, first with the small headers of `cuda_include`, and if that fails with CUDA's.

    Raises Rejected('compile', 'compile_error', the compiler's first error lines).
    """
    options = [*_OPTIONS, *program.flags, f"-arch=sm_{architecture(arch, program.text)}"]
    try:
        image, log = nvrtc.compile(program.text, [f"-I{CUDA_INCLUDE}", *options])
    except Rejected:
        image, log = nvrtc.compile(program.text, [*(f"-I{folder}" for folder in nvrtc.includes), *options])
    return binary_of(image, log, program, arch)


def find_nvrtc(
    environ: Mapping[str, str] = os.environ, *, newest: int | None = None, system: Sequence[Path] = _SYSTEM
) -> Nvrtc:
    """Load NVRTC from NVIDIA's wheels, $CUDA_HOME, a conda environment, the PATH's toolkit or the system.

    A driver can't load the code of a newer CUDA, so `newest` is the major version of the driver's CUDA, if there is a
    driver. Raises ToolchainError with instructions for installing NVRTC.
    """
    majors = [major for major in _MAJORS if newest is None or major <= newest]
    paths = [folder / f"libnvrtc.so.{major}" for folder in _folders(environ, system) for major in majors]
    if path := next(filter(Path.is_file, paths), None):
        return _loaded(path)
    if not majors:
        raise ToolchainError(f"the driver supports CUDA {newest}; install a driver for CUDA {_MAJORS[-1]} or newer")
    what, wheel = "NVRTC", "nvidia-cuda-nvrtc"
    if majors != list(_MAJORS):
        what, wheel = f"NVRTC {newest}, the newest that the driver supports,", f"{wheel}-cu{newest}"
    raise ToolchainError(
        f"{what} not found; it comes with PyTorch's CUDA wheels, or install it with: pip install {wheel}, "
        "or set CUDA_HOME to a CUDA toolkit"
    )


def _folders(environ: Mapping[str, str], system: Sequence[Path]) -> Iterator[Path]:
    """Yield the folders that may contain NVRTC, beginning with PyTorch's own."""
    wheels = importlib.util.find_spec("nvidia")
    for place in (wheels and wheels.submodule_search_locations) or ():
        yield Path(place) / "cu13" / "lib"
        yield Path(place) / "cuda_nvrtc" / "lib"
    if environ.get("CUDA_HOME"):
        yield Path(environ["CUDA_HOME"]) / "lib64"
    if environ.get("CONDA_PREFIX"):
        yield from Path(environ["CONDA_PREFIX"]).glob("targets/*/lib")
    if nvcc := shutil.which("nvcc", path=environ.get("PATH")):
        yield Path(nvcc).resolve().parents[1] / "lib64"
    yield from map(Path, filter(None, environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))
    yield from system


def _loaded(path: Path) -> Nvrtc:
    folder = path.parent
    for builtins in folder.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))  # NVRTC looks for it by name
    library = ctypes.CDLL(str(path))
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    parents = (folder.parent, folder.parent.parent, folder.parent.parent / "cuda_runtime")
    includes = tuple(parent / "include" for parent in parents)
    return Nvrtc(library, f"nvrtc {major.value}.{minor.value}, {path.stat().st_size} bytes", includes)
