"""trial -> search: which config to evaluate next. The only importer of optuna."""

from autotune.search.landscape import FeasibleSpace
from autotune.search.sampler import AutotuneSampler
from autotune.search.samplers import Refused
from autotune.search.search import Opening, Search
from autotune.search.threads import single_threaded

__all__ = ["AutotuneSampler", "FeasibleSpace", "Opening", "Refused", "Search", "single_threaded"]
