"""`tune --cluster`: submit all layers' tasks to Dask, store the reports, and continue after workers are lost."""

from __future__ import annotations

import asyncio
import contextlib
import math
import pickle
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field

from distributed import Client, Event, Future, KilledWorker

from autotune import __version__
from autotune.cluster.cluster_worker import INFO
from autotune.cluster.layer_run import LayerRun, StudyRun, TunedBefore, next_evaluations
from autotune.cluster.scheduler import CONNECT_S, Workers, address_of, knock, prepare, workers_of
from autotune.cluster.task import DeviceClass, TaskReport
from autotune.devices.backends import KINDS
from autotune.devices.device import devices_named
from autotune.errors import AutotuneError, DeviceLost, StudyError, shortened
from autotune.escape import one_line
from autotune.problem import Layer, Problem
from autotune.study import distinct_layers
from autotune.tuning.layer_result import INTERRUPTED, LayerResult

LOOK_S = 0.5  # seconds between two checks for new work
MEET_S = 2.0  # seconds between two checks for new workers
STOP_S = 20.0  # maximum wait for tasks to end after Ctrl-C
CLOSE_S = 5.0  # maximum wait for the connection to close
FIRST_S = 8.0  # maximum wait for a scheduler that is started together with the run
WAIT_S = 60.0  # maximum wait for the first worker of a wanted class
FAILURES = 3  # number of consecutive failed tasks after which a layer is given up


@dataclass(frozen=True, slots=True)
class Overview:
    """The whole cluster's progress."""

    workers: int
    busy: int
    """number of workers that run a task"""
    layers: int
    """number of layers times number of device classes"""
    done: int
    trials: int
    """number of trials that this run has evaluated"""
    elapsed_s: float
    dashboard: str


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """The result of tuning a study on one device class."""

    device_class: DeviceClass
    results: tuple[LayerResult, ...]
    failed: Mapping[str, str]
    """the reasons why layers could not be tuned, by layer"""


@dataclass(slots=True, eq=False)
class _ClassRun:
    """The study's progress on one device class."""

    device_class: DeviceClass
    tasks: int = 0
    """number of tasks that the workers of the class run at once; 0: the class has no worker"""
    results: dict[Problem, LayerResult] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """the running tasks, by layer"""

    def is_open(self, layer: Layer) -> bool:
        """Whether the layer has not begun."""
        return not (layer.problem in self.results or layer.name in self.failed or layer.name in self.running)


class SchedulerLost(Exception):
    """The scheduler was lost. The run continues once a scheduler is available again."""


