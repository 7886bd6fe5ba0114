"""AutotuneSampler as a strategy of Kernel Tuner (https://kerneltuner.github.io)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import optuna
from optuna.distributions import CategoricalChoiceType

from autotune.search.sampler import AutotuneSampler

Config: TypeAlias = tuple[CategoricalChoiceType, ...]


class Searchspace(Protocol):
    """The part of `kernel_tuner.searchspace.Searchspace` that the strategy uses."""

    list: Sequence[Config]
    """the configs that the restrictions allow"""
    param_names: Sequence[str]


class KernelTunerStrategy:
    """An optimization algorithm for `kernel_tuner.strategies.wrapper.OptAlgWrapper`.

    It only proposes configs that the restrictions allow, each at most once. Equal seeds give equal proposals.
    """

    def __init__(self, *, seed: int | None = None) -> None:
        self.costfunc_kwargs = {"scaling": False, "snap": False}
        """arguments that make Kernel Tuner's cost function take values unchanged"""
        self._seed = seed

    def __call__(self, func: Callable[[Config], float], searchspace: Searchspace) -> tuple[Config, float]:
        """Minimise `func`, and return the best config and its cost once every config has been tried.

        To end a run early, Kernel Tuner raises an exception in `func`, which passes through.
        """
        names = searchspace.param_names
        sampler = AutotuneSampler(
            seed=self._seed, space=[dict(zip(names, config, strict=True)) for config in searchspace.list]
        )
        study = optuna.create_study(sampler=sampler)
        for _ in searchspace.list:
            trial = study.ask()
            params = sampler.suggest(trial)
            cost = func(tuple(params[name] for name in names))
            failed = cost == sys.float_info.max  # Kernel Tuner's cost of a config that failed
            study.tell(trial, float("inf") if failed else cost)
        return tuple(study.best_params[name] for name in names), study.best_value
