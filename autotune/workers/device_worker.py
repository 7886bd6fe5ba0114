"""One device and the worker that holds it: kernels are sent there, and what they ruin is replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from autotune.compilation.compile import Binary
from autotune.devices.backends import worker_environ
from autotune.errors import DeviceError, DeviceLost, Rejected
from autotune.family.source import KernelSource
from autotune.measurement.calibrate import Calibration
from autotune.trial import ErrorStats, Measured, Outcome
from autotune.workers.reports import explained
from autotune.workers.worker import (
    CalibrateRequest,
    EvaluateRequest,
    FinalsRequest,
    FinalsTimings,
    LayerRequest,
    Opened,
    OpenRequest,
    Reply,
    Request,
    Skipped,
    VerifyRequest,
    Worker,
    WorkerLost,
)

_RESPAWNS = 3  # fresh workers tried in a row before the device counts as lost
_RECYCLE_AFTER = 500  # evaluations of one worker, before a fresh one takes over
AT_HAND = 2  # kernels that a worker has: one runs, the next one is there when it ends


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


class DeviceWorker:
    """One device and the worker that holds it, replaced whenever a kernel ruins it.

    `AT_HAND` threads may call `evaluate` at once; whatever else is asked for comes alone.
    """

    def __init__(self, name: str, deadlines: Deadlines, runtime: Binary | None) -> None:
        self.name = name
        self.layer: LayerRequest | None = None
        self._deadlines = deadlines
        self._open_request = OpenRequest(name, runtime)
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
            opened = self._ask(self._open_request, deadlines.open_s)
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
            reply = self._settled(request.source, lambda: self._received(worker, self._deadlines.evaluate_s))
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
        reply = self._settled(request.source, lambda: self._ask(request, self._deadlines.evaluate_s))
        assert isinstance(reply, ErrorStats)  # noqa: S101 - the type of this request's answer
        self._answered += 1
        self._known_good = self._known_good or request
        return reply

    def _settled(self, source: KernelSource, answer: Callable[[], Reply]) -> Reply:
        """The answer about a kernel that may ruin its worker. Raises Rejected with the kernel's outcome."""
        try:
            return self._launched(answer)
        except Rejected as error:
            if error.outcome != Outcome.CORRECTNESS or error.reason == "oob_write":
                self.drop()  # the context may be poisoned or the reference overwritten
            raise explained(error, source) from None

    def finals(self, request: FinalsRequest) -> FinalsTimings:
        """Time contenders interleaved."""
        self._ready()
        try:
            reply = self._ask(request, self._deadlines.layer_s + 4 * request.budget_s)
        except WorkerLost as error:
            raise DeviceLost(f"{self.name}: lost while timing the finals: {error.message}") from None
        assert isinstance(reply, FinalsTimings)  # noqa: S101 - the type of this request's answer
        return reply

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

    def calibrate(self, binary: Binary) -> Calibration:
        """The device's rates."""
        try:
            reply = self._ask(CalibrateRequest(binary), self._deadlines.layer_s)
        except WorkerLost as error:
            raise DeviceLost(f"{self.name}: lost while measuring its rates: {error.message}") from None
        assert isinstance(reply, Calibration)  # noqa: S101 - the type of this request's answer
        return reply

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
                self._ask(self._open_request, self._deadlines.open_s)
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
