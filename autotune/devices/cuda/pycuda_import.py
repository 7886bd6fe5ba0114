"""Import PyCUDA if possible; otherwise explain why not."""

from __future__ import annotations

from autotune.errors import DeviceError

try:
    import pycuda.compiler
    import pycuda.driver  # noqa: F401 - without libcuda it is this one that fails
except ImportError as error:  # no libcuda, or PyCUDA not installed
    WHY_NOT = str(error)
else:
    WHY_NOT = ""


def require_pycuda(number: int) -> None:
    """Raise DeviceError if PyCUDA cannot be imported."""
    if WHY_NOT:
        raise DeviceError(
            f"cuda:{number}: PyCUDA cannot be used here ({WHY_NOT}); `autotune doctor` says how to install it, "
            f"or use --device host"
        )
