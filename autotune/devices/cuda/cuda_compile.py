"""`Program` -> `Binary` for a GPU: compile with nvcc, through PyCUDA if that can be imported."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from autotune.compilation.compile import Binary, Program, compile_cubin, compile_with_least, first_errors
from autotune.compilation.toolchain import find_nvcc
from autotune.errors import DeviceError, Rejected
from autotune.trial import Outcome

try:
    import pycuda.compiler
    import pycuda.driver as driver
except ImportError as error:  # no libcuda, or PyCUDA not installed
    WHY_NOT = str(error)
else:
    WHY_NOT = ""


def require_pycuda(number: int) -> None:
    """Raise DeviceError if PyCUDA can't be imported."""
    if WHY_NOT:
        raise DeviceError(
            f"cuda:{number}: PyCUDA cannot be used here ({WHY_NOT}); `autotune doctor` says how to install it, "
            f"or use --device host"
        )


def compile_cuda(program: Program, arch: int) -> Binary:
    """Compile a program with PyCUDA or, if that can't be imported, with the same nvcc command.

    Raises Rejected('compile', 'compile_error', nvcc's first errors), and ToolchainError if there is no nvcc.
    """
    nvcc = find_nvcc()
    if WHY_NOT:
        return compile_cubin(program, arch, nvcc)

    def run_nvcc(options: Sequence[str]) -> tuple[bytes, str]:
        *others, arch_option = options
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                image = pycuda.compiler.compile(
                    program.text,
                    nvcc=str(nvcc),
                    options=others,
                    arch=arch_option.removeprefix("-arch="),
                    no_extern_c=True,
                    cache_dir=False,
                    target="cubin",
                )
            except driver.CompileError as failure:
                message = first_errors(str(failure), "/tmp")  # noqa: S108
                raise Rejected(Outcome.COMPILE, "compile_error", message) from None
        return image, "\n".join(str(warning.message) for warning in caught)

    return compile_with_least(run_nvcc, program, arch)
