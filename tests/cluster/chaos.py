"""A cluster of real processes that are killed and stopped, and the invariants of its results database."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from autotune.cluster.task import WORKER_LOST
from autotune.errors import StoreError
from autotune.store import Store, TrialRow
from tests.fork_server import ForkedRun, ForkServer
from tests.processes import MARK, marked, port_for_restarts
from tests.unit.tiny import STUDY, changed, write_family

TTL_S = 4  # seconds after which a silent worker counts as lost
SLOWER = 1000.0  # how many times as long a recorded trial takes as on the null device, from which the recording is made

THREE_HUNDRED = (
    ("values = [1, 2, 3, 4, 6]", f"values = {list(range(1, 26))}"),
    ("outputs <= 512", "outputs <= 6400"),
)
"""edits that turn the tiny family into one of 300 kernels: all are tried, so the winner does not depend on their order
"""


@dataclass(frozen=True, slots=True)
class StoredTrial:
    """The fields of a stored trial that must not change."""

    device: str
    layer: str
    config: str
    number: int
    outcome: str
    median_us: float | None
    lost: bool
    """whether its worker was lost while the trial ran"""

    @property
    def place(self) -> tuple[str, str, str, int]:
        """The fields of a running trial that must not change."""
        return self.device, self.layer, self.config, self.number


class Chaos:
    """A scheduler, named workers, and a coordinator for each budget, in a folder."""

    def __init__(
        self, folder: Path, fork_server: ForkServer, layers: int, trials: Mapping[str, int], *, seed: int = 0
    ) -> None:
        """`trials` maps a kind of device to the number of trials of a layer."""
        self.folder, self.rng, self.mark = folder, random.Random(seed), f"chaos-{os.getpid()}-{time.monotonic_ns()}"
        self._fork_server = fork_server
        self._environ = {
            MARK: self.mark,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{TTL_S}s",
        }
        self.trials = trials
        write_family(folder / "families", *(THREE_HUNDRED if max(trials.values()) > 60 else ()))
        text = study_of(layers, max(trials.values()))
        (folder / "small.toml").write_text(text.replace("trials =", 'sampler = "random"\ntrials =', 1))
        self.address = f"127.0.0.1:{port_for_restarts()}"
        self.workers: dict[str, ForkedRun] = {}
        self.coordinators: dict[int, ForkedRun] = {}
        """coordinators by the number of trials of a layer"""
        self._devices: dict[str, str] = {}
        self.struck: Counter[str] = Counter()
        self._logs = (folder / "log.txt").open("w")

    def start_scheduler(self) -> None:
        """Start the scheduler, at the same address each time."""
        host, port = self.address.split(":")
        words = ["--host", host, "--port", port, "--no-dashboard"]
        self.scheduler = subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_scheduler", *words],
            env={**os.environ, **self._environ},
            stdout=self._logs,
            stderr=self._logs,
        )

    def start_worker(self, name: str, device: str = "") -> None:
        """Start a worker: a new one, or one that was killed."""
        self._devices[name] = device = device or self._devices[name]
        self.workers[name] = self._run("worker", self.address, "--device", device, "--name", name, "--compilers", 1)

    def start_coordinator(self, trials: int) -> None:
        """Begin or resume the study on the kinds of devices with this number of trials."""
        wanted = [word for kind, own in self.trials.items() if own == trials for word in ("--device-class", kind)]
        words = ("--family-dir", "families", "--cluster", self.address, "--db", "chaos.db", "--trials", trials, *wanted)
        self.coordinators[trials] = self._run("tune", "small.toml", *words)

    @property
    def ended(self) -> bool:
        """Whether all coordinators have ended."""
        return all(run.done or run.ended for run in self.coordinators.values())

    def _run(self, *words: object) -> ForkedRun:
        return self._fork_server.start(self.folder, *words, env=self._environ, err=self._logs.fileno())

    def tune_alone(self, db: str, device: str) -> None:
        """Tune the same study on this machine without a cluster."""
        run = self._run("tune", "small.toml", "--family-dir", "families", "--device", device, "--db", db)
        assert run.finish().code == 0, self.log

    def record(self, db: str) -> None:
        """Record the null device's trials, SLOWER times as long."""
        self.tune_alone(db, "null")
        with closing(sqlite3.connect(self.folder / db)) as file, file:
            for at, samples in file.execute("SELECT id, samples_us FROM measurements").fetchall():
                slower = json.dumps([sample * SLOWER for sample in json.loads(samples)])
                file.execute("UPDATE measurements SET samples_us = ? WHERE id = ?", (slower, at))
            for column in ("median_us", "q1_us", "q3_us"):
                file.execute(f"UPDATE measurements SET {column} = {column} * {SLOWER}")
            for column in ("median_us", "ranking_median_us"):
                file.execute(f"UPDATE trials SET {column} = {column} * {SLOWER} WHERE {column} IS NOT NULL")

    @property
    def log(self) -> str:
        """The output of all processes."""
        return (self.folder / "log.txt").read_text()

    @property
    def rows(self) -> tuple[TrialRow, ...]:
        """The stored trials; none if there is no database yet."""
        try:
            return rows_of(self.folder / "chaos.db")
        except StoreError:  # the database is being created
            return ()

    def wait_for(self, kernels: int) -> set[StoredTrial]:
        """Wait until this many kernels were evaluated or the coordinator has ended; returns the stored trials."""
        self.wait_until(lambda: evaluated(self.rows) >= kernels or self.ended)
        return self.stored

    @property
    def stored(self) -> set[StoredTrial]:
        """The stored trials."""
        return {stored(row) for row in self.rows}

    def wait_until(self, what: Callable[[], bool], patience_s: float = 120) -> None:
        """Wait until a condition holds. Raises TimeoutError with the log if it takes too long."""
        until = time.monotonic() + patience_s
        while not what():
            if time.monotonic() > until:
                raise TimeoutError(self.log[-4000:])
            time.sleep(0.4)

    def strike(self) -> None:
        """Kill or stop a random process at a random moment, and let it return later."""
        self.replace_workers()
        time.sleep(self.rng.uniform(1, 6))
        stops = self.rng.random() < 0.4
        sent = signal.SIGSTOP if stops else signal.SIGKILL
        targets: list[str | int] = [*self.workers, *self.coordinators, "scheduler", "device"]
        whom = self.rng.choice(targets)
        self.struck[f"{sent.name} {'coordinator' if isinstance(whom, int) else whom.partition('-')[0]}"] += 1
        run = self.coordinators[whom] if isinstance(whom, int) else self.workers.get(whom)
        if run is not None and (run.done or run.ended):
            return
        number = self.scheduler.pid if whom == "scheduler" else self._device_process() if run is None else run.number
        if number is None:
            return
        os.kill(number, sent)
        time.sleep(self.rng.uniform(0, 2.5 * TTL_S))
        if stops:
            with contextlib.suppress(ProcessLookupError):  # a worker kills its process that hangs
                os.kill(number, signal.SIGCONT)
        elif whom == "scheduler":
            self.scheduler.wait()
            self.start_scheduler()
        elif run is not None:
            run.finish()
            self.start_coordinator(whom) if isinstance(whom, int) else self.start_worker(str(whom))

    def replace_workers(self) -> None:
        """Start workers again that have ended because a process of theirs was killed while they started."""
        for name, run in list(self.workers.items()):
            if not run.done and run.ended:
                run.finish()
                self.start_worker(name)

    def _device_process(self) -> int | None:
        """A process that a worker has started to compile or to run kernels; None if there is none."""
        workers = {run.number for run in self.workers.values()}
        found = []
        for number in sorted(marked(self.mark)):
            with contextlib.suppress(OSError):  # it has just ended
                parent = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
                found += [number] if parent in workers else []
        return self.rng.choice(found) if found else None

    def end(self) -> None:
        """Kill the remaining processes."""
        for run in (*self.workers.values(), *self.coordinators.values()):
            if not run.done:
                run.send_signal(signal.SIGKILL)
                run.finish()
        for number in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.scheduler.wait()
        self._logs.close()


