"""Ten questions to the recorded results in Python's own sqlite3, without this project: one plain statement each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from autotune import best
from autotune.resources import recorded_database
from autotune.store import BestRow, Store

CONV2 = "n = 10000 AND c = 12 AND h = 33 AND k = 24 AND r = 5 AND stride_h = 1 AND pad_h = 0 AND groups = 1"


@pytest.fixture(scope="module")
def raw() -> Iterator[sqlite3.Connection]:
    uri = f"{recorded_database('recorded').as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as opened:
        yield opened


def first(what: str) -> BestRow:
    """The kernel that `autotune best` shows first."""
    return best(what, db=recorded_database("recorded"))[0]


def test_what_is_the_best_kernel_of_a_shape(raw: sqlite3.Connection) -> None:
    rows = raw.execute(f"SELECT median_us, template, trial_id FROM best WHERE {CONV2} AND accuracy = 'fp32'").fetchall()
    named = first("lenet-k5.conv2")
    assert rows == [(named.median_us, named.row.trial.config.template, named.row.id)]


def test_is_there_one_best_of_each_shape_and_class(raw: sqlite3.Connection) -> None:
    same = "operation, problem, device, accuracy, measurement_mode"
    assert raw.execute(f"SELECT count(*) FROM best GROUP BY {same} HAVING count(*) > 1").fetchall() == []


@pytest.mark.parametrize("study", ["report-000", "lenet-k5", "lenet-k7", "tf32", "report-004"])
def test_what_are_the_best_kernels_of_a_study(raw: sqlite3.Connection, study: str) -> None:
    rows = raw.execute("SELECT layer, trial_id, median_us FROM study_best WHERE study = ? ORDER BY position", (study,))
    named: dict[str, tuple[int, float]] = {}
    for row in best(study, db=recorded_database("recorded")):
        named.setdefault(row.layer.name, (row.row.id, row.median_us))
    assert {layer: (trial_id, median_us) for layer, trial_id, median_us in rows} == named


def test_how_long_does_a_network_take(raw: sqlite3.Connection) -> None:
    ((total_us,),) = raw.execute("SELECT sum(total_us) FROM study_best WHERE study = 'lenet-k5'")
    assert total_us == pytest.approx(sum(first(f"lenet-k5.{layer}").median_us for layer in ("conv1", "conv2")))


def test_what_is_the_source_of_the_best_kernel(raw: sqlite3.Connection) -> None:
    sql = "SELECT text FROM study_best JOIN kernels ON hash = source_hash WHERE study = 'lenet-k5' AND layer = 'conv2'"
    ((text,),) = raw.execute(sql)
    with Store(recorded_database("recorded"), create=False) as store:
        source = store.sources.get(first("lenet-k5.conv2").row.trial.source_hash or "")
    assert source is not None
    assert text == source.program.text
    assert source.hash == first("lenet-k5.conv2").row.trial.source_hash, "the very text that was compiled"


def test_how_did_trials_end(raw: sqlite3.Connection) -> None:
    found = dict(raw.execute("SELECT outcome, count(*) FROM results WHERE study = 'lenet-k5' GROUP BY outcome"))
    assert found["correct"] > 100
    assert found.keys() <= {"correct", "invalid_config", "compile", "runtime", "timeout", "wrong_result"}


def test_which_family_wins_a_layer_and_by_how_much(raw: sqlite3.Connection) -> None:
    sql = (
        "SELECT template, min(median_us) AS us FROM results WHERE study = 'lenet-k5' AND layer = 'conv2' "
        "AND outcome = 'correct' GROUP BY template ORDER BY us"
    )
    (winner, us), *others = raw.execute(sql).fetchall()
    assert (winner, bool(others)) == ("direct_strip", True)
    assert all(us < slower for _, slower in others)


def test_what_does_one_parameter_do(raw: sqlite3.Connection) -> None:
    sql = (
        "SELECT config ->> '$.thread_k', min(median_us) FROM results WHERE study = 'lenet-k5' AND layer = 'conv2' "
        "AND template = 'direct_strip' AND outcome = 'correct' GROUP BY 1 ORDER BY 2"
    )
    assert raw.execute(sql).fetchone()[0] == 3


def test_how_does_the_winner_compare_with_cudnn(raw: sqlite3.Connection) -> None:
    sql = (
        "SELECT against, verdict, against_us / verdicts.median_us FROM verdicts JOIN finals ON finals.id = finals_id "
        "JOIN study_best ON trial_id = winner_trial_id WHERE study = 'lenet-k5' AND layer = 'conv2' "
        "AND against LIKE 'cudnn%' AND against_accuracy = 'fp32' ORDER BY 3 LIMIT 1"
    )
    against, verdict, times = raw.execute(sql).fetchone()
    assert (against[:5], verdict) == ("cudnn", "win")
    assert times > 2


def test_what_are_the_samples_of_the_best_kernel(raw: sqlite3.Connection) -> None:
    sql = (
        "SELECT sample.value FROM best_trials JOIN measurements ON measurements.id = measurement_id, "
        "json_each(samples_us) AS sample WHERE best_trials.trial_id = ?"
    )
    named = first("lenet-k5.conv2")
    assert tuple(value for (value,) in raw.execute(sql, (named.row.id,))) == named.timing.samples_us
