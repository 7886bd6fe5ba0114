"""Ask and tell, using one in-memory Optuna study per tuning target, with its samplers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import optuna
from optuna.trial import TrialState

from autotune.errors import StudyError
from autotune.search.sampler import StudySampler
from autotune.search.space_model import ListedSpaceModel, by_model
from autotune.search.state import Family
from autotune.study import SAMPLERS
from autotune.trial import Config, Trial, Value

if TYPE_CHECKING:
    from autotune.search.warm_start import WarmStart

LOOK = 8
"""Number of latest proposals to consider. The most promising one determines the expected gain."""
LEAST = 1e-3
"""The smallest difference between two log times that is significant."""
AHEAD = 10
"""Number of evaluations that an expected gain covers, each with the gain of the most promising proposal."""


class Param(Protocol):
    """A parameter's name and its values, in order."""

    @property
    def name(self) -> str: ...
    @property
    def values(self) -> tuple[Value, ...]: ...


class FeasibleSpace(Protocol):
    """The part of `SearchSpace` that a search uses."""

    @property
    def template(self) -> str: ...
    @property
    def params(self) -> Sequence[Param]: ...
    @property
    def rows(self) -> npt.NDArray[np.int16]:
        """Value indices of the feasible configs [m, len(params)]."""
        ...

    @property
    def complete(self) -> bool: ...
    @property
    def padded_work(self) -> npt.NDArray[np.int64] | None: ...
    @property
    def default(self) -> Config | None: ...
    def config(self, row: int, /) -> Config: ...
    def row_of(self, config: Config, /) -> int | None: ...


def family_of(space: FeasibleSpace) -> Family:
    """Convert a space to a family. In the Optuna study, each parameter is called TEMPLATE.PARAM."""
    params = {f"{space.template}.{param.name}": param.values for param in space.params}
    return Family(space.template, params, space.rows, space.padded_work)


