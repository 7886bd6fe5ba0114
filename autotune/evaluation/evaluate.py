"""What tuning evaluates kernels with: `Evaluator`, and the one over devices in worker processes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from autotune.compilation.cache import BinaryCache
from autotune.compilation.compile import Binary, Program, Target
from autotune.devices.device import Baseline, DeviceInfo, Environment
from autotune.devices.opening import parse_device, runtime_program, worker_environ
from autotune.errors import DeviceError, DeviceLost, Rejected, ToolchainError
from autotune.evaluation.compilers import CompilePool
from autotune.evaluation.worker import (
    CalibrateRequest,
    EvaluateRequest,
    FinalsRequest,
    FinalsTimings,
    LayerRequest,
    Opened,
    OpenRequest,
    Rates,
    Reply,
    Request,
    Skipped,
    VerifyRequest,
    Worker,
    WorkerLost,
)
from autotune.family.source import KernelSource
from autotune.measurement.calibrate import calibration_program
from autotune.measurement.choices import Choices, ChoicesRequest
from autotune.measurement.network import Agreement, NetworkRequest
from autotune.measurement.reference import check_program
from autotune.measurement.span import Spanned, SpanRequest
from autotune.problem import Conv2dProblem
from autotune.trial import Config, ErrorStats, Measured, Outcome, Timing

_RESPAWNS = 3  # fresh workers tried in a row before the device counts as lost
_RECYCLE_AFTER = 500  # evaluations of one worker, before a fresh one takes over
_AT_HAND = 2  # kernels that a worker has: one runs, the next one is there when it ends


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a worker may take to answer, seconds."""

    open_s: float = 120.0
    """a first context on a busy machine"""
    layer_s: float = 300.0
    """making data and the float64 reference of a layer"""
    evaluate_s: float = 60.0
    """loading, verifying (four runs) and timing one kernel"""
    compile_s: float | None = None
    """one compilation; None adapts to what was seen"""


DEADLINES = Deadlines()


class Evaluator(Protocol):
    """Compiles and measures the kernels of one layer after another on one kind of device."""

    @property
    def info(self) -> DeviceInfo: ...

    @property
    def environment(self) -> Environment: ...

    @property
    def ahead(self) -> int:
        """How many configs are worth having under way at once; 1 makes a run strictly sequential."""

    @property
    def slots(self) -> int:
        """How many `evaluate` calls may be under way at once."""

    def listed(self, problem: Conv2dProblem, *, cache: str) -> frozenset[Config] | None:
        """The only configs of a layer that can be evaluated; None where any can."""

    def expect(self, problem: Conv2dProblem) -> None:
        """Start on what a layer needs before its first kernel: `begin_layer` will follow."""

    def begin_layer(self, problem: Conv2dProblem) -> None:
        """Get ready for a layer. Raises DeviceError when the device refuses it."""

    def compile(self, source: KernelSource) -> Future[Binary]:
        """Start compiling; the future raises Rejected('compile', ...)."""

    def evaluate(self, source: KernelSource, binary: Binary, *, cache: str, best_us: float | None) -> Measured:
        """Verify and time one kernel; to the end where `best_us` is None, else in a race against that time, infinite
        where none is known, and the layer's fastest kernel so far.

        Raises Rejected with its outcome, DeviceLost when the device is gone.
        """

    def finals(
        self,
        kernels: Sequence[tuple[KernelSource, Binary]],
        baselines: Sequence[Baseline],
        *,
        cache: str,
        budget_s: float,
        seed: int,
    ) -> tuple[Timing, ...]:
        """Time contenders of the current layer in turns, all on one device: kernels first, then baselines."""

    def refresh(self) -> None:
        """Let fresh workers take over before the next request."""

    def close(self) -> None: ...


@runtime_checkable
class Checker(Protocol):
    """What kernels are verified with and not timed; not every evaluator runs them."""

    def verify(self, source: KernelSource, binary: Binary) -> ErrorStats:
        """Verify one kernel of the current layer. Raises as `evaluate` does."""


@runtime_checkable
class Chooser(Protocol):
    """What dispatchers are compiled and asked with; not every evaluator is one."""

    def build(self, program: Program) -> Future[Binary]:
        """Start compiling a program that is no config's."""

    def choices(self, request: ChoicesRequest) -> tuple[int, ...]:
        """Ask a compiled dispatcher which kernel serves each layer."""


