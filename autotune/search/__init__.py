"""trial -> search: which config to evaluate next. The only importer of optuna."""

from autotune.search.optuna_samplers import RejectedProposals
from autotune.search.sampler import AutotuneSampler
from autotune.search.search import Search, single_threaded
from autotune.search.state import FeasibleSpace

__all__ = [
    "AutotuneSampler",
    "FeasibleSpace",
    "RejectedProposals",
    "Search",
    "single_threaded",
]