class Coordinator:
    """Tunes a study on every device class that has workers, or only on the wanted ones."""

    def __init__(
        self,
        run: StudyRun,
        layers: Sequence[Layer],
        cluster: str,
        *,
        wanted: Sequence[str],
        lock: Callable[[DeviceClass], None],
        observe: Callable[[Overview], None],
        say: Callable[[str], None],
        stopping: Callable[[], bool],
    ) -> None:
        """`lock` locks the study on a device class, and raises BlockingIOError if another run has the lock."""
        self._run, self._asked, self._layers, self._cluster = run, tuple(layers), distinct_layers(layers), cluster
        self._wanted, self._lock, self._observe, self._say = wanted, lock, observe, say
        self._stopping = stopping
        self._classes: dict[str, _ClassRun] = {}
        self._waiting: dict[str, DeviceClass] = {}
        """classes on which another run is already tuning the study"""
        self._workers: Mapping[str, Workers] = {}
        self._tasks: dict[str, tuple[LayerRun, Future]] = {}
        """the running tasks, by id"""
        self._trials = 0
        self._error: Exception | None = None
        """exception that was raised while a report was stored"""
        self._started = time.monotonic()
        self._stopped_s = math.inf
        """time at which the Event that ends tasks was set"""
        self._last_message = ""

    async def run(self) -> tuple[ClusterResult, ...]:
        """Tune every layer on every class, until done or `stopping`, and return each class's results."""
        await self._find_scheduler()
        while not self._over:
            client = Client(address_of(self._cluster), asynchronous=True, name="autotune")
            try:
                async with asyncio.timeout(CONNECT_S):
                    await client
                await self._session(client)
            except (OSError, TimeoutError, SchedulerLost) as error:
                why = shortened(one_line(str(error))) or "no answer"
                self._say_once(f"no scheduler at {self._cluster} ({why}); waiting for it")
                await asyncio.sleep(1)
            finally:
                await self._leave()
                with contextlib.suppress(OSError, TimeoutError, CancelledError, asyncio.CancelledError):
                    async with asyncio.timeout(CLOSE_S):
                        await client.close()
        return tuple(
            ClusterResult(
                each.device_class,
                tuple(
                    each.results[layer.problem].of(self._run.study.name, layer)
                    for layer in self._asked
                    if layer.problem in each.results
                ),
                each.failed,
            )
            for each in self._classes.values()
        )

    async def _find_scheduler(self) -> None:
        """Wait for a scheduler for up to FIRST_S. Raises StudyError if there is none by then."""
        until = time.monotonic() + FIRST_S
        while not self._stopping():
            try:
                await knock(self._cluster)
            except (OSError, TimeoutError) as error:
                message = f"no scheduler at {self._cluster} ({shortened(one_line(str(error)), 160) or 'no answer'})"
                if isinstance(error, socket.gaierror) or time.monotonic() > until:
                    raise StudyError(f"{message}; start one with `dask scheduler`") from None
                self._say_once(f"{message}; waiting up to {FIRST_S:.0f} s for it")
                await asyncio.sleep(0.2)
            else:
                return

    async def _session(self, client: Client) -> None:
        """Tune with one scheduler. Raises SchedulerLost if it is lost."""
        await client.run_on_scheduler(prepare)
        topic = f"autotune-{secrets.token_hex(8)}"
        client.subscribe_topic(topic, self._hear)
        stop, met_s = Event(topic, client), -math.inf
        while not self._over:
            if client.status != "running":
                raise SchedulerLost("it has gone")
            if time.monotonic() - met_s >= MEET_S:
                await self._meet(client)
                met_s = time.monotonic()
            if not self._stopping():
                await self._begin_layers(client, topic)
            elif self._stopped_s == math.inf:
                self._stopped_s = time.monotonic()
                await stop.set()
            self._observe(self._overview(client.dashboard_link))
            running = [task for each in self._classes.values() for task in each.running.values()]
            if running:
                await asyncio.wait(running, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(LOOK_S)
            for each in self._classes.values():
                for name, task in list(each.running.items()):
                    if task.done():
                        del each.running[name]
                        task.result()
            if self._error is not None:
                raise self._error

    async def _leave(self) -> None:
        """Cancel the running tasks."""
        running = [task for each in self._classes.values() for task in each.running.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for each in self._classes.values():
            each.running.clear()

    # Workers and device classes.

    async def _meet(self, client: Client) -> None:
        """List the workers, and begin the study on new device classes."""
        self._workers = await client.run_on_scheduler(workers_of, key=INFO)
        for each in self._classes.values():
            each.tasks = 0
        self._waiting.clear()
        for label, workers in self._workers.items():
            if workers.version != __version__:
                self._say_once(
                    f"{workers.names[0]}: its autotune is {workers.version}, not {__version__}; install one version on "
                    f"all hosts"
                )
                continue
            device_class = pickle.loads(workers.device_class)  # noqa: S301 - like all of Dask's messages
            if label not in self._classes and self._wants(device_class):
                try:
                    self._lock(device_class)
                except BlockingIOError:
                    self._waiting[label] = device_class
                else:
                    self._classes[label] = _ClassRun(device_class)
            if label in self._classes:
                self._classes[label].tasks = workers.tasks
        self._report_lacking()

    def _wants(self, device_class: DeviceClass) -> bool:
        return not self._wanted or any(_is(device_class, word) for word in self._wanted)

    @property
    def lacking(self) -> tuple[str, ...]:
        """The wanted devices that no worker has."""
        present = [*(each.device_class for each in self._classes.values()), *self._waiting.values()]
        if not self._wanted:
            return () if present else ("a device",)
        return tuple(word for word in self._wanted if not any(_is(each, word) for each in present))

    def _report_lacking(self) -> None:
        deserted = [each.device_class.info.name for each in self._classes.values() if not each.tasks]
        if self.lacking:
            present = ", ".join(each.device_class.info.name for each in self._classes.values())
            others = f"; tuning on {present} meanwhile" if present else ""
            self._say_once(f"no worker has {', '.join(self.lacking)}; waiting up to {WAIT_S:.0f} s for one{others}")
        elif deserted and not self._all_done:
            self._say_once(f"no worker has {', '.join(deserted)} any more; waiting for one")

    # Layers and their tasks.

    async def _begin_layers(self, client: Client, topic: str) -> None:
        """Begin layers until each class has as many as its workers run tasks at once.

        A layer that has been begun counts until it is tuned.
        """
        for each in self._classes.values():
            tuned: TunedBefore = {}
            for layer in self._layers:
                if len(each.running) >= each.tasks:
                    break
                if each.is_open(layer):
                    run = LayerRun(self._run, each.device_class, layer, tuned)
                    each.running[layer.name] = asyncio.create_task(self._tune(client, topic, each, run))
                    await asyncio.sleep(0)  # so that reports of other layers are stored

    async def _tune(self, client: Client, topic: str, class_run: _ClassRun, run: LayerRun) -> None:
        """Tune a layer by submitting one task after another."""
        layer, result, why = run.layer, None, ""
        while result is None:
            task = run.task(topic)
            future = client.submit(
                next_evaluations,
                task,
                key=f"{task.state.name}-{task.id}",
                pure=False,
                resources={run.device_class.label: 1},
            )
            self._tasks[task.id] = run, future
            try:
                result = run.end(await future)
            except (KilledWorker, CancelledError):
                if client.status != "running":
                    raise SchedulerLost("it has gone") from None
                why = f"{', '.join(run.workers) or 'its worker'} was lost"
                self._lose(run, why)
            except AutotuneError as error:
                why = str(error)
                self._lose(run, why)
                if isinstance(error, DeviceLost):
                    await client.retire_workers(names=run.workers)
                if isinstance(error, StudyError):
                    run.failures = FAILURES
            except Exception as error:  # noqa: BLE001 - whatever the task raised on its worker
                why = f"{type(error).__name__}: {one_line(str(error))}"
                self._lose(run, why)
            finally:
                self._tasks.pop(task.id, None)
                future.release()
            if run.failures >= FAILURES:
                class_run.failed[layer.name] = why
                return
            if result is not None and result.stopped == INTERRUPTED and not self._stopping():
                result = None  # the worker is stopping, but this run is not
        class_run.results[layer.problem] = result

    def _lose(self, run: LayerRun, why: str) -> None:
        """Handle a failed task by storing the trial that was running and reporting the reason."""
        if self._error is None:
            run.lose(why)
        self._say(f"{run.layer.name} on {run.device_class.info.name}: {why}")

    def _hear(self, event: tuple[float, bytes]) -> None:
        """Store a running task's report."""
        report = pickle.loads(event[1])  # noqa: S301 - like all of Dask's messages
        assert isinstance(report, TaskReport)  # noqa: S101
        if report.task not in self._tasks or self._error is not None:
            return
        run, future = self._tasks[report.task]
        try:
            if report.call is not None:
                self._trials += run.hear(report.call)
            else:
                run.workers.append(report.worker)
                if len(run.workers) > 1:  # Dask has restarted the task, with outdated trials
                    del self._tasks[report.task]
                    asyncio.get_running_loop().create_task(future.cancel())
        except Exception as error:  # noqa: BLE001 - Dask would only log it
            self._error = error

    # Progress.

    @property
    def _all_done(self) -> bool:
        return not any(
            each.running or any(each.is_open(layer) for layer in self._layers) for each in self._classes.values()
        )

    @property
    def _over(self) -> bool:
        """Return whether the run can end: it was stopped, or there is no layer left to tune and no worker to
        wait for.
        """
        if self._stopping():
            running = any(each.running for each in self._classes.values())
            return not running or time.monotonic() - self._stopped_s > STOP_S
        if self.lacking and time.monotonic() - self._started < WAIT_S:
            return False
        return self._all_done and not self._waiting

    def _overview(self, dashboard: str) -> Overview:
        return Overview(
            workers=sum(len(self._workers[label].names) for label in self._classes if label in self._workers),
            busy=len({run.workers[-1] for run, _ in self._tasks.values() if run.workers}),
            layers=len(self._classes) * len(self._layers),
            done=sum(len(each.results) + len(each.failed) for each in self._classes.values()),
            trials=self._trials,
            elapsed_s=time.monotonic() - self._started,
            dashboard=dashboard,
        )

    def _say_once(self, message: str) -> None:
        if message != self._last_message:
            self._last_message = message
            self._say(message)


def _is(device_class: DeviceClass, word: str) -> bool:
    """Return whether a word is a device class's kind, its device's name or part of that name."""
    if word.casefold() in KINDS:
        return word.casefold() == device_class.info.kind
    return bool(devices_named(word, [device_class.info]))
