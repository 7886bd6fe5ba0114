"""Very many trials as JSON or CSV, printed while they are read, by two processes if need be."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from autotune.analysis.rooflines import TrialWithRoofline, with_rooflines
from autotune.cli.cells import Cell
from autotune.cli.only import Admitted
from autotune.cli.tables import cells_text, show_texts
from autotune.cli.trial_cells import TrialCells
from autotune.cli.trial_columns import Beaten, trial_columns
from autotune.second_process import SecondProcess, in_turns
from autotune.store import Store, TrialRow, UnreadableRow

_AT_ONCE = 100  # trials that are read and printed together
_MANY = 10_000  # that a second process helps with

_COLUMNS = trial_columns(imported=False)
_KEYS = [column.key for column in _COLUMNS]


class _Piece(NamedTuple):
    text: str
    read: int
    """trials, of which some may not be admitted"""
    beaten: Beaten
    """what is noted of those that are"""


@dataclass(frozen=True, slots=True)
class TrialTexts:
    """What is printed of trials."""

    admitted: Admitted
    style: str
    """json or csv"""
    sources: bool
    """whether each trial's kernel is a column, too"""

    @property
    def keys(self) -> Sequence[str]:
        """The columns' names."""
        return [*_KEYS, "source"] if self.sources else _KEYS

    def pieces(self, store: Store, ids: Sequence[int], limit: int | None) -> Iterator[_Piece]:
        """Those with these ids, at most so many that are admitted. Raises UnreadableRow."""
        beaten = Beaten()

        def cells_of_one(row: TrialRow) -> list[Cell]:
            return next(cells_of(with_rooflines(store, [row]), beaten))

        def note(device: str, layer: str, floor_fraction: float | None) -> None:
            beaten.note(device, layer, floor_fraction)

        cells = TrialCells(store, self.admitted, cells_of_one, note)
        with closing(store.trials.pieces(ids, 1 if self.sources else _AT_ONCE)) as every:  # a text may have a megabyte
            for some in every:
                beaten = Beaten()
                rows = list(islice(cells.of(some), limit))
                yield _Piece(self.text(store, rows), len(some), beaten)
                if limit is not None:
                    limit -= len(rows)
                    if not limit:
                        return

    def text(self, store: Store, rows: Sequence[Sequence[Cell]]) -> str:
        """What is printed of some rows, between what is printed of others."""
        if self.sources:
            of_hash = _KEYS.index("source_hash")
            rows = [[*cells, text_of(store, cells[of_hash])] for cells in rows]
        return cells_text(self.keys, rows, self.style) if rows else ""


def cells_of(found: Iterable[TrialWithRoofline], beaten: Beaten) -> Iterator[list[Cell]]:
    """What columns make of trials' records."""
    return ([column.value(trial) for column in _COLUMNS] for trial in beaten.seen(found))


def text_of(store: Store, source_hash: Cell) -> str | None:
    """A trial's rendered kernel; None where none was rendered, or only its hash is kept."""
    source = store.sources.get(source_hash) if isinstance(source_hash, str) and source_hash else None
    return source.program.text if source else None


def print_trials(
    store: Store,
    how: TrialTexts,
    ids: Callable[[], array[int]],
    others: Iterable[TrialWithRoofline],
    limit: int | None,
    beaten: Beaten,
    other: SecondProcess | None,
) -> None:
    """Print the trials that `ids` tells, and then those of recorded spaces, at most so many.

    `other`: a process that helps; then all trials are asked for, or `ids` tells no more than the limit.
    """

    def texts() -> Iterator[str]:
        for piece in _pieces(store, how, ids, limit, other):
            beaten.add(piece.beaten)
            yield piece.text
        rows = cells_of(others, beaten)
        left = None if limit is None else limit - beaten.rows
        for row in islice(rows, left):
            yield how.text(store, [row])

    show_texts(filter(None, texts()), how.keys, how.style)


def _pieces(
    store: Store, how: TrialTexts, ids: Callable[[], array[int]], limit: int | None, other: SecondProcess | None
) -> Iterator[_Piece]:
    """All of them; without the trials that cannot be understood, where there are such."""
    every, read, rows = ids(), 0, 0
    own, there = every, iter(())
    if other and len(every) > _MANY:
        mine, theirs = _in_two(every)
        if other.begin(_pieces_there, store.path, how, theirs):
            own, there = mine, other.received()
    try:
        for piece in in_turns(how.pieces(store, own, limit), there):
            read += piece.read  # before it is given out
            rows += piece.beaten.rows
            yield piece
    except UnreadableRow:
        if not store.trials.leave_out_unreadable():
            raise
        given = set(every[:read])  # which cannot be taken back
        more = array("q", (trial_id for trial_id in ids() if trial_id not in given))
        yield from how.pieces(store, more, None if limit is None else limit - rows)


def _in_two(ids: array[int]) -> tuple[array[int], array[int]]:
    """Every second piece of the ids, and the others."""
    own, theirs = array("q"), array("q")
    for at in range(0, len(ids), 2 * _AT_ONCE):
        own += ids[at : at + _AT_ONCE]
        theirs += ids[at + _AT_ONCE : at + 2 * _AT_ONCE]
    return own, theirs


def _pieces_there(_: object, path: Path, how: TrialTexts, ids: array[int]) -> Iterator[_Piece]:
    """In a second process: those with these ids."""
    with Store(path, create=False) as store:
        yield from how.pieces(store, ids, None)
