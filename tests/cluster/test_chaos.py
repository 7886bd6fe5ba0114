"""If processes of a cluster are killed or stopped, no stored trial is lost or repeated, and classes never mix."""

from __future__ import annotations

import importlib.util
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.cluster.chaos import SLOWER, TTL_S, Chaos, StoredTrial, evaluated, medians, stored, winners
from tests.fork_server import ForkServer

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None,
    reason="Dask is not installed: pip install 'autotune-conv[cluster]'",
)
LAYERS, TRIALS = 2, 12
MANY = {"null": 300, "replay": 300, "host": 10}
MANY_NULL = "null:delay_ms=30,compile=0.1,wrong=0.1"
NULL = "null:delay_ms=400,compile=0.1,wrong=0.1"


@pytest.fixture
def begin(tmp_path: Path, fork_server: ForkServer) -> Iterator[Callable[..., Chaos]]:
    """Start a scheduler, a worker on each device, and the coordinator of a study of this many layers."""
    begun = []

    def start(layers: int, devices: Sequence[str], trials: Mapping[str, int], seed: int = 0) -> Chaos:
        made = Chaos(tmp_path, fork_server, layers, trials, seed=seed)
        begun.append(made)
        made.record("recorded.db")
        made.start_scheduler()
        for number, device in enumerate(devices):
            made.start_worker(f"{device.partition(':')[0]}-{number}", device)
        for budget in sorted(set(trials.values())):
            made.start_coordinator(budget)
        return made

    yield start
    for made in begun:
        made.end()


def test_nothing_is_lost_whoever_is_killed_or_stopped(begin: Callable[..., Chaos]) -> None:
    chaos = begin(LAYERS, (NULL, NULL, "replay:recorded.db"), {"null": TRIALS, "replay": TRIALS})
    seen = [chaos.wait_for(4)]
    chaos.workers["null-0"].kill()
    chaos.workers["null-1"].send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    chaos.coordinators[TRIALS].kill()
    chaos.start_worker("null-0")
    chaos.start_coordinator(TRIALS)
    seen.append(chaos.wait_for(evaluated(chaos.rows) + 2))
    chaos.scheduler.kill()
    chaos.scheduler.wait()
    seen.append(chaos.wait_for(0))
    chaos.start_scheduler()
    chaos.wait_until(lambda: time.monotonic() > stopped + 2 * TTL_S)
    chaos.workers["null-1"].send_signal(signal.SIGCONT)
    ended = chaos.coordinators[TRIALS].finish()
    assert ended.code == 0, chaos.log
    check(chaos, seen)


@pytest.mark.long
@pytest.mark.cxx
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_is_lost_in_two_minutes_of_random_faults(seed: int, begin: Callable[..., Chaos]) -> None:
    chaos = begin(12, 2 * (MANY_NULL, "replay:recorded.db", "host"), MANY, seed)
    seen, until = [chaos.wait_for(4)], time.monotonic() + 120
    while time.monotonic() < until and not chaos.ended:
        chaos.strike()
        seen.append(chaos.stored)
    chaos.replace_workers()
    for coordinator in chaos.coordinators.values():
        if coordinator.finish().code != 0:
            pytest.fail(chaos.log[-4000:])
    print(
        f"seed {seed}: {dict(chaos.struck)}; trials at each: {[len(each) for each in seen]}; at last {len(chaos.rows)}"
    )
    check(chaos, seen)


def check(chaos: Chaos, seen: list[set[StoredTrial]]) -> None:
    """Assert the final state, given the states of the database at earlier moments."""
    rows = chaos.rows
    last = {stored(row) for row in rows}
    places = {one.place for one in last}
    assert all(one in last for each in seen for one in each if one.outcome != "running"), "a result stays as it was"
    assert all(one.place in places for each in seen for one in each), "nor is a trial gone that was running"
    assert len(seen[0]) < len(last), "the faults fell while it worked"
    assert len({(one.device, one.layer, one.config) for one in last}) == len(rows), "no config is stored twice"
    assert len({(one.device, one.layer, one.number) for one in last}) == len(rows)
    assert all(row.ended_at is not None for row in rows)
    assert len({one.device for one in last}) == len(chaos.trials)
    assert {row.origin for row in rows} == {"measured"}
    for device, layer in {(one.device, one.layer) for one in last}:
        own = [row for row in rows if (row.device.name, row.layer.name) == (device, layer)]
        assert evaluated(tuple(own)) >= chaos.trials[own[0].device.kind], (device, layer)
    recorded = medians(chaos.folder / "recorded.db")
    for one in last:
        if one.median_us is not None and one.device == "replay of null":
            assert one.median_us == recorded[one.layer, one.config], "classes never mix"
        elif one.median_us is not None and one.device == "null":
            assert one.median_us < SLOWER
    lost = {(one.layer, one.config) for one in last if one.lost and one.device == "replay of null"}
    for layer, winner in winners(chaos.folder / "chaos.db", "replay of null").items():
        left = [time for (name, config), time in recorded.items() if name == layer and (name, config) not in lost]
        assert recorded[layer, winner] == min(time for time in left if time is not None)