class Search:
    """Proposes configs of all families under one budget, each feasible config at most once.

    `ask` depends only on the seed, the trial number, the told trials and the pending configs, so a search resumed from
    its `history` proposes the same configs as an uninterrupted one. The configs of the initial `design` come first,
    followed by each family's default. If the whole space is no larger than `budget`, its configs then follow in order.
    `budget` is the number of evaluations that are certain to happen, or 0 if something else may end the search. Raises
    StudyError for an unknown sampler.

    With `watch`, the default sampler's model predicts the gain from further evaluations, whichever sampler is used.
    """

    def __init__(
        self,
        spaces: Sequence[FeasibleSpace],
        *,
        sampler: str,
        seed: int,
        budget: int,
        history: Sequence[Trial],
        design: WarmStart | None = None,
        watch: bool = False,
    ) -> None:
        if sampler not in SAMPLERS:
            raise StudyError(f"sampler = {sampler!r}: expected one of {', '.join(SAMPLERS)}")
        self._is_default = sampler == "default"
        choose = by_model if self._is_default else by_chance
        self._spaces = [space for space in spaces if len(space.rows)]
        self._rows = ListedSpaceModel([family_of(space) for space in self._spaces], least=LEAST, choose=choose)
        self._state = self._rows.state
        self._defaults = [self._find(space.default) for space in self._spaces if space.default is not None]
        self._walked = all(space.complete for space in self._spaces) and len(self._state) <= budget
        self._design = design
        self._by = design.by if design is not None else ""
        self._designed: set[int] = set()  # indices of configs that the initial design proposed
        self._seed = seed
        self._asked: dict[int, int] = {}  # config index -> number of the Optuna trial that was asked and not yet told
        self._number = 0
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(sampler=StudySampler(self._rows, seed=seed, number=lambda _: self._number))
        optuna.logging.set_verbosity(verbosity)
        self._watch = watch
        self._gains: list[float | None] = []
        for place, trial in enumerate(history):
            self._begin(trial.number, watch=watch and place >= len(history) - LOOK)
            self.tell(trial)

    def ask(self, number: int) -> Config | None:
        """Return the config to evaluate as trial `number`, or None if every feasible config has been proposed."""
        if not self._state.free.any():
            return None
        forced = self._begin(number, watch=self._watch)
        if forced is not None:  # the study proposes an enqueued config first
            self._study.enqueue_trial(self._rows.encoding.params(forced))
        self._number = number
        trial = self._study.ask()
        index = self._rows.suggest(trial)
        self._asked[index] = trial.number
        return self._config(index)

    @property
    def is_random(self) -> bool:
        """Whether the next config would be random, although pending results might let a model choose it."""
        return self._is_default and self._rows.proposer.is_random and self._forced() is None

    @property
    def expected_gain(self) -> float | None:
        """The fraction by which AHEAD more evaluations are expected to beat the best config, or None while that is
        unknown.
        """
        latest = [gain for gain in self._gains[-LOOK:] if gain is not None]
        return AHEAD * max(latest) if len(latest) == LOOK else None

    def proposed_by(self, config: Config) -> str:
        """Return where a config comes from: the initial design's word, `default` for a family's default, or
        `search`.
        """
        index = self._find(config)
        if index in self._designed:
            return self._by
        return "default" if index in self._defaults else "search"

    def tell(self, trial: Trial) -> None:
        """Add a finished trial. It is ignored if its config isn't in any space or was told before."""
        index = self._find(trial.config)
        if index is None:
            return
        value = float(np.log(trial.median_us)) if trial.median_us else None
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        if index in self._asked:
            self._study.tell(self._asked.pop(index), value, state=state)
        elif self._state.free[index]:
            past = optuna.trial.create_trial(
                params=self._rows.encoding.params(index),
                distributions=self._rows.encoding.distributions(index),
                state=state,
                value=value,
            )
            self._study.add_trial(past)
            self._rows.follow(self._study)

    def _begin(self, number: int, *, watch: bool) -> int | None:
        """Return the config that trial `number` gets regardless of the sampler, or None if the sampler chooses.

        Records whether the initial design proposed the config. With `watch`, also records the gain that the model
        expects from the next config, or None if it isn't the model's choice.
        """
        forced = self._forced()
        if self._design is not None and forced is not None:
            self._designed.add(forced)
        if watch and self._state.free.any():
            self._rows.proposer.propose(np.random.default_rng([self._seed, number]))
            self._gains.append(self._rows.proposer.gain if forced is None else None)
        return forced

    def _forced(self) -> int | None:
        """Return the next config that isn't up to the sampler: from the initial design, a default, or a small space's
        next one.

        Returns None if the sampler chooses. An exhausted design is dropped.
        """
        if self._design is not None:
            values = {self._config(each.index): each.value for each in self._state.observations}
            config = self._design.next(values, [self._config(index) for index in self._state.pending])
            index = None if config is None else self._find(config)
            if index is not None and self._state.free[index]:
                return index
            self._design = None
        default = next((index for index in self._defaults if index is not None and self._state.free[index]), None)
        if default is not None or not self._walked or not self._state.free.any():
            return default
        return int(np.argmax(self._state.free))

    def _find(self, config: Config) -> int | None:
        """Return a config's index, or None if it isn't in any space."""
        for space, offset in zip(self._spaces, self._state.offsets, strict=False):
            if space.template == config.template:
                row = space.row_of(config)
                return None if row is None else offset + row
        return None

    def _config(self, index: int) -> Config:
        """Return the config at an index."""
        family = self._state.family_of(index)
        return self._spaces[family].config(index - self._state.offsets[family])


def by_chance(rows: ListedSpaceModel, rng: np.random.Generator) -> int:
    """Choose a random free config of a random family."""
    state = rows.state
    family = int(rng.choice([family for family in range(len(state.families)) if state.free_of(family).any()]))
    return state.offsets[family] + int(rng.choice(np.flatnonzero(state.free_of(family))))
