"""An agent: one device and its compilers, on which the line of one layer after another runs, each on a lease.

Between leases it measures and compiles for the lines of others. An agent without a device compiles, and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from autotune import __version__
from autotune.cluster.journal import NEVER, Families, Journal, Journals
from autotune.cluster.messages import (
    AgentInfo,
    Collecting,
    CompileFor,
    DeviceClass,
    Lease,
    LeaseEnd,
    LeaseLost,
    MeasureFor,
    News,
    named_by,
)
from autotune.cluster.shared_device import Ask, SharedEvaluator
from autotune.compilation.compile import Binary
from autotune.errors import DeviceError, DeviceLost, Rejected
from autotune.evaluation.evaluator import Evaluator
from autotune.family.source import KernelSource
from autotune.problem import Problem
from autotune.store import Finals
from autotune.trial import Config, Measured
from autotune.tuning.trial_log import Progress
from autotune.tuning.tune import tune


def alone(address: str, request: CompileFor | MeasureFor) -> object:
    """How an agent asks others before it is told how."""
    raise OSError(f"{address} cannot be asked to {type(request).__name__}")


FAILURES = 3  # times that a device is lost, after which it is left alone


class Agent:
    """What a cluster asks of one device. `run` takes long, in a thread of its own; the rest answers at once."""

    def __init__(
        self,
        name: str,
        folder: Path,
        open_device: Callable[[], Evaluator],
        compilers: int,
        families: Families | None = None,
    ) -> None:
        """Open the device. Raises DeviceError when it cannot be, StoreError for journals that cannot be kept.

        `families` are those that other agents of this process have loaded.
        """
        self.ask: Ask = alone
        """how it asks others"""
        self._compilers = compilers
        self._open_device = open_device
        self._evaluator: SharedEvaluator | None = self._opened()
        try:
            self._journals = Journals(folder, name, families)
        except BaseException:
            self._evaluator.close()
            raise
        self.device_class = device_class = DeviceClass.of(self._evaluator.info, self._evaluator.environment)
        toolchain = (device_class.info.kind, device_class.environment.toolkit, device_class.environment.flags)
        self.info = AgentInfo(name, device_class, compilers, __version__, toolchain, self._evaluator.slots)
        self.retired = ""
        """why it takes no further lease; empty while it does"""
        self.state = time.time_ns()
        """another one each time that there is something to tell; not that of an earlier process of this name"""
        self._failures = 0
        self._line = threading.Lock()
        """held while a layer is tuned"""
        self._lent = 0
        """kernels of others under way"""
        self._lost: DeviceLost | None = None
        """how the device was lost under one of them, until the last of them has ended"""
        self._lending = threading.Condition()
        self._prepared: Problem | None = None
        """what others' kernels were measured on last"""
        self._wanted = ""
        """the lease whose line is to run"""

    def run(self, lease: Lease) -> LeaseEnd:
        """Tune the lease's layer.

        Raises what stopped it: LeaseLost when the device does not come back, AutotuneError for what cannot be tuned.
        """
        self._wanted = lease.id  # an earlier line, which lost its lease unheard, ends by that
        with self._line:
            with self._lending:
                self._lending.wait_for(lambda: not self._lent)
                self._prepared = None
            try:
                return self._line_of(lease, self._device())
            except DeviceLost as error:
                raise self._failed(error) from error

    def _line_of(self, lease: Lease, evaluator: SharedEvaluator) -> LeaseEnd:
        if lease.device_class != self.device_class:
            raise DeviceError(f"{self.info.name}: is a {self.device_class.name} in another environment now")
        journal = self._journals.open(lease)
        self.state += 1
        try:
            return self._tuned(journal, lease, evaluator)
        finally:
            journal.live = False
            self.state += 1

    def _tuned(self, journal: Journal, lease: Lease, evaluator: SharedEvaluator) -> LeaseEnd:
        def observe(progress: Progress) -> None:
            journal.progress = progress
            self.state += 1

        (result,) = tune(
            lease.study,
            journal.families,
            evaluator,
            journal.store,
            observe=observe,
            stopping=lambda: self._wanted != lease.id,
            finals=lease.finals,
            tuned=lease.tuned,
        )
        finals = journal.store.finals.latest(journal.scope) if result.finals else None
        configs = {trial.number: trial.config for trial in journal.store.trials.history(journal.scope)}
        retimes = journal.store.retimes.list(journal.scope.name)
        disproved = tuple((row.row.trial.source_hash or "", row.message) for row in retimes if row.label == "failed")
        return LeaseEnd(self.info.name, result, finals, _named(finals, configs), disproved)

    def _opened(self) -> SharedEvaluator:
        return SharedEvaluator(self._open_device(), self._compilers, self._ask_other)

    def _ask_other(self, address: str, request: CompileFor | MeasureFor) -> object:
        return self.ask(address, request)

    def _device(self) -> SharedEvaluator:
        """Opened again when it was lost. Raises DeviceLost where it cannot be."""
        if self._evaluator is None:
            try:
                self._evaluator = self._opened()
            except DeviceError as error:
                raise DeviceLost(str(error)) from error
        return self._evaluator

    def _failed(self, error: DeviceLost) -> LeaseLost:
        """Close the device, which nothing uses any more, and count that it was lost."""
        if self._evaluator is not None:
            self._evaluator.close()
        self._evaluator = self._prepared = None
        self._failures += 1
        self.state += 1
        words = f"{self.info.name}: {error}"
        if self._failures >= FAILURES:
            self.retired = words = f"{words}; retired after {FAILURES} failures"
        return LeaseLost(self.info.name, words)

    def collect(self, asked: Collecting) -> News:
        """What is not stored yet of the owner's trials; journals that are known to be stored whole go.

        A line whose lease was given to another agent meanwhile is asked to stop.
        """
        found, state = [], self.state
        evaluator = self._evaluator
        if evaluator is not None:
            evaluator.lend(asked.helpers)
        for journal in self._journals:
            lease = journal.lease
            if lease.owner != asked.owner:
                continue
            journal.acknowledge(asked.stored.get(lease.id, frozenset()))
            current = lease.id in asked.current or lease.serial > asked.serial
            if not current and self._wanted == lease.id:
                self._wanted = ""
            collected = journal.collected(known=lease.id in asked.current)
            if collected.live or collected.deliveries:
                found.append(collected)
            elif journal.told <= asked.seen:
                self._journals.drop(journal)
                state = self.state = self.state + 1
            else:
                found.append(collected)
                if journal.told == NEVER:
                    journal.told = state = self.state = self.state + 1
        return News(state, self.retired, tuple(found))

    def lend(self, request: CompileFor | MeasureFor) -> Binary | Measured | Rejected | None:
        """Compile or measure for the line of another agent; None while it has its own, or when its device is lost.

        Takes as long as that takes. Raises AutotuneError for what is wrong here, and says nothing of the kernel.
        """
        with self._helping() as free:
            if not free:
                return None
            try:
                own = self._ready(request)
                if isinstance(request, CompileFor):
                    return own.compile(request.source).result()
                return own.evaluate(request.source, request.binary, cache=request.cache, best_us=request.best_us)
            except Rejected as rejected:
                return rejected
            except DeviceLost as error:
                self._lost = error
                return None

    @contextmanager
    def _helping(self) -> Iterator[bool]:
        """Whether the device is free for others: no line takes it meanwhile, nor is it closed."""
        with self._lending:
            free = not (self._line.locked() or self.retired or self._lost)
            self._lent += free
        try:
            yield free
        finally:
            with self._lending:
                self._lent -= free
                if self._lost is not None and not self._lent:
                    self._failed(self._lost)
                    self._lost = None
                self._lending.notify_all()

    def _ready(self, request: CompileFor | MeasureFor) -> Evaluator:
        """The device, with the layer's data of a kernel that is to be measured."""
        with self._lending:
            own, problem = self._device().own, request.source.problem
            if isinstance(request, MeasureFor) and self._prepared != problem:
                own.begin_layer(problem)
                self._prepared = problem
            return own

    def stop(self) -> None:
        """Ask the line at hand to end after the trials at hand."""
        self._wanted = ""

    def close(self) -> None:
        """End the line at hand, and with it the device's processes."""
        self.stop()
        with self._line:
            if self._evaluator is not None:
                self._evaluator.close()
            self._journals.close()


