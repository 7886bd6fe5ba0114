"""A Gaussian process for tuning spaces with many infeasible configs."""

from autotune.search import AutotuneSampler


__all__ = ["AutotuneSampler"]