class _Seat:
    """One device and the worker that holds it, replaced whenever a kernel ruins it.

    `_AT_HAND` threads may call `evaluate` at once; whatever else is asked for comes alone.
    """

    def __init__(self, name: str, deadlines: Deadlines, runtime: Binary | None) -> None:
        self.name = name
        self.layer: LayerRequest | None = None
        self._deadlines = deadlines
        self._opening = OpenRequest(name, runtime)
        self._environ = worker_environ(name)
        self._worker: Worker | None = None
        self._answered = 0
        """evaluations, by the present worker"""
        self._sending = threading.Lock()
        """held until a kernel is sent"""
        self._last = threading.Event()
        """set when all is done about the kernel that was sent last"""
        self._last.set()
        self._known_good: EvaluateRequest | VerifyRequest | None = None
        self._doubtful = False
        """the last kernel failed: the known-good one must pass before the next"""
        try:
            opened = self._ask(self._opening, deadlines.open_s)
        except WorkerLost as error:
            raise DeviceError(f"{name}: its worker ends while opening it: {error.message}") from None
        except BaseException:
            self.drop()
            raise
        assert isinstance(opened, Opened)  # noqa: S101 - the type of this request's answer
        self.opened = opened

    def begin_layer(self, layer: LayerRequest) -> None:
        """Make a layer's data in the worker. Raises DeviceError when it cannot be made there."""
        self.layer = layer
        self._known_good = None
        self._doubtful = False
        if self._worker is None:
            self._revive()
            return
        try:
            self._ask(layer, self._deadlines.layer_s)
        except WorkerLost:
            self._revive()
        except Rejected as error:
            self.drop()  # it holds what was made already
            raise DeviceError(f"{self.name}: {layer.problem}: its data cannot be made: {error.message}") from None

    def evaluate(self, request: EvaluateRequest) -> Measured:
        """Verify and time a kernel. Raises Rejected with the kernel's outcome.

        While another kernel runs, this one is sent behind it, so that the device need not wait for this process.
        """
        measured = self._evaluate(request, alone=False) or self._evaluate(request, alone=True)
        assert measured is not None  # noqa: S101 - there was none before it
        return measured

    def _evaluate(self, request: EvaluateRequest, *, alone: bool) -> Measured | None:
        """None: the kernel before this one failed or took the worker down, and this one was not run."""
        with self._sending:
            if alone or self._answered >= _RECYCLE_AFTER:
                self._last.wait()
            before, done = self._last, threading.Event()
            behind = not before.is_set()
            if not behind:
                self._ready()
            worker = self._worker
            if worker is not None:
                worker.send(replace(request, behind=behind))
            self._last = done
        try:
            before.wait()
            if worker is None or worker is not self._worker:
                return None
            reply = self._settled(lambda: self._received(worker, self._deadlines.evaluate_s))
            if isinstance(reply, Skipped):
                return None
            assert isinstance(reply, Measured)  # noqa: S101 - the type of this request's answer
            self._answered += 1
            if self._known_good is None and not reply.too_slow:
                self._known_good = request
            return reply
        finally:
            done.set()

    def verify(self, request: VerifyRequest) -> ErrorStats:
        """Verify a kernel. Raises Rejected with the kernel's outcome."""
        self._ready()
        reply = self._settled(lambda: self._ask(request, self._deadlines.evaluate_s))
        assert isinstance(reply, ErrorStats)  # noqa: S101 - the type of this request's answer
        self._answered += 1
        self._known_good = self._known_good or request
        return reply

    def _settled(self, answer: Callable[[], Reply]) -> Reply:
        """The answer about a kernel that may ruin its worker. Raises Rejected with the kernel's outcome."""
        try:
            return self._launched(answer)
        except Rejected as error:
            if error.outcome != Outcome.CORRECTNESS or error.reason == "oob_write":
                self.drop()  # the context may be poisoned or the reference overwritten
            raise

    def finals(self, request: FinalsRequest) -> tuple[Timing, ...]:
        """Time contenders in turns."""
        self._ready()
        try:
            reply = self._ask(request, self._deadlines.layer_s + 4 * request.budget_s)
        except WorkerLost as error:
            raise DeviceLost(f"{self.name}: lost while timing the finals: {error.message}") from None
        assert isinstance(reply, FinalsTimings)  # noqa: S101 - the type of this request's answer
        return reply.timings

    def perform(self, request: Request, deadline_s: float) -> Reply:
        """Have the worker do something else with kernels. Raises Rejected when they take it down."""
        self._ready()
        try:
            return self._launched(lambda: self._ask(request, deadline_s))
        except Rejected:
            self.drop()
            raise

    def _launched(self, answer: Callable[[], Reply]) -> Reply:
        """The answer about kernels that may ruin the worker. Raises Rejected; then the known-good one comes next."""
        try:
            return answer()
        except WorkerLost as error:
            self._doubtful = True
            if error.hung:
                raise Rejected(Outcome.TIMEOUT, "hang", error.message) from None
            raise Rejected(Outcome.RUNTIME, "crash", error.message) from None
        except Rejected:
            self._doubtful = True
            raise

    def calibrate(self, binary: Binary) -> Mapping[str, float]:
        """The device's rates."""
        try:
            reply = self._ask(CalibrateRequest(binary), self._deadlines.layer_s)
        except WorkerLost as error:
            raise DeviceLost(f"{self.name}: lost while measuring its rates: {error.message}") from None
        assert isinstance(reply, Rates)  # noqa: S101 - the type of this request's answer
        return reply.per_second

    def drop(self) -> None:
        """End the worker; the next request gets a fresh one."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _ready(self) -> None:
        """A live worker, not too old, in which the known-good kernel still gives a correct result."""
        if self._answered >= _RECYCLE_AFTER:
            self.drop()
        for _ in range(_RESPAWNS):
            if self._worker is None:
                self._revive()
            if not self._doubtful or self._known_good is None:
                break
            try:
                self._ask(self._known_good, self._deadlines.evaluate_s)
            except (WorkerLost, Rejected):
                self.drop()
            else:
                break
        else:
            raise DeviceLost(f"{self.name}: a kernel that was correct before fails in {_RESPAWNS} fresh workers")
        self._doubtful = False

    def _revive(self) -> None:
        """A fresh worker with the device open and the current layer's data made."""
        words = ""
        for _ in range(_RESPAWNS):
            try:
                self._ask(self._opening, self._deadlines.open_s)
                if self.layer is not None:
                    self._ask(self.layer, self._deadlines.layer_s)
            except (WorkerLost, Rejected) as error:
                words = error.message
                self.drop()
            else:
                return
        raise DeviceLost(f"{self.name}: does not come back after {_RESPAWNS} fresh workers: {words}")

    def _ask(self, request: Request, deadline_s: float) -> Reply:
        if self._worker is None:
            self._worker = Worker(self._environ)
            self._answered = 0
        self._worker.send(request)
        return self._received(self._worker, deadline_s)

    def _received(self, worker: Worker, deadline_s: float) -> Reply:
        try:
            return worker.receive(deadline_s)
        except WorkerLost:
            self._worker = None
            raise


