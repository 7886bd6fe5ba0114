"""`autotune optuna-study`: every trial is there, nothing is overwritten, no password is printed."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from autotune.store import Store
from tests.unit.tiny import Command

RECORDED = Path(__file__).parents[1] / "data" / "databases" / "report-layers.db"
TRIALS = 30  # of a layer: each takes Optuna's storage several commits


@pytest.fixture(autouse=True)
def results(autotune: Command) -> None:
    """A results database in the folder that the command runs in, with the first trials of each layer."""
    shutil.copy(RECORDED, "autotune.db")
    with closing(sqlite3.connect("autotune.db")) as connection, connection:
        connection.execute("PRAGMA foreign_keys = ON")
        later = f"IN (SELECT id FROM trials WHERE number >= {TRIALS})"
        connection.execute("DELETE FROM verdicts")
        connection.execute(f"DELETE FROM measurements WHERE finals_id IS NOT NULL OR trial_id {later}")
        connection.execute("DELETE FROM finals")
        connection.execute(f"DELETE FROM trials WHERE id {later}")


@pytest.fixture
def opened() -> Iterator[Callable[[], RDBStorage]]:
    """Open optuna.db as a storage, whose connections are closed with the test."""
    with ExitStack() as at_the_end:

        def open_it() -> RDBStorage:
            storage = RDBStorage("sqlite:///optuna.db")
            at_the_end.callback(storage.engine.dispose)
            at_the_end.callback(storage.remove_session)
            return storage

        yield open_it


def test_every_trial_is_written_with_its_outcome_and_again_only_what_is_new(
    autotune: Command, opened: Callable[[], RDBStorage]
) -> None:
    with closing(sqlite3.connect("autotune.db")) as connection, connection:
        for number, outcome, reason in ((5, "runtime", "crash"), (6, "invalid_config", "smem")):
            fails = (
                "UPDATE trials SET outcome = ?, reason = ?, median_us = NULL, ranking_median_us = NULL WHERE number = ?"
            )
            connection.execute(fails, (outcome, reason, number))
    first = autotune("optuna-study", "lenet-k7.conv1", "--storage", "optuna.db")
    assert first.code == 0, first.err
    with Store("autotune.db", create=False) as store:
        rows = store.trials.list("lenet-k7.conv1")
    assert f"{len(rows)} trials, {len(rows)} of them new" in first.out
    study = optuna.load_study(study_name="lenet-k7.conv1 on NVIDIA H200, cold", storage=opened())
    assert [trial.user_attrs["number"] for trial in study.trials] == [row.trial.number for row in rows]
    assert study.best_value == min(row.median_us for row in rows if row.median_us is not None)
    assert study.user_attrs["device"] == "NVIDIA H200"
    for trial, row in zip(study.trials, rows, strict=True):
        config = row.trial.config
        assert trial.params == {"family": config.template} | {f"{config.template}.{n}": v for n, v in config.items}
        assert (trial.value, trial.user_attrs["outcome"]) == (row.median_us, row.trial.outcome)
        assert trial.user_attrs["reason"] == row.trial.reason
        assert trial.duration is not None
    states = Counter(trial.state for trial in study.trials)
    assert states == {TrialState.COMPLETE: len(rows) - 2, TrialState.FAIL: 1, TrialState.PRUNED: 1}

    study.set_user_attr("mine", "kept")
    assert (
        f"{len(rows)} trials, 0 of them new" in autotune("optuna-study", "lenet-k7.conv1", "--storage", "optuna.db").out
    )
    assert len(study.trials) == len(rows)


def test_a_study_has_one_for_each_layer_and_trials_that_came_since_are_added(
    autotune: Command, opened: Callable[[], RDBStorage]
) -> None:
    assert autotune("optuna-study", "lenet-k7", "--storage", "sqlite:///optuna.db").code == 0
    storage = opened()
    names = optuna.get_all_study_names(storage)
    assert names == [f"lenet-k7.{layer} on NVIDIA H200, cold" for layer in ("conv1", "conv2")]
    latest = optuna.load_study(study_name=names[0], storage=storage).trials[-1]
    storage.remove_session()
    with closing(sqlite3.connect("optuna.db")) as connection, connection:
        connection.execute("DELETE FROM trial_user_attributes WHERE trial_id = ?", (latest._trial_id,))
    again = autotune("optuna-study", "lenet-k7.conv1", "--storage", "optuna.db")
    assert "1 of them new" in again.out


def test_a_study_from_elsewhere_is_left_alone(autotune: Command, opened: Callable[[], RDBStorage]) -> None:
    name = "lenet-k7.conv1 on NVIDIA H200, cold"
    study = optuna.create_study(study_name=name, storage=opened())
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    refused = autotune("optuna-study", "lenet-k7.conv1", "--storage", "optuna.db")
    assert refused.code == 1
    assert refused.err == (
        f"autotune: sqlite:///optuna.db: there is a study {name!r} from elsewhere; "
        f"delete it (`optuna delete-study`) or give another storage\n"
    )
    assert len(study.trials) == 1


@pytest.mark.parametrize("storage", ["autotune.db", "sqlite:///autotune.db"])
def test_the_results_database_is_no_storage(autotune: Command, storage: str) -> None:
    before = Path("autotune.db").read_bytes()
    refused = autotune("optuna-study", "lenet-k7", "--storage", storage)
    assert refused.code == 1
    assert "autotune.db: holds other tables than Optuna's" in refused.err
    assert Path("autotune.db").read_bytes() == before


@pytest.mark.parametrize(
    ("storage", "says"),
    [
        ("mysql://me:geheim@localhost/x", "mysql://me:***@localhost/x: Failed to import DB access module"),
        ("redis://me:geheim@localhost/x", "redis://me:***@localhost/x: Optuna keeps studies in sqlite, mysql and"),
        ("me:geheim@://", "--storage: not a database URL"),
        ("sqlite://", "a database in memory would be lost"),
        (".", "autotune: .: is a directory; give the path of a file"),
        ("nowhere/optuna.db", "nowhere/optuna.db: there is no folder nowhere"),
    ],
)
def test_what_cannot_be_a_storage_is_named_without_its_password(autotune: Command, storage: str, says: str) -> None:
    refused = autotune("optuna-study", "lenet-k7", "--storage", storage)
    assert refused.code == 1
    assert says in refused.err
    assert "geheim" not in refused.err + refused.out
    assert len(refused.err.splitlines()) == 1