class CompilingAgent:
    """An agent without a device: it compiles for the lines of others."""

    def __init__(
        self,
        name: str,
        compilers: int,
        toolchain: tuple[str, str, str],
        compile_for: Callable[[KernelSource, int], Future[Binary]],
        close: Callable[[], None],
    ) -> None:
        """`compile_for` takes a kernel and the compute capability of its device, times ten; `close` ends compilers."""
        self.info = AgentInfo(name, None, compilers, __version__, toolchain, 0)
        self.ask: Ask = alone
        self.retired = ""
        self.state = time.time_ns()
        self._compile_for = compile_for
        self.close = close

    def run(self, lease: Lease) -> LeaseEnd:
        """Nobody leases a layer to one who has no device."""
        raise DeviceError(f"{self.info.name}: only compiles; {lease.layer.name} needs a device")

    def collect(self, _: Collecting) -> News:
        """It measures nothing."""
        return News(self.state, "", ())

    def lend(self, request: CompileFor | MeasureFor) -> Binary | Rejected | None:
        """Compile a kernel."""
        if isinstance(request, MeasureFor):
            return None
        try:
            return self._compile_for(request.source, request.arch).result()
        except Rejected as rejected:
            return rejected

    def stop(self) -> None:
        """What it compiles ends by itself."""


def _named(finals: Finals | None, configs: Mapping[int, Config]) -> Mapping[int, Config]:
    """The configs that finals name."""
    if finals is None:
        return {}
    return {number: configs[number] for number in named_by(finals)}
