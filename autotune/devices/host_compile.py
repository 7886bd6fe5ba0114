"""render -> compile for the CPU: compile a `Program` to a shared library with g++ or clang++.

CUDA's functions are implemented by the headers in `host_include`. The compiler reads the text from a pipe and writes
the library to memory, so no file is left on disk.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from autotune.compilation.cache import BinaryCache
from autotune.compilation.compile import Binary, Program, Target, first_errors, killed, no_kernel, sections, text_at
from autotune.compilation.toolchain import compiler_version, output_of
from autotune.errors import Rejected, ToolchainError
from autotune.tempdirs import temporary_folder
from autotune.trial import Outcome, Resources

_NO_HEADER = re.compile(r"fatal error: .*(No such file|file not found)")
_NO_FUNCTION = re.compile(r"'__\w+' was not declared|undeclared identifier '__|arguments to '__\w+' that depend")
_ASM = re.compile(r"\basm\s*(volatile\s*)?\(")
_ASM_ERROR = re.compile(
    r"Error: |invalid 'asm'|in 'asm'|asm operand|constraint|unknown use of instruction|invalid instruction"
)
_TEMPLATE = r"\btemplate\s*<[^;{{}}]*>[^;{{}}]*\bvoid\s+{entry}\s*\("
"""Matches an entry point that is a template, whose name nvcc would mangle."""
INCLUDE = Path(__file__).parent / "host_include"
COMMON = ("-std=c++17", "-fPIC", "-shared", "-pipe", "-fno-exceptions", "-fno-rtti")
GCC_ONLY = (
    *("-fno-gnu-unique", "-fno-extern-tls-init"),  # libraries can be unloaded, and shared memory needs no calls
    *("--param", "asan-instrumentation-with-call-threshold=0"),  # so that each access calls the runtime
)
CLANG_ONLY = ("-mllvm", "-asan-instrumentation-with-call-threshold=0")
SEMANTICS = ("-ffp-contract=fast", "-fno-strict-aliasing", "-fno-math-errno", "-fno-trapping-math")
"""Flags that match nvcc's assumptions: fused multiply-adds, reinterpreted memory, no errno."""
UNSET = "-ftrivial-auto-var-init="
"""Flag for the contents of uninitialised variables: `pattern` (large negative numbers, which a maximum hides) or
`zero`.
"""
FLAGS = ("-O3", "-march=native", "-fwrapv", f"{UNSET}pattern", "-Wuninitialized", "-Wmaybe-uninitialized", *SEMANTICS)
CHECK_FLAGS = (
    f"{UNSET}zero",
    *("-O1", "-g1", "-march=native", *SEMANTICS),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-DAUTOTUNE_CHECKED"),
    "-Wl," + ",".join(f"--wrap=__asan_{verb}{size}" for verb in ("load", "store") for size in (1, 2, 4, 8, 16, "N")),
    "-fno-sanitize=null,object-size,pointer-overflow",  # AddressSanitizer checks the access itself
)
STATIC_SMEM_BYTES = 49152  # ptxas's limit for the static shared memory of a kernel
CONSTANT_BYTES = 65536  # ptxas's limit for the constant memory of a program
TARGET = Target("host")
_EXTERN_SHARED = re.compile(r"\bextern\s+__shared__\b[^;\[]*?(\w+)\s*\[\s*\]\s*;")
_CONSTANT = re.compile(r"\b__constant__\b[^;=({\[]*?(\w+)\s*(?:__attribute__\s*\(\(.*?\)\)\s*)?[\[;={]")
_LAUNCH_BOUNDS = r"\b__launch_bounds__\s*\(((?:[^,()]|\([^()]*\))+)[^;{{}}]*\b{entry}\s*\("
"""Matches a kernel's launch bounds. The first group is the maximum number of threads per block."""
_CLUSTER = r"\b__cluster_dims__\s*\(([^,()]+)[^()]*\)[^;{{]*\b{entry}\s*\("


