"""`Evaluator`, the interface for evaluating kernels, and an implementation that runs devices in worker processes."""

from __future__ import annotations

import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, runtime_checkable

from autotune.compilation.cache import BinaryCache
from autotune.compilation.compile import Binary, Program, Target
from autotune.devices.backends import parse_device, runtime_program
from autotune.devices.device import BUSY_PERCENT, SHARED_PERCENT, DeviceInfo, Environment
from autotune.errors import DeviceError, Rejected
from autotune.family.source import KernelSource
from autotune.measurement.calibrate import Calibration, calibration_program
from autotune.measurement.dispatcher_check import Choices, ChoicesRequest
from autotune.measurement.end_to_end_timer import EndToEndRequest, EndToEndTiming
from autotune.measurement.numpy_reference import in_numpy
from autotune.measurement.reference import check_program
from autotune.operation.operation import REFERENCE
from autotune.problem import Problem
from autotune.trial import Config, ErrorStats, Measured
from autotune.workers.compilers import FIRST_DEADLINE_S, CompilePool
from autotune.workers.device_worker import AT_HAND, DEADLINES, Deadlines, DeviceWorker
from autotune.workers.worker import (
    EvaluateRequest,
    FinalsRequest,
    FinalsTimings,
    LayerRequest,
    SomeBlocksRequest,
    VerifyRequest,
    of_kind,
)

_ENTERED = 4  # number of copies of a kernel, and of its library, that are timed; each copy has its own weights


class Evaluator(ABC):
    """Compiles and measures kernels for several layers on one kind of device.

    The default methods suit evaluators that don't run kernels: one config at a time, without preparation.
    """

    @property
    @abstractmethod
    def info(self) -> DeviceInfo:
        """The device's identity and limits. If there are several devices, they are equal."""

    @property
    @abstractmethod
    def environment(self) -> Environment:
        """The driver, the compiler and the compiler flags."""

    @property
    def ahead(self) -> int:
        """The number of configs to work on at once. 1 makes a run strictly sequential."""
        return 1

    @property
    def slots(self) -> int:
        """The number of `evaluate` calls that may run at once."""
        return 1

    @property
    def finals_alone(self) -> bool:
        """Whether nothing else may run during the finals."""
        return self.ahead == 1

    @property
    def busy_s(self) -> float:
        """A clock, in seconds, that advances while kernels run."""
        return time.monotonic()

    def listed(self, problem: Problem, *, cache: str) -> frozenset[Config] | None:  # noqa: ARG002
        """Return the configs of a layer that can be evaluated, or None if all of them can."""
        return None

    def expect(self, problem: Problem) -> None:  # noqa: B027 - nothing to start
        """Announce a layer, so that its verification program is compiled before `begin_layer`."""

    def begin_layer(self, problem: Problem) -> None:  # noqa: B027 - every layer is ready
        """Make a layer's data, keeping the data of earlier layers.

        Raises DeviceError if the device refuses the layer.
        """

    @abstractmethod
    def compile(self, source: KernelSource) -> Future[Binary]:
        """Start compiling a kernel. If that fails, the future raises Rejected('compile', ...)."""

    @abstractmethod
    def evaluate(self, source: KernelSource, binary: Binary, *, cache: str, best_us: float | None) -> Measured:
        """Verify and time one kernel.

        If `best_us` is None, the kernel is timed to the end. Otherwise, it races against `best_us` (infinite if
        unknown) and against the layer's fastest kernel so far. Raises Rejected with the kernel's outcome, or DeviceLost
        if the device is gone.
        """

    @abstractmethod
    def finals(self, request: FinalsRequest) -> FinalsTimings:
        """Time one layer's contenders interleaved, on one device and all in the same way.

        Raises Disproved for kernels whose outputs are wrong after the timing.
        """

    def refresh(self) -> None:  # noqa: B027 - nothing to replace
        """Use fresh workers for the next request."""

    def close(self) -> None:  # noqa: B027 - nothing to end
        """Stop all processes that the evaluator started."""


