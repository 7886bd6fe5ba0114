"""store -> export: a tuned kernel's source as a file that stands on its own."""

from autotune.export.kernel import export_kernel

__all__ = ["export_kernel"]
