"""Trials of another database brought into this one, with what was measured of them while tuning."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection

from autotune.store.end_to_end_timings import end_to_end_timings
from autotune.store.measurements import measurements
from autotune.store.moved_rows import move, moved
from autotune.store.scopes import SCOPE
from autotune.store.statements import next_id
from autotune.store.trial_places import TrialPlaces
from autotune.store.trials import trials
from autotune.trial import Outcome

# CROSS JOIN: in this order, from a batch on; by its statistics SQLite would begin with all trials, each time.
_SCOPE_HERE, _OF_SCOPE = moved(trials, SCOPE, {})
_PLACING = (
    # the trials of a batch that have ended, in the scopes that they have here
    f"INSERT INTO temp.placing SELECT o.id, {_SCOPE_HERE}, o.number, o.reused_trial_id, NULL "  # noqa: S608
    f"FROM other.trials o {_OF_SCOPE} "
    f"WHERE o.id BETWEEN :first AND :last AND o.outcome <> '{Outcome.RUNNING}'"
)
_WITHOUT_ORIGINAL = (
    "DELETE FROM temp.placing WHERE reused IS NOT NULL "
    "AND NOT EXISTS (SELECT 1 FROM temp.here_trials WHERE there = reused) "
    "AND NOT EXISTS (SELECT 1 FROM temp.placing o WHERE o.there = placing.reused AND o.there < placing.there)"
)
_KNOWN = (
    # those that are here under their number
    "UPDATE temp.placing SET here = (SELECT t.id "  # noqa: S608
    "FROM other.trials o CROSS JOIN main.trials t ON o.id = placing.there "
    f"WHERE {' AND '.join(f't.{name} = placing.{name}' for name in (*SCOPE, 'number'))} "
    "AND t.config = o.config AND t.started_at = o.started_at)"
)
_NUMBERED = (
    "INSERT INTO temp.here_trials SELECT there, "
    "coalesce(here, :free - 1 + sum(here IS NULL) OVER (ORDER BY there)), here IS NULL FROM temp.placing"
)
_NEW_TRIALS = (
    "temp.placing p CROSS JOIN other.trials o ON o.id = p.there CROSS JOIN temp.here_trials m ON m.there = p.there"
)
_AS_PLACED = {
    **{name: f"p.{name}" for name in (*SCOPE, "number")},
    "id": "m.here",
    "origin": "'imported'",
    "ranked_us": "NULL",
}


def make_placing(connection: Connection) -> None:
    """Make the temporary table of a batch's trials: where each is to go."""
    columns = f"there INTEGER PRIMARY KEY, {', '.join(SCOPE)}, number, reused, here"
    connection.exec_driver_sql(f"CREATE TEMP TABLE placing ({columns})")


def bring_trials(
    connection: Connection, first: int, last: int, places: TrialPlaces, new_studies: Collection[int]
) -> None:
    """Bring those of a batch that have ended, in one transaction with their measurements and timings with copies.

    A number that another trial of the scope has here becomes the next one that is free. `new_studies`: ids here of
    those that this merge has begun.
    """
    among = {"first": first, "last": last, "free": places.refresh(connection)}
    connection.exec_driver_sql("DELETE FROM temp.placing")
    connection.exec_driver_sql(_PLACING, among)
    while connection.exec_driver_sql(_WITHOUT_ORIGINAL).rowcount:
        pass
    _place(connection, places, new_studies)
    connection.exec_driver_sql(_NUMBERED, among)
    new = move(connection, trials, _NEW_TRIALS, "WHERE m.new ORDER BY p.there", among, **_AS_PLACED)
    places.wrote(among["free"] + new)
    if new:
        _measured(connection, among)


def _place(connection: Connection, places: TrialPlaces, new_studies: Collection[int]) -> None:
    """Give the trials of a batch the ids and numbers of those that are here, or other numbers if need be."""
    every = connection.exec_driver_sql(f"SELECT DISTINCT {', '.join(SCOPE)} FROM temp.placing")  # noqa: S608
    scopes = [tuple(row) for row in every]
    shared = [scope for scope in scopes if not places.is_own(scope, new=scope[0] in new_studies)]
    if not shared:
        return
    connection.exec_driver_sql(_KNOWN)
    undecided = (
        "SELECT there, o.number, o.config, o.started_at FROM temp.placing p CROSS JOIN other.trials o ON o.id = there "  # noqa: S608
        f"WHERE p.here IS NULL AND {' AND '.join(f'p.{name} = ?' for name in SCOPE)} ORDER BY there"
    )
    for scope in shared:
        placed = []
        for there, number, config, started_at in connection.exec_driver_sql(undecided, scope):
            placed.append((*places.place(connection, scope, number, config, started_at), there))
        if placed:
            connection.exec_driver_sql("UPDATE temp.placing SET number = ?, here = ? WHERE there = ?", placed)


def _measured(connection: Connection, among: Mapping[str, int]) -> None:
    """Bring what was measured, while tuning, of the new ones among these trials."""
    of_new = "o CROSS JOIN temp.here_trials m ON m.there = o.trial_id"
    which = "WHERE m.new AND o.trial_id BETWEEN :first AND :last"
    free = {**among, "free": next_id(connection, measurements)}
    move(
        connection,
        measurements,
        f"other.measurements {of_new}",
        f"{which} AND o.finals_id IS NULL AND o.retime_id IS NULL ORDER BY o.id",
        free,
        id=":free + row_number() OVER (ORDER BY o.id) - 1",
        trial_id="m.here",
        finals_id="NULL",
        retime_id="NULL",
    )
    move(connection, end_to_end_timings, f"other.end_to_end_timings {of_new}", which, among, trial_id="m.here")
