"""store -> export: tuned kernels as a library that stands on its own."""

from autotune.export.library import Chosen, Exported, export_library
from autotune.export.t4 import export_t4

__all__ = ["Chosen", "Exported", "export_library", "export_t4"]
