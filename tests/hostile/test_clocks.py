"""Clocks that are set back or far off: the order of storing decides which result is newer, and every date is shown."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autotune.analysis.retime import Changes
from autotune.compilation.cache import BinaryCache
from autotune.compilation.compile import Binary, Target
from autotune.devices.device import Rate
from autotune.store import Finals, Store, Verdict
from autotune.trial import Resources
from tests.fork_server import ForkServer
from tests.long_run import every
from tests.unit.store.builders import (
    CONV1,
    DRIVER_580,
    DRIVER_590,
    H200,
    PROFILE,
    add_dispatcher,
    config_of,
    correct,
    dispatched,
    open_scope,
    run_trial,
    source_of,
    timing_of,
)

from .attack import attacked

AHEAD = datetime(2030, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 11, 23, tzinfo=UTC)
DATABASE_PAGE = Path(__file__).parents[2] / "docs" / "database.md"


@contextmanager
def at(path: Path, moment: datetime) -> Iterator[Store]:
    """The store of a process whose clock started at this moment."""
    looks = iter(range(1_000_000))
    with Store(path, clock=lambda: moment + timedelta(seconds=next(looks))) as store:
        yield store


def tuned(store: Store, numbers: range, time_us: float, *, study: str = "lenet", fresh: bool = False) -> None:
    """Trials of the first layer, and finals that the last trial wins."""
    scope = open_scope(store, study=study, fresh=fresh)
    for number in numbers:
        source = source_of(config_of(number))
        run_trial(store, scope, correct(number, time_us + numbers[-1] - number, source=source), source)
    last = numbers[-1]
    verdict = Verdict("default", "win", time_us, 2 * time_us)
    store.finals.add(scope, Finals(last, ((last, timing_of(time_us)),), (verdict,)))


@pytest.fixture
def set_back(folder: Path) -> Path:
    """A database whose clock showed 2030 and was then set right."""
    path = folder / "autotune.db"
    with at(path, AHEAD) as store:
        tuned(store, range(3), 102.87)
    with at(path, NOW) as store:
        tuned(store, range(3, 6), 27.01)
    return path


def test_the_newer_finals_decide(set_back: Path, fork_server: ForkServer) -> None:
    best = attacked(fork_server, set_back.parent, "best", "lenet.conv1", "--json")
    assert [row["median_us"] for row in json.loads(best.out)] == [27.01]
    (seen,) = json.loads(attacked(fork_server, set_back.parent, "query", "SELECT * FROM best", "--json").out)
    assert (seen["median_us"], seen["decided_by"]) == (27.01, "finals")
    with at(set_back, NOW) as store:
        assert [row.median_us for row in store.best.of_study("lenet", 1)] == [27.01]
        assert [row.time_us for row in store.finals.list()] == [102.87, 27.01]


def test_a_retime_repairs_what_a_clock_ahead_decided(set_back: Path) -> None:
    with at(set_back, AHEAD + timedelta(days=400)) as store:  # ahead again, and slow
        (row,) = store.best.list("lenet.conv1")
        store.retimes.add(row.row, H200, DRIVER_590, "regressed", timing_of(150.0))
    with at(set_back, NOW) as store:
        (row,) = store.best.list("lenet.conv1")
        assert (row.decided_by, row.row.trial.number) == ("median", 4), "the finals are in doubt"
        store.retimes.add(row.row, H200, DRIVER_590, "moved", timing_of(26.5))
        store.retimes.add(row.row, H200, DRIVER_590, "moved", timing_of(25.0))
        (row,) = store.best.list("lenet.conv1")
        assert (row.decided_by, row.median_us, row.row.trial.number) == ("retime", 25.0, 4)
        assert [row.median_us for row in store.best.of_study("lenet", 1)] == [25.0]
        assert [retime.after_us for retime in store.retimes.list()] == [150.0, 26.5, 25.0]


def test_history_is_told_in_the_order_in_which_it_happened(set_back: Path, fork_server: ForkServer) -> None:
    with at(set_back, NOW) as store:
        row = store.best.list("lenet.conv1")[0].row
        store.retimes.add(row, H200, DRIVER_590, "failed", None, "it crashed")
    events = json.loads(attacked(fork_server, set_back.parent, "history", "lenet.conv1", "--json").out)
    assert [(event["event"], event["time_us"] and round(event["time_us"], 2)) for event in events] == [
        *(("improvement", time_us) for time_us in (104.87, 103.87, 102.87)),
        ("finals", 102.87),
        *(("improvement", time_us) for time_us in (29.01, 28.01, 27.01)),
        ("finals", 27.01),
        ("retime", None),
    ]


def test_a_fresh_start_reuses_nothing_from_a_clock_ahead(set_back: Path) -> None:
    old = source_of(config_of(0))
    with at(set_back, NOW) as store:
        scope = open_scope(store, fresh=True)
        assert store.known.get(scope, old.hash) is None
        assert store.known.of_other_studies(scope) == {}
        assert store.top_trials.list(scope, kinds=["cuda"], accuracies=["fp32"]) == ()
    with at(set_back, NOW - timedelta(days=9999)) as store:  # set back again, to before the study's beginning
        again = open_scope(store)
        assert again.study == scope.study
        run_trial(store, again, correct(0, 9.0, source=old), old)
        other = open_scope(store, study="other", fresh=False)
        known = store.known.get(other, old.hash)
        assert known is not None
        assert known.median_us == 9.0, "the newest, though its date is the oldest"
        assert store.known.of_other_studies(other)[old.hash] == known.trial


def test_the_newest_rates_noise_profiles_and_environments_count(set_back: Path) -> None:
    for moment, driver, value in ((AHEAD, DRIVER_580, 1.0), (NOW, DRIVER_590, 2.0)):
        with at(set_back, moment) as store:
            row = store.best.list("lenet.conv1")[0].row
            store.rates.add(H200, driver, [Rate("copy", "16 bytes a thread", 1e12 * value)])
            store.noise_floors.add(H200, driver, "cold", value, 0.01)
            store.quarantine.add(open_scope(store), source_of(config_of(int(value))).hash, "hang", "")
            add_dispatcher(store, [dispatched(CONV1, time_us=value)])
            store.profiles.add(row, H200, driver, [replace(PROFILE, time_us=value)])
    with at(set_back, NOW) as store:
        assert store.rates.best(H200) == {"copy": 2e12}
        floor = store.noise_floors.latest(H200, "cold")
        assert floor is not None
        assert floor.noise_us == 2.0
        assert [row.profile.time_us for row in store.profiles.list()] == [1.0, 2.0]
        assert store.quarantine.list()[0].source_hash == source_of(config_of(2)).hash
        assert [row.layers[0].time_us for row in store.dispatchers.list()] == [2.0, 1.0]
        changes = [one for best in store.best.list() for one in Changes(store, None, ()).of(best)]
        assert {one.now for one in changes if one.changed == "driver"} == {DRIVER_590.driver}
        (noise,) = store.query(documented("FROM noise_floors")).rows
        assert str(noise[-1]).startswith("2026")
        (layer,) = store.query(documented("of_the_default")).rows
        assert (layer[0], layer[3]) == (CONV1.name, -0.8), "2.0 us, where the best took 10"


def documented(words: str) -> str:
    """The statement of docs/database.md that contains these words."""
    statements: list[str] = re.findall(r"```sql\n(.*?)```", DATABASE_PAGE.read_text(), re.DOTALL)
    (found,) = [statement for statement in statements if words in statement]
    return found


def test_what_was_compiled_under_a_clock_ahead_leaves_the_cache_first(tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path)
    binary = Binary(Target("cpu"), b"x" * 1000, Resources(), "", ("entry",))
    for key in ("aa1", "bb2"):
        cache.put(key, binary)
    os.utime(tmp_path / "aa" / "aa1", (AHEAD.timestamp(), AHEAD.timestamp()))
    os.utime(tmp_path / "bb" / "bb2", (time.time() - 3600, time.time() - 3600))
    cache.trim(1500)
    assert (cache.get("aa1"), cache.get("bb2") is None) == (None, False)


@pytest.mark.parametrize(
    "moment",
    every(
        2,
        [
            datetime(1000, 1, 1, tzinfo=UTC),
            datetime(1901, 12, 13, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 30, tzinfo=UTC),
            datetime(2038, 1, 19, 3, 14, 0, tzinfo=UTC),
            datetime(9999, 12, 28, tzinfo=UTC),
        ],
    ),
    ids=lambda moment: f"{moment.year}",
)
def test_any_date_is_stored_and_shown(folder: Path, fork_server: ForkServer, moment: datetime) -> None:
    with at(folder / "autotune.db", moment) as store:
        tuned(store, range(3), 30.0)
        row = store.best.list("lenet.conv1")[0].row
        store.retimes.add(row, H200, DRIVER_590, "confirmed", timing_of(30.0))
    for words in (
        ("best", "lenet.conv1", "--json"),
        ("trials", "--limit", "1", "--sort", "started", "--json"),
        ("history", "lenet.conv1", "--json"),
    ):
        done = attacked(fork_server, folder, *words)
        assert done.code == 0, (words, done.err)
        assert f'"date": "{moment.year}-' in done.out, done.out