def compiled_at_once(compiled: Callable[[KernelSource], Binary], source: KernelSource) -> Future[Binary]:
    """Compile right away and return a finished future, which raises Rejected if that failed."""
    future: Future[Binary] = Future()
    try:
        future.set_result(compiled(source))
    except Rejected as rejected:
        future.set_exception(rejected)
    return future


@runtime_checkable
class Chooser(Protocol):
    """An evaluator that can also compile and run dispatchers."""

    def build(self, program: Program) -> Future[Binary]:
        """Start compiling a program that doesn't belong to a config."""

    def choices(self, request: ChoicesRequest) -> tuple[int, ...]:
        """Run a compiled dispatcher and return, for each layer, the position of the kernel that it chooses."""


class DeviceEvaluator(Evaluator):
    """Evaluates kernels on `host`, or on one or more `cuda:N` of the same model, with a pool of compilers."""

    def __init__(
        self,
        devices: Sequence[str],
        jobs: int,
        *,
        cache: BinaryCache | None = None,
        deadlines: Deadlines = DEADLINES,
    ) -> None:
        self._deadlines = deadlines
        self._jobs = jobs
        self._pool = CompilePool(jobs, cache, deadline_s=deadlines.compile_s)
        self._workers: list[DeviceWorker] = []
        self._checks: dict[Program, Future[Binary]] = {}
        """verification programs; most are valid for several layers"""
        try:
            kind = parse_device(devices[0])[0]
            self._pool.start(kind)  # while the devices are opened
            runtime = self._runtime(kind)
            for name in devices:
                self._workers.append(DeviceWorker(name, deadlines, runtime))
            for worker in self._workers[1:]:
                if worker.opened.info.identity != self.info.identity:
                    raise DeviceError(
                        f"{self._workers[0].name} is a {self.info.name}, {worker.name} a {worker.opened.info.name}: "
                        f"different GPUs never share a ranking; tune them one by one"
                    )
        except BaseException:
            self.close()
            raise
        self._idle: queue.SimpleQueue[DeviceWorker] = queue.SimpleQueue()
        for worker in AT_HAND * self._workers:
            self._idle.put(worker)

    def _runtime(self, kind: str) -> Binary | None:
        """Compile the program that every worker on this kind of device loads first, or None if there is none."""
        program = runtime_program(kind)
        return None if program is None else self._pool.submit_own(program, Target(kind), "its runtime").result()

    @property
    def info(self) -> DeviceInfo:
        """The device's identity and limits. If there are several devices, they are equal."""
        return self._workers[0].opened.info

    @property
    def environment(self) -> Environment:
        """The driver, the compiler and the compiler flags."""
        return self._workers[0].opened.environment

    @property
    def shared(self) -> Mapping[str, int]:
        """The devices that other programs were using when they were opened, with the percentage of time they
        were busy.
        """
        opened = {worker.name: worker.opened.environment.attributes for worker in self._workers}
        busy = {name: int(attributes.get(BUSY_PERCENT, "0")) for name, attributes in opened.items()}
        return {name: percent for name, percent in busy.items() if percent >= SHARED_PERCENT}

    @property
    def ahead(self) -> int:
        """One config per compiler, and four per device: one running, two queued and one compiled.

        With this many, devices and compilers don't have to wait for each other if one of them is briefly slow.
        """
        return self._jobs + 4 * len(self._workers)

    @property
    def slots(self) -> int:
        """Two `evaluate` calls per device, for the running kernel and the next one."""
        return AT_HAND * len(self._workers)

    @property
    def busy_s(self) -> float:
        """A clock in seconds. On a CPU, this is the workers' CPU time, which other programs don't increase."""
        return sum(worker.cpu_seconds for worker in self._workers) if self.info.can.cpu else super().busy_s

    @property
    def finals_alone(self) -> bool:
        """Whether the device is a CPU, where compilers would slow down the finals."""
        return self.info.can.cpu

    @property
    def target(self) -> Target:
        """The target of compilations."""
        return Target(self.info.kind, self.info.arch, check=self._workers[0].name == "host:check")

    def expect(self, problem: Problem) -> None:
        """Start compiling the layer's verification program, unless another layer uses the same one."""
        self._check(problem)

    def _check(self, problem: Problem) -> Future[Binary]:
        program = check_program(problem)
        if program not in self._checks:
            plain = Target(self.info.kind, self.info.arch)  # no sanitizers, because this program reads guard bands
            folder = problem.operation.folder
            own = "" if in_numpy(problem.operation) else f" with {folder / REFERENCE}"
            self._checks[program] = self._pool.submit_own(program, plain, f"the program that verifies kernels{own}")
        return self._checks[program]

    def begin_layer(self, problem: Problem) -> None:
        """Wait for the layer's verification program to be compiled, then make the layer's data on every device."""
        layer = LayerRequest(problem, self._check(problem).result())
        with ThreadPoolExecutor(len(self._workers)) as threads:
            for done in [threads.submit(worker.begin_layer, layer) for worker in self._workers]:
                done.result()

    def compile(self, source: KernelSource) -> Future[Binary]:
        """Start compiling a kernel."""
        return self._pool.submit(source.program, self.target)

    def evaluate(self, source: KernelSource, binary: Binary, *, cache: str, best_us: float | None) -> Measured:
        """Verify and time a kernel on an idle device, or queue it behind the one that a device is running."""
        worker = self._idle.get()
        try:
            return worker.evaluate(EvaluateRequest(source, binary, cache, best_us))
        finally:
            self._idle.put(worker)

    def verify(self, source: KernelSource, binary: Binary, *, once: bool = False) -> ErrorStats:
        """Verify a kernel on an idle device, with one run if `once`."""
        worker = self._idle.get()
        try:
            return worker.verify(VerifyRequest(source, binary, once))
        finally:
            self._idle.put(worker)

    def run_some_blocks(self, request: SomeBlocksRequest) -> None:
        """Run some blocks of a kernel on the first device."""
        self._workers[0].run_some_blocks(request)

    def finals(self, request: FinalsRequest) -> FinalsTimings:
        """Time contenders interleaved on the first device."""
        return self._workers[0].finals(request)

    def library_finals(
        self, library: Path, source: KernelSource, binary: Binary, *, cache: str, budget_s: float
    ) -> FinalsTimings:
        """Verify an exported library and time it interleaved with the kernel from which it was exported.

        Several copies of both are timed, with weights at different addresses. Raises Rejected if the library is wrong.
        """
        kernels, libraries = ((source, binary),) * _ENTERED, ((str(library), source),) * _ENTERED
        return self._workers[0].finals(FinalsRequest(kernels, (), cache, budget_s, 0, libraries))

    def build(self, program: Program) -> Future[Binary]:
        """Start compiling a program that doesn't belong to a config, with a longer deadline than for kernels."""
        return self._pool.submit(program, self.target, self._deadlines.compile_s or FIRST_DEADLINE_S)

    def end_to_end(self, request: EndToEndRequest) -> EndToEndTiming:
        """Verify and time a layer end to end, from host memory to host memory, on the first device."""
        return of_kind(self._workers[0].perform(request, self._deadlines.layer_s, request.problem), EndToEndTiming)

    def choices(self, request: ChoicesRequest) -> tuple[int, ...]:
        """Run a compiled dispatcher on the first device and return the kernel that it chooses for each layer."""
        return of_kind(self._workers[0].perform(request, self._deadlines.evaluate_s), Choices).positions

    def refresh(self) -> None:
        """Stop the workers, so that the next request starts fresh ones."""
        for worker in self._workers:
            worker.refresh()

    def calibrate(self) -> Calibration:
        """Measure the first device's rates."""
        program = self._pool.submit_own(calibration_program(), self.target, "the program that measures rates")
        return self._workers[0].calibrate(program.result())

    def close(self) -> None:
        """Stop the workers and the compile pool."""
        for worker in self._workers:
            worker.drop()
        self._pool.close()
