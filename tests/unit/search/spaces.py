"""Small search spaces with a known cost for the search's tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.search.search import FeasibleSpace, Search
from autotune.trial import Config, Outcome, Timing, Trial, Value


@dataclass(frozen=True, slots=True)
class ListedParam:
    """A parameter with its ordered values."""

    name: str
    values: tuple[Value, ...]


class ListedSpace:
    """A search space whose feasible configs are listed by a predicate over the full product."""

    def __init__(
        self,
        template: str,
        params: Mapping[str, Sequence[Value]],
        feasible: Callable[[Mapping[str, Value]], bool] = lambda values: True,
        *,
        complete: bool = True,
        padded_work: Callable[[Mapping[str, Value]], int] | None = None,
    ) -> None:
        self.template = template
        self.params = tuple(ListedParam(name, tuple(values)) for name, values in params.items())
        self.complete = complete
        rows = [
            row
            for row in itertools.product(*(range(len(param.values)) for param in self.params))
            if feasible({param.name: param.values[i] for param, i in zip(self.params, row, strict=True)})
        ]
        self.rows: npt.NDArray[np.int16] = np.array(rows, dtype=np.int16).reshape(len(rows), len(self.params))
        configs = [self.config(row).params for row in range(len(rows))]
        self.padded_work = None if padded_work is None else np.array(list(map(padded_work, configs)))
        self._row_of = {self.config(row): row for row in range(len(rows))}

    @property
    def default(self) -> Config | None:
        return self.config(0) if len(self.rows) else None

    def config(self, row: int) -> Config:
        items = zip(self.params, self.rows[row], strict=True)
        return Config(self.template, tuple((param.name, param.values[i]) for param, i in items))

    def row_of(self, config: Config) -> int | None:
        return self._row_of.get(config)


Cost = Callable[[Config], float]
"""Microseconds of a config; infinite when it fails."""


def finished(number: int, config: Config, cost: float) -> Trial:
    """The trial of a config that took `cost` microseconds, or failed at run time."""
    if cost == float("inf"):
        return Trial(number, config, Outcome.RUNTIME, reason="crash")
    return Trial(number, config, Outcome.CORRECT, timing=Timing((cost,), cost, cost, cost, "cold"))


def run(
    spaces: Sequence[FeasibleSpace],
    cost: Cost,
    *,
    sampler: str,
    budget: int,
    seed: int = 0,
    history: Sequence[Trial] = (),
) -> list[Trial]:
    """Search one at a time until the budget is spent or nothing is left; the history counts."""
    search = Search(spaces, sampler=sampler, seed=seed, budget=budget, history=history)
    trials = list(history)
    while len(trials) < budget:
        config = search.ask(len(trials))
        if config is None:
            break
        trials.append(finished(len(trials), config, cost(config)))
        search.tell(trials[-1])
    return trials
