"""autotune finds the fastest CUDA kernel for each layer of your network, checks it, and exports it as a library.

A study lists layers. Templates generate CUDA kernels for them, and every kernel is compiled, verified against float64,
timed and stored. You can then export each layer's best kernel. The main functions are `tune`, `best` and `export`.
`convert` speeds up PyTorch networks and needs PyTorch. Every failure is an `AutotuneError`. Names are imported on first
use.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # type checkers know this name; importing `typing` takes longer than the rest of this module
if TYPE_CHECKING:
    from autotune.api.answers import best
    from autotune.api.exports import ExportResult, export
    from autotune.api.family_importance import FamilyImportance, importance
    from autotune.api.tuning import TuneResult, tune
    from autotune.autotune_runtime.torch_convert import convert as convert  # not in __all__, because it needs PyTorch
    from autotune.errors import AutotuneError
    from autotune.problem import Conv2dProblem, Layer
    from autotune.store import Store
    from autotune.study import Study
    from autotune.study_reader import load_study
    from autotune.trial import Config, Trial
    from autotune.tuning.trial_log import Progress

__version__ = "0.1.0"

__all__ = [
    "AutotuneError",
    "Config",
    "Conv2dProblem",
    "ExportResult",
    "FamilyImportance",
    "Layer",
    "Progress",
    "Store",
    "Study",
    "Trial",
    "TuneResult",
    "__version__",
    "best",
    "export",
    "importance",
    "load_study",
    "tune",
]

_HOMES = {
    "autotune.api.answers": ("best",),
    "autotune.api.exports": ("ExportResult", "export"),
    "autotune.api.family_importance": ("FamilyImportance", "importance"),
    "autotune.api.tuning": ("TuneResult", "tune"),
    "autotune.autotune_runtime.torch_convert": ("convert",),
    "autotune.errors": ("AutotuneError",),
    "autotune.problem": ("Conv2dProblem", "Layer"),
    "autotune.store": ("Store",),
    "autotune.study": ("Study",),
    "autotune.study_reader": ("load_study",),
    "autotune.trial": ("Config", "Trial"),
    "autotune.tuning.trial_log": ("Progress",),
}

if not TYPE_CHECKING:  # a type checker knows the names above, and would accept any name with this function

    def __getattr__(name: str) -> object:
        for home, names in _HOMES.items():
            if name in names:
                try:
                    module = importlib.import_module(home)
                except ModuleNotFoundError as error:
                    if error.name != "torch":
                        raise
                    raise ImportError(f"autotune.{name} needs PyTorch: pip install 'torch>=2.9'") from None
                globals()[name] = found = getattr(module, name)
                importlib.import_module("autotune.field_docs").document_fields(found)
                return found
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
