"""A cluster worker: a Dask worker with its own device.

SSHCluster and dask-jobqueue start a `ClusterWorker`; `serve` implements the command `autotune worker`.
"""

from __future__ import annotations

import asyncio
import pickle
import secrets
import socket
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from threading import BoundedSemaphore

from distributed import Worker
from distributed.core import Status

from autotune import __version__
from autotune.api.device_names import evaluator_of
from autotune.cluster.scheduler import CONNECT_S, address_of, knock
from autotune.cluster.task import DeviceClass, LayerTask, Report, TaskEnd, reporting
from autotune.devices.host_machine import usable_cores
from autotune.errors import DeviceLost, StudyError, shortened
from autotune.escape import one_line
from autotune.evaluation.evaluator import Evaluator
from autotune.family.space import SearchSpace
from autotune.family.template import KernelTemplate
from autotune.search.threads import single_threaded
from autotune.search.warm_start import WarmStart
from autotune.tuning.initial_design import initial_design
from autotune.tuning.open_spaces import open_spaces
from autotune.tuning.schedule import Schedule
from autotune.tuning.tuned_layer import OpenLayer, Run

INFO = "autotune-worker"
"""key of autotune's version and the device class in a worker's startup information"""
_PREPARED = 8  # number of layers whose search spaces a worker keeps
_POLL_S = 0.2  # seconds between two checks for a request to stop
_RETRY_S = 1.0  # seconds between two attempts to reach a scheduler

Prepared = tuple[list[SearchSpace], WarmStart | None]
"""A layer's search spaces and initial design."""


class OpenDevice:
    """An open device, and the latest layers' search spaces."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self._open = ExitStack()
        self._open.callback(evaluator.close)
        self._open.enter_context(single_threaded())  # here rather than in each task, because tasks overlap
        self.device_class = DeviceClass.of(evaluator.info, evaluator.environment)
        self.tasks = 1 if evaluator.finals_alone else 2
        """number of tasks to run at once; one task compiles while the last kernels of another are measured"""
        self.lost = ""
        """how the device was lost; empty while the device works"""
        self.stopping = False
        """whether tasks should end after the current evaluation"""
        self._running = BoundedSemaphore(self.tasks)
        self._families: dict[bytes, Mapping[str, KernelTemplate]] = {}
        self._prepared: dict[bytes, Prepared] = {}

    def run(self, task: LayerTask, report: Callable[[Report], object], stopping: Callable[[], bool]) -> TaskEnd:
        """Tune part of a layer in the same way as `tune`. Raises DeviceLost if the device is lost."""
        with self._running:
            began_s = time.perf_counter()
            spaces, design = self._prepare(task)
            run = Run(
                task.study,
                self.evaluator,
                observe=lambda _: None,
                stopping=lambda: self.stopping or stopping(),
                finals=task.finals,
                rates=task.rates,
                part=task.part,
            )
            opened = OpenLayer(task.layer, spaces, task.state, reporting(report), lambda: design)
            try:
                (result,) = Schedule(run, [opened]).run()
            except DeviceLost as error:
                self.lost = str(error)
                raise
            return TaskEnd(result, time.perf_counter() - began_s)

    def close(self) -> None:
        """Close the device."""
        self._open.close()

    def _prepare(self, task: LayerTask) -> Prepared:
        key = pickle.dumps((task.state.name, task.study.space, task.study.templates, task.families, task.tuned))
        if key not in self._prepared:
            if task.families not in self._families:
                families = pickle.loads(zlib.decompress(task.families))  # noqa: S301 - like all of Dask's messages
                self._families[task.families] = families
            listed = self.evaluator.listed(task.layer.problem, cache=task.study.measure.cache)
            spaces = open_spaces(task.study, task.layer, self._families[task.families], self.evaluator.info, listed)
            design = initial_design(task.study, task.layer, spaces, self.evaluator.info, task.tuned, task.rates)
            while len(self._prepared) >= _PREPARED:
                self._prepared.pop(next(iter(self._prepared)))
            self._prepared[key] = spaces, design
        return self._prepared[key]


class ClusterWorker(Worker):
    """A Dask worker that owns a device, whose class is one of the worker's Dask resources."""

    def __init__(
        self,
        scheduler_ip: str | None = None,
        scheduler_port: int | None = None,
        *,
        device: OpenDevice | str | None = None,
        compilers: int | None = None,
        **options: object,
    ) -> None:
        """Open `device`, by default the first CUDA device or else the host. `options` go to Dask's Worker."""
        self.owns_device = not isinstance(device, OpenDevice)
        """whether the worker opened the device and must close it"""
        if not isinstance(device, OpenDevice):
            device = OpenDevice(evaluator_of(device, compilers or usable_cores()))
        self.device = device
        info = pickle.dumps(device.device_class)
        merged = {
            "memory_limit": 0,  # Dask pauses a worker that uses much memory
            **options,
            "nthreads": device.tasks,
            "resources": {device.device_class.label: device.tasks},
            "startup_information": {INFO: lambda _: (__version__, info)},
        }
        super().__init__(scheduler_ip, scheduler_port, **merged)

    async def close_gracefully(self, *arguments: object, **options: object) -> None:
        """Accept no more tasks, end running ones after their current evaluations, and leave the cluster."""
        self.device.stopping = True
        self.status = Status.paused
        while self.state.executing:
            await asyncio.sleep(_POLL_S)
        await super().close_gracefully(*arguments, **options)

    async def close(self, *arguments: object, **options: object) -> str | None:
        """End tasks after their current evaluations, and close the device."""
        self.device.stopping = True
        closed = await super().close(*arguments, **options)
        if self.owns_device:
            await asyncio.to_thread(self.device.close)
        return closed


