"""store -> export: tuned kernels as a library that stands on its own."""

from autotune.exporting.chosen_kernel import Chosen
from autotune.exporting.exporter import Exported, export_library

__all__ = ["Chosen", "Exported", "export_library"]
