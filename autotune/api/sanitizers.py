"""Open this machine's sanitizers: compute-sanitizer for a CUDA device, and `host:check` for the CPU."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.api.device_names import binary_cache
from autotune.checking.sanitize import HOST_CHECK, TOOLS, ComputeSanitizer, HostCheck, Sanitizer
from autotune.compilation.toolchain import find_cxx, find_sanitizer
from autotune.errors import ToolchainError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.workers.device_worker import Deadlines

_DEADLINES = Deadlines(evaluate_s=300.0, compile_s=300.0)  # sanitized kernels are slow


def compute_sanitizer(device: str, jobs: int, tools: Sequence[str] = TOOLS) -> ComputeSanitizer:
    """Open compute-sanitizer for a CUDA device. Raises ToolchainError if it isn't installed."""
    program = find_sanitizer()
    return ComputeSanitizer(program, device, DeviceEvaluator([device], jobs, cache=binary_cache()), jobs, tools)


def sanitizer_here(jobs: int, *, gpu: bool) -> tuple[Sanitizer | str, str]:
    """Return this machine's sanitizer, and a message that says which checks will not run and why.

    With `gpu`, it is compute-sanitizer, if that is installed. Without AddressSanitizer, an error message is returned
    instead of a sanitizer. Raises ToolchainError if there is no C++ compiler.
    """
    why = "this machine has no CUDA device"
    if gpu:
        try:
            return compute_sanitizer("cuda:0", jobs), ""
        except ToolchainError as error:
            why = str(error)
    find_cxx()
    missing = f"{', '.join(TOOLS)}: not run: {why}"
    try:
        evaluator = DeviceEvaluator([HOST_CHECK], jobs, cache=binary_cache(), deadlines=_DEADLINES)
    except ToolchainError as error:
        return str(error), missing
    return HostCheck(evaluator), missing
