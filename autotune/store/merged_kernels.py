"""Kernels of another database brought into this one, by their hashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, update

from autotune.errors import StoreError
from autotune.printable import one_line
from autotune.store.column_types import Values
from autotune.store.moved_rows import attach, move
from autotune.store.packed import unpacked
from autotune.store.row_ids import RowIds, id_of
from autotune.store.sources import sources
from autotune.store.statements import next_id

_ON_EITHER = (
    "FROM other.sources o CROSS JOIN main.sources h ON h.hash = o.hash WHERE h.text_bytes <> 0 AND o.text_bytes <> 0"
)
_SEEM_OTHERS = (
    # those whose columns differ, and of each pair of layers the first
    f"SELECT h.id, o.id {_ON_EITHER} AND (h.flags <> o.flags OR h.entries <> o.entries OR h.launches <> o.launches "
    f"OR h.text_zlib <> o.text_zlib) UNION SELECT min(h.id), o.id {_ON_EITHER} GROUP BY h.layer_id, o.layer_id"
)
_THERE = "FROM other.sources o WHERE o.id BETWEEN :first AND :last"
_ON_BOTH_SIDES = "FROM other.sources o CROSS JOIN main.sources h ON h.hash = o.hash WHERE o.id BETWEEN :first AND :last"
_DOUBTFUL = (
    # a text may have been dropped here, or another process have added the kernel after all were compared
    f"SELECT h.id, o.id {_ON_BOTH_SIDES} AND (h.id > :compared OR (h.text_bytes = 0 AND o.text_bytes <> 0))"
)
_NEW = (
    "INSERT INTO temp.here_sources SELECT o.id, :free + row_number() OVER (ORDER BY o.id) - 1, 1 "  # noqa: S608
    f"{_THERE} AND NOT EXISTS (SELECT 1 FROM main.sources h WHERE h.hash = o.hash)"
)
_MOVED = "other.sources o CROSS JOIN temp.here_sources m ON m.there = o.id"
_WHICH = "WHERE m.new AND o.id BETWEEN :first AND :last ORDER BY o.id"


@dataclass(slots=True)
class MergedKernels:
    """Two kernels of one hash are the same: `refuse_others` makes sure before the first `bring`."""

    shown: str
    """the other file's path"""
    _compared_id: int = 0
    """the last one here that was compared before anything was written"""

    def refuse_others(self, connection: Connection, copy: Path, layer_ids: Mapping[int, int | None]) -> None:
        """Raise StoreError for two kernels of one hash; `layer_ids`: those that the layers there have here."""
        self._compared_id = next_id(connection, sources) - 1
        if not self._compared_id:
            return
        attach(connection, copy)
        for here_id, there_id in connection.exec_driver_sql(_SEEM_OTHERS):
            self._compare(*_both(connection, here_id, there_id, layer_ids))

    def bring(self, connection: Connection, first: int, last: int, layer_ids: RowIds) -> None:
        """Bring a batch; a text that was dropped on one side is filled in from the other."""
        among = {"first": first, "last": last, "compared": self._compared_id, "free": next_id(connection, sources)}
        for here_id, there_id in connection.exec_driver_sql(_DOUBTFUL, among).all():
            self._fill_in(connection, *_both(connection, here_id, there_id, layer_ids))
        connection.exec_driver_sql(f"INSERT INTO temp.here_sources SELECT o.id, h.id, 0 {_ON_BOTH_SIDES}", among)
        connection.exec_driver_sql(_NEW, among)
        move(connection, sources, _MOVED, _WHICH, among, id="m.here")

    def _compare(self, here: Values, there: Values, *, merged: str = "nothing was merged") -> None:
        """Raise StoreError for two kernels of one hash; where a text was dropped, nothing can be said."""
        if here["text_bytes"] and there["text_bytes"]:
            same = all(here[name] == there[name] for name in ("layer_id", "flags", "entries", "launches"))
            # Two versions of zlib may pack one text differently.
            if not same or (here["text_zlib"] != there["text_zlib"] and _text(here) != _text(there)):
                raise StoreError(
                    f"{self.shown}: its kernel {one_line(str(here['hash']))} is another than the one of this "
                    f"hash here; {merged}, do not trust one of the files"
                )

    def _fill_in(self, connection: Connection, match: Values, there: Values) -> None:
        """Take a kernel's text that was dropped here from there."""
        if id_of(match["id"]) > self._compared_id:  # another process has added it meanwhile
            self._compare(match, there, merged="what came before it was merged")
        if there["text_bytes"] and not match["text_bytes"]:
            filled = {**there, "id": match["id"]}
            connection.execute(update(sources).where(sources.c.id == match["id"]).values(filled))


def _both(
    connection: Connection, here_id: int, there_id: int, layer_ids: Mapping[int, int | None] | RowIds
) -> tuple[Values, Values]:
    """A kernel here and one there, which refers to the layer here."""
    sql = "SELECT * FROM {}.sources WHERE id = ?"
    here, there = (
        dict(connection.exec_driver_sql(sql.format(schema), (row_id,)).mappings().one())
        for schema, row_id in (("main", here_id), ("other", there_id))
    )
    return here, {**there, "layer_id": layer_ids.get(id_of(there["layer_id"]))}


def _text(source: Values) -> str:
    packed, text_bytes = source["text_zlib"], source["text_bytes"]
    return unpacked(packed, text_bytes).decode() if isinstance(packed, bytes) and isinstance(text_bytes, int) else ""
