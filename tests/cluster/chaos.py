"""A cluster of real processes that are killed and stopped, and what must hold of its results database meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
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
from tests.processes import MARK, marked
from tests.unit.tiny import STUDY, changed, write_family

TTL_S = 4  # after which a silent worker is lost
SLOWER = 1000.0  # times that a recording's trials take longer than the null device's, which it is made of

THREE_HUNDRED = (
    ("values = [1, 2, 3, 4, 6]", f"values = {list(range(1, 26))}"),
    ("outputs <= 512", "outputs <= 6400"),
)
"""what makes the tiny family one of 300 kernels: all are tried, so that the winner does not hang on their order"""


@dataclass(frozen=True, slots=True)
class StoredTrial:
    """What must stay of a stored trial."""

    device: str
    layer: str
    config: str
    number: int
    outcome: str
    median_us: float | None
    lost: bool
    """whether its worker was lost while it ran"""

    @property
    def place(self) -> tuple[str, str, str, int]:
        """What stays of a running trial."""
        return self.device, self.layer, self.config, self.number


class Chaos:
    """A scheduler, workers by name, and a coordinator for each budget, in a folder."""

    def __init__(
        self, folder: Path, fork_server: ForkServer, layers: int, trials: Mapping[str, int], *, seed: int = 0
    ) -> None:
        """`trials` are of a layer, by kind of device."""
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
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.workers: dict[str, ForkedRun] = {}
        self.coordinators: dict[int, ForkedRun] = {}
        """by the trials that each is to make of a layer"""
        self._devices: dict[str, str] = {}
        self.struck: Counter[str] = Counter()
        self._logs = (folder / "log.txt").open("w")

    def start_scheduler(self) -> None:
        """At the same address each time."""
        host, port = self.address.split(":")
        words = ["--host", host, "--port", port, "--no-dashboard"]
        self.scheduler = subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_scheduler", *words],
            env={**os.environ, **self._environ},
            stdout=self._logs,
            stderr=self._logs,
        )

    def start_worker(self, name: str, device: str = "") -> None:
        """A new one, or once more one that was killed."""
        self._devices[name] = device = device or self._devices[name]
        self.workers[name] = self._run("worker", self.address, "--device", device, "--name", name, "--compilers", 1)

    def start_coordinator(self, trials: int) -> None:
        """Begin or resume the study, on the kinds of devices that get so many trials."""
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
        """The same study on this machine, with no cluster."""
        run = self._run("tune", "small.toml", "--family-dir", "families", "--device", device, "--db", db)
        assert run.finish().code == 0, self.log

    def record(self, db: str) -> None:
        """Make a recording of the null device's trials, SLOWER."""
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
        """What all of them said."""
        return (self.folder / "log.txt").read_text()

    @property
    def rows(self) -> tuple[TrialRow, ...]:
        """The stored trials; none where there is no database yet."""
        try:
            return rows_of(self.folder / "chaos.db")
        except StoreError:  # it is being made
            return ()

    def wait_for(self, kernels: int) -> set[StoredTrial]:
        """Wait until so many kernels were evaluated, or the coordinator has ended; the stored trials by then."""
        self.wait_until(lambda: evaluated(self.rows) >= kernels or self.ended)
        return self.stored

    @property
    def stored(self) -> set[StoredTrial]:
        """The stored trials."""
        return {stored(row) for row in self.rows}

    def wait_until(self, what: Callable[[], bool], patience_s: float = 120) -> None:
        """Wait until something holds. Raises TimeoutError with the log when it takes too long."""
        until = time.monotonic() + patience_s
        while not what():
            if time.monotonic() > until:
                raise TimeoutError(self.log[-4000:])
            time.sleep(0.4)

    def strike(self) -> None:
        """Kill or stop one of them at a random moment, and let it come back a while later."""
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
            with contextlib.suppress(ProcessLookupError):  # a process that hangs is killed by its worker
                os.kill(number, signal.SIGCONT)
        elif whom == "scheduler":
            self.scheduler.wait()
            self.start_scheduler()
        elif run is not None:
            run.finish()
            self.start_coordinator(whom) if isinstance(whom, int) else self.start_worker(str(whom))

    def _device_process(self) -> int | None:
        """A process that a worker has started, to compile or to run kernels; None while there is none."""
        workers = {run.number for run in self.workers.values()}
        found = []
        for number in sorted(marked(self.mark)):
            with contextlib.suppress(OSError):  # it has just ended
                parent = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
                found += [number] if parent in workers else []
        return self.rng.choice(found) if found else None

    def end(self) -> None:
        """Kill what is left."""
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
    """The trials of the study in a database; none where there is none yet."""
    if not path.exists():
        return ()
    with Store(path, create=False) as store:
        return store.trials.list("small") if store.studies.list() else ()


def evaluated(rows: tuple[TrialRow, ...]) -> int:
    """How many of them were compiled, or tried to."""
    return sum(row.trial.compiled for row in rows)


def stored(row: TrialRow) -> StoredTrial:
    """The trial of a row."""
    trial = row.trial
    place = row.device.name, row.layer.name, str(trial.config), trial.number
    return StoredTrial(*place, str(trial.outcome), row.median_us, trial.reason == WORKER_LOST)


def medians(path: Path) -> dict[tuple[str, str], float | None]:
    """Of each layer and config."""
    return {(row.layer.name, str(row.trial.config)): row.median_us for row in rows_of(path)}


def winners(path: Path, device: str) -> dict[str, str]:
    """Layer to the best config on a device."""
    with Store(path, create=False) as store:
        rows = [row for row in store.best.list("small") if row.row.device.name == device]
        return {row.layer.name: str(row.row.trial.config) for row in rows}