def compile_host(program: Program, target: Target, *, cxx: str) -> Binary:
    """Compile a program for this machine's CPU. A program without entries is plain C++.

    Raises Rejected('compile', ...) if the compiler rejects the program, and ToolchainError if it doesn't start.
    """
    if not program.entries:
        image, log = _compile(cxx, [*COMMON, "-x", "c++", "-", *program.flags], program.text)
        return Binary(target, image, Resources(), log, ())
    flags = CHECK_FLAGS if target.check else FLAGS
    names = dict.fromkeys(_EXTERN_SHARED.findall(program.text))
    tail = [f"AUTOTUNE_ENTRY({entry})" for entry in program.entries]
    bounds = []
    for entry in program.entries:
        if re.search(_TEMPLATE.format(entry=re.escape(entry)), program.text):
            raise no_kernel(entry)
        if cluster := re.search(_CLUSTER.format(entry=re.escape(entry)), program.text):
            tail.append(f"AUTOTUNE_CLUSTER({entry}, {cluster[1]})")
        if threads := re.search(_LAUNCH_BOUNDS.format(entry=re.escape(entry)), program.text):
            bounds.append(f"AUTOTUNE_LAUNCH_BOUNDS({entry}, ({threads[1]}))")
    if names:
        first, *others = names
        tail.append(f"AUTOTUNE_SMEM({first})")
        tail += [f'asm(".globl {name}\\n.set {name}, {first}\\n.type {name}, @tls_object");' for name in others]

    def whole(kernels: str, *more: str) -> str:
        return '#line 1 "kernel.cu"\n' + kernels + '\n#line 1 "entries"\n' + "\n".join((*tail, *more)) + "\n"

    arguments = [
        *COMMON,
        "-fno-semantic-interposition",
        "-Wl,-Bsymbolic",
        "-Wno-unknown-pragmas",
        *flags,
        *program.flags,
    ]
    arguments += [f"-I{INCLUDE}", "-include", "autotune_host.h", "-x", "c++", "-"]
    referring = with_references(program.text) if target.check else program.text
    try:
        image, log = _compile(cxx, arguments, whole(referring, *bounds))
    except Rejected:
        if referring == program.text and not bounds:
            raise
        # A lambda cannot capture such a reference, and bounds may use a name that is unknown after the kernel.
        image, log = _compile(cxx, arguments, whole(program.text))
    for entry in program.entries:
        if f"\0_Z{len(entry)}{entry}".encode() in image:
            raise no_kernel(entry)  # nvcc would not find this name, although it would link here
    resources = _resources(image, program, dynamic=set(names))
    return Binary(target, image, resources, log, program.entries)


def host_identity(cxx: str) -> str:
    """Return everything that affects a library apart from the program's text.

    This is the compiler, the CPU (-march=native), the flags and the contents of the headers.
    """
    headers = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(INCLUDE.rglob("*")) if path.is_file()))
    flags = " ".join((*COMMON, *FLAGS, *CHECK_FLAGS))
    cpu = Path("/proc/cpuinfo").read_text().partition("\n\n")[0] if Path("/proc/cpuinfo").is_file() else ""
    features = next((line for line in cpu.splitlines() if line.startswith("flags")), "")
    return f"{compiler_version(Path(cxx))} {flags} {features} {headers.hexdigest()}"


class HostCompiler:
    """Compiles programs for this machine's CPU, with an optional cache."""

    def __init__(self, cxx: str, cache: BinaryCache | None = None) -> None:
        self._cxx, self._cache = cxx, cache
        self._identity = host_identity(cxx) if cache else ""

    def __call__(self, program: Program, target: Target = TARGET) -> Binary:
        """Compile a program, or return the cached binary. Raises the same errors as `compile_host`."""

        def compiled() -> Binary:
            return compile_host(program, target, cxx=self._cxx)

        if self._cache is None:
            return compiled()
        return self._cache.kept(self._cache.key(program, target, self._identity), compiled)

    def own(self, program: Program) -> Binary:
        """Compile one of the host device's own libraries. Raises ToolchainError if that fails."""
        try:
            return self(program)
        except Rejected as error:
            raise ToolchainError(f"{self._cxx} cannot compile a library of the host device: {error.message}") from error