def study_of(layers: int, trials: int) -> str:
    """A study of layers that differ in their channels."""
    head, layer = changed(STUDY, ("trials = 10", f'trials = {trials}\ntemplates = ["tiny"]')).split("[[layer]]")
    made = [changed(layer, ('"one"', f'"layer{at}"'), ("c = 2", f"c = {at + 1}")) for at in range(layers)]
    return head + "".join(f"[[layer]]{each}" for each in made)


def rows_of(path: Path) -> tuple[TrialRow, ...]:
    """The trials of the study in a database; none if the study is not there yet."""
    if not path.exists():
        return ()
    with Store(path, create=False) as store:
        return store.trials.list("small") if store.studies.list() else ()


def evaluated(rows: tuple[TrialRow, ...]) -> int:
    """The number of trials that were compiled or that failed to compile."""
    return sum(row.trial.compiled for row in rows)


def stored(row: TrialRow) -> StoredTrial:
    """The trial of a row."""
    trial = row.trial
    place = row.device.name, row.layer.name, str(trial.config), trial.number
    return StoredTrial(*place, str(trial.outcome), row.median_us, trial.reason == WORKER_LOST)


def medians(path: Path) -> dict[tuple[str, str], float | None]:
    """The trials of each layer and config."""
    return {(row.layer.name, str(row.trial.config)): row.median_us for row in rows_of(path)}


def winners(path: Path, device: str) -> dict[str, str]:
    """Layer to the best config on a device."""
    with Store(path, create=False) as store:
        rows = [row for row in store.best.list("small") if row.row.device.name == device]
        return {row.layer.name: str(row.row.trial.config) for row in rows}
