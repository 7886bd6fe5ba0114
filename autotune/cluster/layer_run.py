"""Tune one layer on one device class: make tasks from the results database, and store the reports of the tasks.

`next_evaluations` is the task, which a cluster worker runs.
"""

from __future__ import annotations

import asyncio
import pickle
import secrets
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace

from distributed import get_worker

from autotune.cluster.cluster_worker import ClusterWorker
from autotune.cluster.task import EVALUATIONS, WORKER_LOST, DeviceClass, LayerTask, Report, TaskEnd, TaskReport
from autotune.errors import DeviceError
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.search.warm_start import near
from autotune.store import Store, StudyKey, TemplateRecord, TopTrial
from autotune.study import Study
from autotune.trial import Outcome, Trial
from autotune.tuning.initial_design import tuned_before
from autotune.tuning.layer_finals import FinalsPlan
from autotune.tuning.layer_result import PAUSED, LayerResult
from autotune.tuning.layer_store import StoredLayer, template_records
from autotune.tuning.tuned_layer import Part

_EVENT_S = 600.0  # timeout of one request to wait for the Event that ends a task

TunedBefore = dict[tuple[str, ...], tuple[TopTrial, ...]]
"""A device class's trials of tuned layers, by accuracy classes."""


@dataclass(frozen=True, slots=True)
class StudyRun:
    """A study in the results database that this run has begun or resumed."""

    store: Store
    study: Study
    families: Mapping[str, KernelTemplate]
    finals: FinalsPlan
    key: StudyKey
    packed: bytes
    """the families, pickled and compressed for tasks"""
    records: tuple[TemplateRecord, ...]

    @staticmethod
    def begin(
        store: Store, study: Study, families: Mapping[str, KernelTemplate], finals: FinalsPlan, *, fresh: bool
    ) -> StudyRun:
        """Begin a study or, unless `fresh`, resume it."""
        key = store.studies.begin(study, fresh=fresh)
        packed = zlib.compress(pickle.dumps(families))
        return StudyRun(store, study, families, finals, key, packed, template_records(families))


class LayerRun:
    """A layer in a cluster run, which sends one task after another."""

    def __init__(self, run: StudyRun, device_class: DeviceClass, layer: Layer, tuned: TunedBefore) -> None:
        """Open the layer. `tuned` caches the trials for a warm start, for layers that begin together."""
        self._run, self.device_class, self.layer = run, device_class, layer
        info, environment, study, store = device_class.info, device_class.environment, run.study, run.store
        mode = study.measurement_mode
        self._stored = StoredLayer.open(store, run.key, layer, info, environment, mode, run.records)
        self._first_number = store.trials.next_number(self._stored.scope)
        classes = study.informative(layer.problem)
        if self._first_number:  # a resumed layer uses the same trials as the original run
            self._tuned = self._similar(tuned_before(study, layer, self._stored))
        else:
            if classes not in tuned:
                tuned[classes] = tuned_before(study, layer, self._stored)
            self._tuned = self._similar(tuned[classes])
        self._rates = store.rates.best(info)
        self._evaluations = EVALUATIONS + zlib.crc32(layer.name.encode()) % EVALUATIONS
        """number of new evaluations in the next task; the first tasks differ, so that they don't all end together"""
        self._spent_s = 0.0
        self._new = 0
        self.workers: list[str] = []
        """names of the workers that have begun the current task"""
        self.reports = 0
        """number of reports of the current task"""
        self.failures = 0
        """number of consecutive tasks that failed without reporting a trial"""

    def _similar(self, tuned: Sequence[TopTrial]) -> tuple[TopTrial, ...]:
        """Return the trials of similar layers that a warm start considers."""
        families = self._run.study.templates or self._run.families
        searched = [trial for trial in tuned if trial.config.template in families]
        similar = near(self.layer.problem, self.device_class.info, searched)
        chosen = {id(trial) for layer in similar for trial in layer.trials}
        return tuple(trial for trial in searched if id(trial) in chosen)

    def task(self, topic: str) -> LayerTask:
        """Make the task for the next evaluations, based on all trials so far."""
        run, study, state = self._run, self._run.study, self._stored.state()
        self._stored.running.clear()
        self.workers.clear()
        self.reports = 0
        part = Part(self._evaluations, self._spent_s, self._first_number)
        self._evaluations = EVALUATIONS
        return LayerTask(
            id=secrets.token_hex(8),
            topic=topic,
            study=replace(study, layers=(self.layer,), path=None, text=""),
            layer=self.layer,
            state=state,
            part=part,
            families=run.packed,
            finals=run.finals,
            rates=self._rates,
            tuned=self._tuned,
        )

    def hear(self, call: Report) -> bool:
        """Store one of the task's reports, and return whether it ends an evaluation."""
        running = len(self._stored.running)
        call(self._stored)
        self.reports += 1
        return len(self._stored.running) < running

    def lose(self, message: str) -> None:
        """Record that the worker was lost while the oldest running trial was running.

        The other running trials were waiting for the device, so the next task tries each of them again on its own.
        """
        key = next(iter(self._stored.running.values()), None)
        if key is not None:
            lost = Trial(key.number, key.config, Outcome.RUNTIME, WORKER_LOST, message, key.source_hash)
            self._stored.end(lost)
            self.reports += 1
        self.failures = 0 if self.reports else self.failures + 1

    def end(self, end: TaskEnd) -> LayerResult | None:
        """Count a finished task, and return the layer's result, or None if another task follows."""
        self._spent_s += end.spent_s
        self._new += end.result.new
        self.failures = 0
        return None if end.result.stopped == PAUSED else replace(end.result, new=self._new)


def next_evaluations(task: LayerTask) -> TaskEnd:
    """Run the next evaluations of a layer as a Dask task. Each trial is reported as an event before the task ends."""
    worker = get_worker()
    if not isinstance(worker, ClusterWorker):
        raise DeviceError(f"{worker.address}: is not an autotune worker")

    def report(call: Report | None) -> None:
        worker.log_event(task.topic, pickle.dumps(TaskReport(task.id, str(worker.name), call)))

    report(None)
    with closing(_Stop(worker, task.topic, worker.get_current_task())) as stopping:
        return worker.device.run(task, report, stopping)


class _Stop:
    """A callable that returns whether a task should end.

    A task should end if its Event is set, the task was cancelled, or the worker is closing.
    """

    def __init__(self, worker: ClusterWorker, event: str, key: object) -> None:
        self._worker, self._event, self._key = worker, event, key
        self._answer = self._ask()

    def __call__(self) -> bool:
        state = self._worker.state.tasks.get(self._key)
        if self._worker.status.name not in ("running", "paused", "closing_gracefully"):
            return True
        if state is None or state.state == "cancelled":
            return True
        if not self._answer.done() or self._answer.exception() is not None:  # an exception: the scheduler is lost
            return False
        if not self._answer.result():
            self._answer = self._ask()
            return False
        return True

    def _ask(self) -> Future[bool]:
        """Start waiting for the task's Event. (`distributed.Event` would open a client in every worker.)"""
        waiting = self._worker.scheduler.event_wait(name=self._event, timeout=_EVENT_S)
        return asyncio.run_coroutine_threadsafe(waiting, self._worker.loop.asyncio_loop)

    def close(self) -> None:
        """Stop waiting for the task's Event."""
        self._answer.cancel()
