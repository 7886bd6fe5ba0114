"""trial -> search: which config to evaluate next. The only importer of optuna."""

from autotune.search.sampler import AutotuneSampler
from autotune.search.search import Search, single_threaded
from autotune.search.state import FeasibleSpace

__all__ = [
    "AutotuneSampler",
    "FeasibleSpace",
    "Search",
    "single_threaded",
]
