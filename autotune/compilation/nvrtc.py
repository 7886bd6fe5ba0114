"""Compile a program with NVRTC, which PyTorch's CUDA wheels contain. Unlike nvcc, it needs no C++ compiler."""

from __future__ import annotations

import ctypes
import importlib.util
import os
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


def find_nvrtc(environ: Mapping[str, str] = os.environ, *, system: Path = SYSTEM_CUDA) -> Nvrtc:
    """Load NVRTC from NVIDIA's wheels, $CUDA_HOME or the system's toolkit.

    Raises ToolchainError with instructions for installing it.
    """
    for folder in _folders(environ, system):
        for major in _MAJORS:
            path = folder / f"libnvrtc.so.{major}"
            if path.is_file():
                return _loaded(path)
    raise ToolchainError(
        "NVRTC not found; it comes with PyTorch's CUDA wheels, or install it with: pip install nvidia-cuda-nvrtc, "
        "or set CUDA_HOME to a CUDA toolkit"
    )


def _folders(environ: Mapping[str, str], system: Path) -> Iterator[Path]:
    """Yield the folders that may contain NVRTC. PyTorch's own comes first, because it fits the driver."""
    wheels = importlib.util.find_spec("nvidia")
    for place in (wheels and wheels.submodule_search_locations) or ():
        yield Path(place) / "cu13" / "lib"
        yield Path(place) / "cuda_nvrtc" / "lib"
    if environ.get("CUDA_HOME"):
        yield Path(environ["CUDA_HOME"]) / "lib64"
    yield system / "lib64"


def _loaded(path: Path) -> Nvrtc:
    folder = path.parent
    for builtins in folder.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))  # NVRTC looks for it by name
    library = ctypes.CDLL(str(path))
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    includes = (folder.parent / "include", folder.parent.parent / "cuda_runtime" / "include")
    return Nvrtc(library, f"nvrtc {major.value}.{minor.value}, {path.stat().st_size} bytes", includes)