class DeviceEvaluator:
    """Evaluates on `host`, or on one or several `cuda:N` of the same model, with a pool of compilers beside them."""

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
        self._seats: list[_Seat] = []
        self._checks: dict[Conv2dProblem, Future[Binary]] = {}
        """verification programs that were started on, and not taken yet"""
        try:
            kind = parse_device(devices[0])[0]
            self._pool.start(kind)  # while the devices are opened
            runtime = self._runtime(kind)
            for name in devices:
                self._seats.append(_Seat(name, deadlines, runtime))
            for seat in self._seats[1:]:
                if seat.opened.info.identity != self.info.identity:
                    raise DeviceError(
                        f"{self._seats[0].name} is a {self.info.name}, {seat.name} a {seat.opened.info.name}: "
                        f"different GPUs never share a ranking; tune them one by one"
                    )
        except BaseException:
            self.close()
            raise
        self._idle: queue.SimpleQueue[_Seat] = queue.SimpleQueue()
        for seat in _AT_HAND * self._seats:
            self._idle.put(seat)

    def _runtime(self, kind: str) -> Binary | None:
        """What every worker on this kind of device loads first."""
        program = runtime_program(kind)
        if program is None:
            return None
        try:
            return self._pool.submit(program, Target(kind)).result()
        except Rejected as error:
            raise ToolchainError(f"{kind}: its runtime cannot be compiled: {error.message}") from error

    @property
    def info(self) -> DeviceInfo:
        """The device, or each of the devices."""
        return self._seats[0].opened.info

    @property
    def environment(self) -> Environment:
        """Driver, compiler and flags."""
        return self._seats[0].opened.environment

    @property
    def ahead(self) -> int:
        """One config for each compile slot; for each device one that runs, two at hand and a compiled one, so that
        neither devices nor compilers wait when the other is slow for once."""
        return self._jobs + 4 * len(self._seats)

    @property
    def slots(self) -> int:
        """For each device one kernel that runs, and one behind it."""
        return _AT_HAND * len(self._seats)

    @property
    def target(self) -> Target:
        """What kernels are compiled for."""
        return Target(self.info.kind, self.info.arch, check=self._seats[0].name == "host:check")

    def listed(self, problem: Conv2dProblem, *, cache: str) -> None:
        """Any config can be evaluated."""

    def expect(self, problem: Conv2dProblem) -> None:
        """Compile the layer's verification program."""
        if problem not in self._checks:
            self._checks[problem] = self._pool.submit(check_program(problem), self.target)

    def begin_layer(self, problem: Conv2dProblem) -> None:
        """Make the layer's data on every device, once its verification program is compiled."""
        check = self._checks.pop(problem, None) or self._pool.submit(check_program(problem), self.target)
        layer = LayerRequest(problem, check.result())
        with ThreadPoolExecutor(len(self._seats)) as threads:
            for done in [threads.submit(seat.begin_layer, layer) for seat in self._seats]:
                done.result()

    def compile(self, source: KernelSource) -> Future[Binary]:
        """Start compiling a kernel."""
        return self._pool.submit(source.program, self.target)

    def evaluate(self, source: KernelSource, binary: Binary, *, cache: str, best_us: float | None) -> Measured:
        """Verify and time a kernel on whichever device is idle, or behind the kernel that runs there."""
        seat = self._idle.get()
        try:
            return seat.evaluate(EvaluateRequest(source, binary, cache, best_us))
        finally:
            self._idle.put(seat)

    def verify(self, source: KernelSource, binary: Binary) -> ErrorStats:
        """Verify a kernel on whichever device is idle."""
        seat = self._idle.get()
        try:
            return seat.verify(VerifyRequest(source, binary))
        finally:
            self._idle.put(seat)

    def finals(
        self,
        kernels: Sequence[tuple[KernelSource, Binary]],
        baselines: Sequence[Baseline],
        *,
        cache: str,
        budget_s: float,
        seed: int,
    ) -> tuple[Timing, ...]:
        """Time contenders in turns on the first device."""
        return self._seats[0].finals(FinalsRequest(tuple(kernels), tuple(baselines), cache, budget_s, seed))

    def beside(
        self, library: Path, source: KernelSource, binary: Binary, *, cache: str, budget_s: float
    ) -> tuple[Timing, Timing, Timing]:
        """Verify an exported library on the current layer and time it in turns with the kernel that it was made of.

        The kernel's timings come first, twice, for the noise floor. Raises Rejected when the library is wrong.
        """
        kernels = ((source, binary), (source, binary))
        request = FinalsRequest(kernels, (), cache, budget_s, 0, libraries=((str(library), source),))
        first, second, own = self._seats[0].finals(request)
        return first, second, own

    def build(self, program: Program) -> Future[Binary]:
        """Start compiling a program that is no config's."""
        return self._pool.submit(program, self.target)

    def span(self, request: SpanRequest) -> Spanned:
        """Verify and time the current layer from host to host on the first device."""
        reply = self._seats[0].perform(request, self._deadlines.layer_s)
        assert isinstance(reply, Spanned)  # noqa: S101 - the type of this request's answer
        return reply

    def agreement(self, request: NetworkRequest) -> Agreement:
        """Run a network on kernels on the first device."""
        reply = self._seats[0].perform(request, 2 * self._deadlines.layer_s)
        assert isinstance(reply, Agreement)  # noqa: S101 - the type of this request's answer
        return reply

    def choices(self, request: ChoicesRequest) -> tuple[int, ...]:
        """Ask a compiled dispatcher on the first device which kernel serves each layer."""
        reply = self._seats[0].perform(request, self._deadlines.evaluate_s)
        assert isinstance(reply, Choices)  # noqa: S101 - the type of this request's answer
        return reply.positions

    def refresh(self) -> None:
        """End the workers; fresh ones come with the next request."""
        for seat in self._seats:
            seat.drop()

    def calibrate(self) -> Mapping[str, float]:
        """The first device's rates per second: bytes of copy and fill, FLOP of arithmetic."""
        return self._seats[0].calibrate(self._pool.submit(calibration_program(), self.target).result())

    def close(self) -> None:
        """End the workers and the compile pool."""
        for seat in self._seats:
            seat.drop()
        self._pool.close()
