"""render -> compile: compile a `Program` (text and entry points) to a `Binary`. This doesn't need a GPU."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.errors import Rejected, ToolchainError
from autotune.tempdirs import temporary_folder
from autotune.trial import Outcome, Resources


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a compilation."""

    kind: str
    """cuda | host | null"""
    arch: int = 90
    """compute capability times ten"""
    check: bool = False
    """whether to compile with AddressSanitizer and UndefinedBehaviorSanitizer (host only)"""


@dataclass(frozen=True, slots=True)
class Program:
    """A self-contained CUDA C++ text, its kernels' names, and extra compiler flags."""

    text: str
    entries: tuple[str, ...]
    """names of the extern "C" __global__ functions"""
    flags: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """SHA-256 of the text, entries and flags, in hexadecimal."""
        return hashlib.sha256("\0".join((self.text, *self.entries, *self.flags)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled program: a cubin, or a shared library for the host device."""

    target: Target
    image: bytes
    resources: Resources
    log: str
    """the compiler's output"""
    entries: tuple[str, ...]
    compile_us: float = 0.0
    """wall-clock time of the compilation"""


NVCC_FLAGS = ("-std=c++17", "-O3", "-Xptxas=-v")
"""The compiler flags for every kernel. Changing them changes the environment."""
UNUSED_HEADERS = ("-D_GLIBCXX_BITS_SPECFUN_H",)
"""The include guard of libstdc++'s special functions, which `cuda_runtime.h` includes from C++17 on.

They take 75 of the 280 ms of CPU time for an empty kernel, and device code can't use them. If libstdc++ uses a
different guard, the flag has no effect.
"""
CUDA_INCLUDE = Path(__file__).parent / "cuda_include"
PRELUDE = ("-D__CUDA_RUNTIME_H__", "-include", str(CUDA_INCLUDE / "prelude.h"), f"-I{CUDA_INCLUDE}")
"""The include guard of `cuda_runtime.h`, and a header with the declarations that kernels use from it, from
`cuda_fp16.h` and from `cuda_bf16.h`. This saves 180 of the remaining 255 ms, and the cubin is the same. A text that
needs other declarations is compiled with the full headers.
"""
_PTXAS_SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_PTXAS_USED = re.compile(r"Used (\d+) registers")
_PTXAS_SMEM = re.compile(r"(\d+) bytes smem")
_CONSTANT_SECTION = ".nv.constant3"  # user constant memory, which ptxas doesn't report on sm_90 and newer
_ERROR = re.compile(r"\berror *:|undefined reference", re.IGNORECASE)
_OF_A_LINKER = ("ld returned", "linker command failed")  # the messages of g++ and clang after the linker failed
MAX_MESSAGE = 2000  # maximum number of characters of a compiler's or driver's message that a trial stores


def compile_cubin(program: Program, arch: int, nvcc: Path) -> Binary:
    """Compile a program with nvcc. Raises Rejected('compile', 'compile_error', the compiler's first error lines)."""

    return compile_with_least(lambda options: _run_nvcc(nvcc, program.text, [*options, "-cubin"]), program, arch)


def _run_nvcc(nvcc: Path, text: str, options: Sequence[str]) -> tuple[bytes, str]:
    with temporary_folder() as folder:
        source, image = Path(folder) / "kernel.cu", Path(folder) / "kernel.image"
        source.write_text(text)
        command = [str(nvcc), *options, "-o", str(image), str(source)]
        environ = {**os.environ, "TMPDIR": folder}  # so that the files of a killed compiler are removed, too
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environ)
        except OSError as error:
            raise ToolchainError(f"{nvcc}: cannot be run: {error.strerror}; reinstall it or set CUDA_HOME") from None
        log = done.stdout + done.stderr
        if done.returncode or not image.is_file():
            raise Rejected(Outcome.COMPILE, "compile_error", killed(done.returncode) or first_errors(log, folder))
        return image.read_bytes(), log


def compile_with_least(run_nvcc: Callable[[Sequence[str]], tuple[bytes, str]], program: Program, arch: int) -> Binary:
    """Compile with the prelude or, if that fails, with all of CUDA's headers.

    `run_nvcc` returns the image and the log. Raises the errors of its second call.
    """
    options = nvcc_options(program, arch)
    try:
        image, log = run_nvcc([*PRELUDE, *options])
    except Rejected:
        image, log = run_nvcc(options)
    return binary_of(image, log, program, arch)


def binary_of(image: bytes, log: str, program: Program, arch: int) -> Binary:
    """Return a compiled cubin. Raises Rejected if it lacks one of the program's entries."""
    for entry in program.entries:
        if not _section_bytes(image, f".text.{entry}"):
            raise no_kernel(entry)
    resources = replace(ptxas_resources(log), constant_bytes=_section_bytes(image, _CONSTANT_SECTION))
    return Binary(Target("cuda", arch), image, resources, log[:MAX_MESSAGE], program.entries)


def no_kernel(entry: str) -> Rejected:
    """Return the rejection of a program that lacks a function with an entry's name or mangles it."""
    what = f'there is no kernel {entry} by that name: write extern "C" __global__ void {entry}(...), without a template'
    return Rejected(Outcome.COMPILE, "compile_error", what)


def killed(status: int) -> str:
    """Return a message if a signal killed the compiler, for example when memory ran out, or else ""."""
    return f"the compiler was killed by {signal.Signals(-status).name}" if status < 0 else ""


def nvcc_options(program: Program, arch: int) -> list[str]:
    """Return the nvcc options that determine the cubin."""
    return [*NVCC_FLAGS, *UNUSED_HEADERS, *program.flags, f"-arch=sm_{architecture(arch, program.text)}"]


def architecture(arch: int, text: str) -> str:
    """Return nvcc's name for an architecture: `90`, or `90a` for a text with instructions that exist only on sm_90a."""
    return f"{arch}a" if arch >= 90 and is_exact(text) else str(arch)


def is_exact(text: str) -> bool:
    """Return whether a text contains instructions that exist on just one architecture: wgmma and setmaxnreg
    (PTX ISA).
    """
    return "wgmma." in text or "setmaxnreg." in text


@dataclass(frozen=True, slots=True)
class Section:
    """A section of an ELF file."""

    name: str
    kind: int
    offset: int
    size_bytes: int
    link: int
    """number of the linked section; for a symbol table, the section with the names of the symbols"""


def sections(image: bytes) -> list[Section]:
    """Return the sections of a 64-bit ELF file, in order."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    header_bytes, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQI", image, table + index * header_bytes) for index in range(count)]
    names_at = headers[names][4] if count else 0
    return [
        Section(text_at(image, names_at + name), kind, offset, size_bytes, link)
        for name, kind, _, _, offset, size_bytes, link in headers
    ]


def text_at(image: bytes, at: int) -> str:
    """Return the text from a position to the next zero byte."""
    return image[at : image.index(b"\0", at)].decode()


def _section_bytes(image: bytes, name: str) -> int:
    """Return the size of a 64-bit ELF file's section, or 0 if there is no such section."""
    return next((section.size_bytes for section in sections(image) if section.name == name), 0)


def ptxas_resources(log: str) -> Resources:
    """Return the largest number of registers, spilled bytes and static shared memory in a `ptxas -v` report."""
    return Resources(
        registers=max((int(count) for count in _PTXAS_USED.findall(log)), default=0),
        spill_bytes=max((int(stores) + int(loads) for stores, loads in _PTXAS_SPILL.findall(log)), default=0),
        static_smem_bytes=max((int(size) for size in _PTXAS_SMEM.findall(log)), default=0),
    )


def first_errors(log: str, folder: str = "") -> str:
    """Return the first errors in a compiler's or linker's output, without the temporary folder's name.

    A compiler's line that only says that the linker failed is ignored.
    """
    lines = [line.replace(f"{folder}/", "").strip() if folder else line.strip() for line in log.splitlines()]
    errors = [line for line in lines if _ERROR.search(line) and not any(message in line for message in _OF_A_LINKER)]
    errors = errors or [line for line in lines if line]
    return "\n".join(errors[:5])[:MAX_MESSAGE] or "the compiler failed without a message"
