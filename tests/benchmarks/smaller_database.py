"""Delete the rows of a copy of a results database that are not worth shipping. `record_database` calls it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

_SPEAK_OF_TRIALS = (
    ("finals", "winner_trial_id"),
    ("verdicts", "against_trial_id"),
    ("trials", "reused_trial_id"),
    ("retimes", "trial_id"),
    ("profiles", "trial_id"),
    ("dispatchers", "trial_id"),
    ("end_to_end_timings", "trial_id"),
    ("measurements", "iif(finals_id IS NOT NULL OR retime_id IS NOT NULL, trial_id, NULL)"),
)
"""tables and columns that refer to a trial, apart from the measurements made while tuning"""
_SPOKEN_OF = " UNION ".join(
    f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL" for table, column in _SPEAK_OF_TRIALS
)
_WITHOUT_TRIALS = (
    "DELETE FROM measurements WHERE trial_id NOT IN (SELECT id FROM trials)",
    "CREATE TEMP TABLE unused_sources AS SELECT id FROM sources WHERE id NOT IN "
    "(SELECT source_id FROM trials WHERE source_id IS NOT NULL) AND id NOT IN (SELECT source_id FROM quarantine)",
    "DELETE FROM source_paragraphs WHERE source_id IN unused_sources",
    "DELETE FROM sources WHERE id IN unused_sources",
)
"""tables whose rows are deleted together with their trials"""


_RANK_AGAIN = """\
UPDATE trials SET ranking_median_us =
    (SELECT median_us FROM measurements WHERE trial_id IN (trials.id, reused_trial_id) ORDER BY id DESC LIMIT 1)
WHERE ranking_median_us IS NOT NULL AND measurement_mode <> 'end_to_end' AND NOT EXISTS (
    SELECT 1 FROM measurements WHERE trial_id IN (trials.id, reused_trial_id) AND median_us = ranking_median_us)"""
"""ranks trials whose deciding measurement was deleted by their latest remaining one; otherwise `best` omits them"""


def compact(path: Path, to: Path) -> None:
    """Copy a database to one file, without a log and without free pages."""
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("VACUUM INTO ?", (str(to),))
    with closing(sqlite3.connect(to, isolation_level=None)) as raw:
        for statement in ("PRAGMA journal_mode = DELETE", "ANALYZE", "VACUUM"):
            raw.execute(statement)


def shrink(
    path: Path,
    *,
    best_texts_only: bool = False,
    fastest: int | None = None,
    latest_only: bool = False,
) -> None:
    """Delete from a copy of a database what users of recorded results seldom read.

    With any option it deletes the clock of each sample, whose median remains.
    With `best_texts_only` it keeps the rendered text of the kernels in the view `best`, and only the hashes of the
    others, which is most of a file's size. With `fastest` it keeps so many of the correct trials of each study, tuning
    target, device and accuracy class, and those that other rows refer to (finals, profiles, ...). With `latest_only` it
    leaves out earlier finals and trials of a study's layer on a device where the study was begun afresh and has found a
    correct kernel of the same accuracy class since; what other rows refer to stays.
    """
    if latest_only:
        _drop_earlier(path)
    if fastest is not None:
        _drop_slower(path, fastest)
    if best_texts_only:
        _drop_texts(path)


def _drop_texts(path: Path) -> None:
    """Keep only the texts and launches of the kernels in the view `best_trials`, and free the space."""
    _shrink(
        path,
        "CREATE TEMP TABLE kept AS SELECT source_id FROM trials WHERE id IN (SELECT trial_id FROM best_trials)",
        "UPDATE sources SET launches = '{}' WHERE id NOT IN kept",
        "DELETE FROM source_paragraphs WHERE source_id NOT IN kept",
    )


def _drop_earlier(path: Path) -> None:
    """Delete the trials that a later fresh generation repeated, unless other rows refer to them."""
    found = (
        "SELECT 1 FROM studies AS own JOIN studies AS later ON later.name = own.name AND later.id > own.id "
        "JOIN trials AS anew ON anew.study_id = later.id WHERE own.id = {of}.study_id "
        "AND later.fresh AND later.imported_from IS NULL AND anew.origin = 'measured' AND anew.outcome = 'correct' "
        "AND anew.tuning_target_id = {of}.tuning_target_id AND anew.device_id = {of}.device_id "
        "AND anew.measurement_mode = {of}.measurement_mode "
    )
    same_class = "(anew.accuracy, anew.deterministic) = (trials.accuracy, trials.deterministic)"
    won_again = f"{found.format(of='finals')} AND {same_class}"
    held = f"SELECT finals.id FROM finals JOIN trials ON trials.id = winner_trial_id WHERE EXISTS ({won_again})"
    tried_again = f"{found.format(of='trials')} AND (trials.outcome <> 'correct' OR {same_class})"
    last = "SELECT max(generation) FROM studies AS later WHERE later.name = studies.name"
    unused = f"SELECT id FROM studies WHERE generation < ({last}) AND id NOT IN (SELECT study_id FROM trials)"
    _shrink(
        path,
        f"CREATE TEMP TABLE held AS {held}",
        "DELETE FROM verdicts WHERE finals_id IN held",
        "DELETE FROM measurements WHERE finals_id IN held",
        "DELETE FROM finals WHERE id IN held",
        _RANK_AGAIN,
        f"DELETE FROM trials WHERE EXISTS ({tried_again}) AND id NOT IN ({_SPOKEN_OF})",
        *_WITHOUT_TRIALS,
        f"CREATE TEMP TABLE unused AS {unused}",
        "DELETE FROM study_layers WHERE study_id IN unused",
        "DELETE FROM studies WHERE id IN unused",
    )


def _drop_slower(path: Path, fastest: int) -> None:
    """Keep this many correct trials, those that other rows refer to, and the rows that belong to them."""
    scope = "study_id, tuning_target_id, device_id, environment_id, measurement_mode, accuracy"
    place = f"row_number() OVER (PARTITION BY {scope} ORDER BY median_us, id) AS place"
    places = f"SELECT id, {place} FROM trials WHERE outcome = 'correct'"
    slower = f"SELECT id FROM ({places}) WHERE place > {fastest}"
    _shrink(path, f"DELETE FROM trials WHERE id IN ({slower}) AND id NOT IN ({_SPOKEN_OF})", *_WITHOUT_TRIALS)


def _shrink(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for statement in statements:
            connection.execute(statement)
        connection.execute("UPDATE measurements SET sm_clocks_mhz = NULL")
        connection.execute("DELETE FROM paragraphs WHERE id NOT IN (SELECT paragraph_id FROM source_paragraphs)")
        connection.execute("VACUUM")
    finally:
        connection.close()
