"""trial -> search: which config to evaluate next. The only importer of optuna."""

from autotune.search.initial_design import InitialDesign
from autotune.search.sampler import AutotuneSampler
from autotune.search.samplers import RejectedProposals
from autotune.search.search import Search
from autotune.search.state import FeasibleSpace
from autotune.search.threads import single_threaded

__all__ = [
    "AutotuneSampler",
    "FeasibleSpace",
    "InitialDesign",
    "RejectedProposals",
    "Search",
    "single_threaded",
]
