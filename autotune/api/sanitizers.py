"""Choose a sanitizer: compute-sanitizer for the first CUDA device, or else the host's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from autotune.api.device_names import binary_cache, first_gpu
from autotune.checking.sanitize import HOST_CHECK, SMALL_N, TOOLS, ComputeSanitizer, HostCheck, Sanitizer
from autotune.compilation.toolchain import find_cxx, find_sanitizer
from autotune.devices.backends import parse_device
from autotune.devices.device import abilities
from autotune.errors import DeviceError, ToolchainError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.workers.device_worker import Deadlines

_DEADLINES = Deadlines(evaluate_s=300.0, compile_s=300.0)  # sanitized kernels are slow


def open_sanitizer(
    device: str | None,
    jobs: int,
    *,
    tools: Sequence[str] = (),
    small_n: Sequence[int] = SMALL_N,
    logs: Path | None = None,
    say: Callable[[str, str], None] = lambda *_: None,
) -> Sanitizer:
    """Open a device's sanitizer, by default that of the first CUDA device, or of the host if there is none.

    If the host is used by default, `say` is called with `host:check` and the reason. `tools` are compute-sanitizer's
    tools; empty means all of them. Raises ToolchainError if compute-sanitizer or AddressSanitizer isn't installed, and
    DeviceError for a device that none of the sanitizers or tools supports.
    """
    if device is None:
        try:
            evaluator = first_gpu(jobs)
        except DeviceError as error:
            say(HOST_CHECK, str(error))
            device = HOST_CHECK
        else:
            return _on_gpu("cuda:0", evaluator, jobs, tools or TOOLS, small_n, logs)
    if abilities(parse_device(device)[0]).gpu:
        evaluator = DeviceEvaluator([device], jobs, cache=binary_cache())
        return _on_gpu(device, evaluator, jobs, tools or TOOLS, small_n, logs)
    if device != HOST_CHECK:
        raise DeviceError(f"{device}: no sanitizer supports it; expected cuda:N or {HOST_CHECK}")
    if tools:
        raise DeviceError(f"{device}: {', '.join(tools)} needs a CUDA device; leave it out for the host's own")
    return HostCheck(DeviceEvaluator([HOST_CHECK], jobs, cache=binary_cache(), deadlines=_DEADLINES), small_n)


def _on_gpu(
    device: str,
    evaluator: DeviceEvaluator,
    jobs: int,
    tools: Sequence[str],
    small_n: Sequence[int],
    logs: Path | None,
) -> Sanitizer:
    try:
        return ComputeSanitizer(find_sanitizer(), device, evaluator, jobs, tools=tools, small_n=small_n, logs=logs)
    except BaseException:
        evaluator.close()
        raise


def sanitizer_here(jobs: int, *, gpu: bool) -> tuple[Sanitizer | str, str]:
    """Return this machine's sanitizer, and a message that says which checks will not run and why.

    With `gpu`, it is compute-sanitizer, if that is installed. Without AddressSanitizer, an error message is returned
    instead of a sanitizer. Raises ToolchainError if there is no C++ compiler.
    """
    why = "this machine has no CUDA device"
    if gpu:
        try:
            return open_sanitizer("cuda:0", jobs), ""
        except ToolchainError as error:
            why = str(error)
    find_cxx()
    missing = f"{', '.join(TOOLS)}: not run: {why}"
    try:
        return open_sanitizer(HOST_CHECK, jobs), missing
    except ToolchainError as error:
        return str(error), missing