def runtime_program(*flags: str) -> Program:
    """Return the program for the library that runs kernels.

    On CPUs other than x86-64, the flag `-DAUTOTUNE_UCONTEXT` selects a slower context switch.
    """
    return _own_program(RUNTIME_NAME, "autotune_host_runtime.cpp", *flags)


def driver_program() -> Program:
    """Return the program for a libcuda.so.1 that implements the driver functions called by exported libraries."""
    return _own_program(DRIVER_NAME, "autotune_host_driver.cpp")


def _own_program(name: str, source: str, *flags: str) -> Program:
    own = (f"-I{INCLUDE}", f"-Wl,-soname,{name}", "-lpthread", "-ldl")
    return Program((INCLUDE / source).read_text(), (), ("-O2", *flags, *own))


@lru_cache(maxsize=4)
def compile_runtime(cxx: str, *flags: str) -> bytes:
    """Return the compiled image of `runtime_program`, compiling it once per process."""
    return HostCompiler(cxx).own(runtime_program(*flags)).image


RUNTIME_NAME = "libautotune_host.so"
DRIVER_NAME = "libcuda.so.1"


def check_environment(cxx: str) -> dict[str, str]:
    """Return the environment variables for a process that loads programs compiled with `Target.check`.

    AddressSanitizer must be the process's first library. If it finds an error, it writes a report with the line in
    `kernel.cu` to standard error and ends the process with status 99.
    """
    library = output_of(Path(cxx), "-print-file-name=libasan.so").strip()
    if "/" not in library:
        raise ToolchainError(f"{cxx} has no AddressSanitizer library; install it (Debian: apt-get install libasan8)")
    preload = [os.path.realpath(library), *os.environ.get("LD_PRELOAD", "").split()]
    return {
        "LD_PRELOAD": " ".join(preload),
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:exitcode=99:handle_segv=1:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "halt_on_error=1:exitcode=99:print_stacktrace=1",
    }


def _compile(cxx: str, arguments: list[str], text: str) -> tuple[bytes, str]:
    """Run the compiler on `text`, and return the library and the compiler's messages.

    There is no time limit here, because the parent process has a deadline and kills the whole process group.
    """
    output = os.memfd_create("autotune-library")
    try:
        own = CLANG_ONLY if "clang" in Path(shutil.which(cxx) or cxx).resolve().name else GCC_ONLY
        try:
            with temporary_folder() as folder:  # so that the files of a killed compiler are removed
                done = subprocess.run(
                    [cxx, *own, *arguments, "-o", f"/proc/self/fd/{output}"],
                    input=text,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "LC_ALL": "C", "TMPDIR": folder},
                    pass_fds=(output,),
                    check=False,
                )
        except OSError as error:
            if error.filename != cxx:
                raise ToolchainError(f"cannot compile for the host device: {error}") from error
            raise ToolchainError(
                f"cannot run the C++ compiler {cxx}: {error.strerror}; set CXX to another one"
            ) from error
        if done.returncode:
            message = killed(done.returncode) or first_errors(done.stderr)
            if _ASM.search(text) and _ASM_ERROR.search(done.stderr):
                message = (
                    f"{message}; the host device cannot run PTX: put asm(...) between #ifdef __CUDA_ARCH__ and #else, "
                    "with C++ after #else, include the _ptx*.cuh that wraps it, or use a GPU (--device cuda:0)"
                )
            for what, lacking in (("headers", _NO_HEADER), ("functions", _NO_FUNCTION)):
                if lacking.search(message):
                    message = f"{message}; the host supports only some of CUDA's {what}: use a GPU (--device cuda:0)"
            raise Rejected(Outcome.COMPILE, "compile_error", message)
        with open(output, "rb", closefd=False) as file:
            file.seek(0)
            return file.read(), done.stderr
    finally:
        os.close(output)


