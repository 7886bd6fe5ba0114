"""store -> export: a tuned kernel's source as a file that stands on its own."""

from autotune.export.kernel import export_kernel
from autotune.export.t4 import export_t4

__all__ = ["export_kernel", "export_t4"]