async def serve(
    device: OpenDevice,
    cluster: str,
    name: str,
    *,
    say: Callable[[str], None],
    stopping: Callable[[], bool],
    once: bool,
) -> None:
    """Run a cluster worker until `stopping` returns true.

    If the scheduler is lost, wait for a new one or, if `once` is set, end. Raises StudyError if there is no scheduler
    and `once` is set, and DeviceLost if the device is lost.
    """
    waiting = False
    while not stopping():
        device.stopping = False
        try:
            with suppress(ConnectionError, TimeoutError):  # the scheduler may still be starting
                await knock(cluster)
            worker = ClusterWorker(address_of(cluster), device=device, name=f"{name}-{secrets.token_hex(3)}")
            if not await _connected(worker, stopping):
                return
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            why = shortened(one_line(str(error))) or "no answer"
            if once:
                raise StudyError(f"no scheduler at {cluster} ({why})") from None
            if not waiting:
                say(f"no scheduler at {cluster} ({why}); trying until there is one")
            waiting = True
            await asyncio.sleep(_RETRY_S)
            continue
        waiting = False
        say(f"{name}: serves {worker.scheduler.address} as {device.device_class.label}")
        while worker.status.name == "running" and not stopping():
            await asyncio.sleep(_POLL_S)
        if worker.status.name == "running":
            await worker.close_gracefully()
        await worker.finished()
        if device.lost:
            raise DeviceLost(f"{name}: {device.lost}")
        if not stopping():
            say(f"{name}: the scheduler was lost")
        if once:
            return


async def _connected(worker: ClusterWorker, stopping: Callable[[], bool]) -> bool:
    """Wait until a worker is connected to the scheduler. Returns False if `stopping` returns true first."""

    async def connect() -> None:
        await worker

    connecting = asyncio.create_task(connect())
    try:
        async with asyncio.timeout(CONNECT_S):
            while not connecting.done():
                if stopping():
                    return False
                await asyncio.wait([connecting], timeout=_POLL_S)
        await connecting
    finally:
        connecting.cancel()
    return True


def worker_name(device: str | None) -> str:
    """Return a worker's default name."""
    return f"{socket.gethostname()}-{device or 'default'}"
