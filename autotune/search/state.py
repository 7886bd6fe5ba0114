"""The state of the search: the feasible rows of every family in one list, and the evaluation of each."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from autotune.trial import Config, Value

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class SpaceParam(Protocol):
    """A parameter's name and its ordered values."""

    @property
    def name(self) -> str: ...
    @property
    def values(self) -> tuple[Value, ...]: ...


class FeasibleSpace(Protocol):
    """The part of a search space that the search needs; implemented by `SearchSpace` and `ListedSpace`."""

    @property
    def template(self) -> str: ...
    @property
    def params(self) -> Sequence[SpaceParam]: ...
    @property
    def rows(self) -> npt.NDArray[np.int16]:
        """Value indices of the feasible configs [m, len(params)]."""
        ...

    @property
    def complete(self) -> bool: ...
    @property
    def padded_work(self) -> npt.NDArray[np.int64] | None:
        """Outputs that the device could compute in the time of each row [m]; None: unknown."""
        ...

    @property
    def default(self) -> Config | None: ...
    def config(self, row: int, /) -> Config: ...
    def row_of(self, config: Config, /) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Observation:
    """One told trial of a feasible config: its index and value, infinite if the config failed."""

    index: int
    value: float
    """the value to minimise; a log time when kernels are tuned"""


class SearchState:
    """All feasible configs of all families, numbered one family after another.

    The state depends only on the told trials and the pending asks, so a resumed search equals an uninterrupted one.
    """

    def __init__(self, spaces: Sequence[FeasibleSpace], *, least: float | None = None) -> None:
        self.least = least
        """the smallest significant difference of two values; None: derived from the values"""
        self.spaces = tuple(space for space in spaces if len(space.rows))
        sizes = [len(space.rows) for space in self.spaces]
        self.offsets = tuple(int(offset) for offset in np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]))
        self.observations: list[Observation] = []
        self.pending: list[int] = []
        self.free = np.ones(self.offsets[-1], dtype=np.bool_)
        """True where a config was neither asked for nor told"""
        self.defaults = tuple(
            index
            for space in self.spaces
            if space.default is not None and (index := self.find(space.default)) is not None
        )

    def __len__(self) -> int:
        return self.offsets[-1]

    @property
    def complete(self) -> bool:
        """True when every family's rows are all its feasible configs."""
        return all(space.complete for space in self.spaces)

    def find(self, config: Config) -> int | None:
        """A config's index; None if it is in no space."""
        for family, space in enumerate(self.spaces):
            if space.template == config.template:
                row = space.row_of(config)
                return None if row is None else self.offsets[family] + row
        return None

    def free_of(self, family: int) -> npt.NDArray[np.bool_]:
        """The part of `free` that is one family's."""
        return self.free[self.offsets[family] : self.offsets[family + 1]]

    def family_of(self, index: int) -> int:
        """The position of the family that an index belongs to."""
        return bisect.bisect_right(self.offsets, index) - 1

    def config(self, index: int) -> Config:
        """The config at an index."""
        family = self.family_of(index)
        return self.spaces[family].config(index - self.offsets[family])

    def row(self, index: int) -> npt.NDArray[np.int16]:
        """The value indices of the config at an index."""
        family = self.family_of(index)
        row: npt.NDArray[np.int16] = self.spaces[family].rows[index - self.offsets[family]]
        return row

    def ask(self, index: int) -> None:
        """Mark a config as asked for and not yet told."""
        self.free[index] = False
        self.pending.append(index)

    def release(self, index: int) -> None:
        """Undo an ask, because another config was evaluated in its place."""
        if index in self.pending:
            self.pending.remove(index)
            self.free[index] = True

    def tell(self, index: int, value: float) -> None:
        """Record the result of a config; does nothing if it was told before."""
        if index in self.pending:
            self.pending.remove(index)
        elif not self.free[index]:
            return
        self.free[index] = False
        self.observations.append(Observation(index, value))

    def forget(self) -> None:
        """Return to the state before the first ask."""
        self.observations.clear()
        self.pending.clear()
        self.free[:] = True

    def first_free_default(self) -> int | None:
        """The first family's default that was not asked for yet, then the next family's."""
        return next((index for index in self.defaults if self.free[index]), None)

    def first_free(self) -> int | None:
        """The first config in order that was not asked for yet."""
        index = int(np.argmax(self.free)) if len(self) else 0
        return index if len(self) and self.free[index] else None

    def nearest_free(self, family: int, row: Ints, rng: np.random.Generator) -> int:
        """The free config of a family nearest to a row: by Hamming distance, then ordinal distance, then at random.

        If the family has none left, a config of another family. Raises LookupError if no config is left at all.
        """
        order = [family, *(other for other in range(len(self.spaces)) if other != family)]
        for here in order:
            free = np.flatnonzero(self.free_of(here))
            if not len(free):
                continue
            if here != family:
                return self.offsets[here] + int(rng.choice(free))
            spans = np.array([max(1, len(param.values) - 1) for param in self.spaces[here].params])
            apart = self.spaces[here].rows[free] - row
            distance = np.count_nonzero(apart, axis=1) + np.sum(np.abs(apart) / spans, axis=1) / (len(spans) + 1)
            nearest = free[distance <= distance.min() + 1e-9]
            return self.offsets[here] + int(rng.choice(nearest))
        raise LookupError("every config was proposed")
