"""store -> export: write tuned kernels as a library that does not need autotune."""

from autotune.exporting.exporter import Exported, export_library
from autotune.exporting.kernel import SelectedKernel

__all__ = ["Exported", "SelectedKernel", "export_library"]
