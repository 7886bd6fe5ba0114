"""trial -> search: which config to evaluate next. The only importer of optuna."""

from autotune.search.landscape import FeasibleSpace
from autotune.search.study import SAMPLERS, Search

__all__ = ["SAMPLERS", "FeasibleSpace", "Search"]