def _resources(image: bytes, program: Program, *, dynamic: set[str]) -> Resources:
    """Return the shared and constant memory that a program declares. Raises Rejected above ptxas's limits.

    A variable inside a kernel belongs to that kernel; any other variable counts for every kernel.
    """
    variables = symbols(image)
    declared = {name: v.size_bytes for name, v in variables.items() if v.thread_local and name not in dynamic}
    inside = tuple(f"_ZZ{len(entry)}{entry}" for entry in program.entries)
    everywhere = sum(size for name, size in declared.items() if not name.startswith(inside))
    own = (sum(size for name, size in declared.items() if name.startswith(kernel)) for kernel in inside)
    shared = everywhere + max(own)
    constants = sum(variables[name].size_bytes for name in set(_CONSTANT.findall(program.text)) if name in variables)
    for used, most, what in (
        (shared, STATIC_SMEM_BYTES, "shared data"),
        (constants, CONSTANT_BYTES, "global constant data"),
    ):
        if used > most:
            message = f"the program uses too much {what} ({used} bytes, {most} at most)"
            raise Rejected(Outcome.COMPILE, "compile_error", message)
    return Resources(static_smem_bytes=shared, constant_bytes=constants)


_SYMTAB = 2  # section type
_OBJECT, _TLS = 1, 6  # symbol types


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable of a library."""

    size_bytes: int
    thread_local: bool
    writable: bool
    """whether the variable is writable and not thread-local"""
    offset: int
    """offset from the library's base address"""


def symbols(image: bytes) -> dict[str, Symbol]:
    """Return all defined variables, but no functions, by name. `image` is the contents of a library file."""
    found: dict[str, Symbol] = {}
    all_sections = sections(image)
    for table in all_sections:
        if table.kind != _SYMTAB:
            continue
        content = image[table.offset : table.offset + table.size_bytes]
        for name, info, _, section, offset, size_bytes in struct.iter_unpack("<IBBHQQ", content):
            if section and info & 15 in (_OBJECT, _TLS):
                named = text_at(image, all_sections[table.link].offset + name)
                place = all_sections[section].name if section < len(all_sections) else ""
                writable = info & 15 == _OBJECT and place.startswith((".data", ".bss"))
                found[named] = Symbol(size_bytes, info & 15 == _TLS, writable and place != ".data.rel.ro", offset)
    return found


_DECLARATION = re.compile(r"\b(?<!extern )__shared__\b((?:[^;{}()]|\([^;{}()]*\))*);")
_DECLARATOR = re.compile(r"(.*?)\b(\w+)(\s*(?:\[[^\[\]]*\]\s*)*)", re.DOTALL)
STORAGE = "autotune_storage_of_"
"""Prefix for a variable whose original name becomes the name of a reference."""


def with_references(text: str) -> str:
    """Return the text with each shared-memory variable replaced by a reference of the same name.

    Variables of unknown size aren't replaced.
    """
    return _DECLARATION.sub(_renamed, text)


def _renamed(found: re.Match[str]) -> str:
    parts = [_DECLARATOR.fullmatch(part) for part in _split(found[1])]
    if not all(parts):
        return found[0]
    declared = ",".join(f"{part[1]}{STORAGE}{part[2]}{part[3]}" for part in parts if part)
    names = [part[2] for part in parts if part]
    references = "".join(f" auto& {name} = autotune_host::shared_reference({STORAGE}{name});" for name in names)
    return f"__shared__{declared};{references}"


def _split(declarators: str) -> list[str]:
    """Split declarators at commas outside brackets."""
    parts, depth = [""], 0
    for character in declarators:
        depth += (character in "<([") - (character in ">)]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts
