"""trial -> search: choose which config to evaluate next. Only this package imports optuna, because that takes long."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.search.sampler import AutotuneSampler as AutotuneSampler

__all__ = ["AutotuneSampler"]

if not TYPE_CHECKING:  # a type checker would accept any name with this function

    def __getattr__(name: str) -> object:
        if name in __all__:
            from autotune.search.sampler import AutotuneSampler

            return AutotuneSampler
        raise AttributeError(f"module 'autotune.search' has no attribute {name!r}")
