"""Send kernels to a device's worker process, and replace the process after a kernel has broken it."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from autotune.compilation.compile import MAX_MESSAGE, Binary
from autotune.devices.backends import worker_environ
from autotune.errors import DeviceError, DeviceLost, Rejected
from autotune.family.source import KernelSource
from autotune.measurement.calibrate import Calibration
from autotune.measurement.guard_bands import GUARD_BYTES, allocated_bytes
from autotune.measurement.numpy_reference import in_numpy
from autotune.measurement.test_data import data_bytes
from autotune.problem import Problem
from autotune.trial import ErrorStats, Measured, Outcome
from autotune.workers.worker import (
    COPIES_BYTES,
    MOST_PASSES,
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
    SomeBlocksRequest,
    VerifyRequest,
    Worker,
    WorkerLost,
    of_kind,
)

_RESPAWNS = 3  # number of fresh workers tried in a row before the device counts as lost
_RECYCLE_AFTER = 500  # number of evaluations after which a fresh worker replaces a worker
_MOST_LAYERS = 256  # maximum number of layers whose data a worker keeps; the latest layers are kept
_LEAST_MADE_S = 30.0  # the shortest deadline for making a layer's data and reference
_SOME_BLOCKS_S = 20.0  # deadline for running some blocks of a kernel, which normally takes far less
_SUMMING_S = 3.0  # the same if a block may loop over a large run-time size: most overflows occur sooner
_MADE_PER_S = 1e6  # FLOPs plus bytes per second that a reference in C++ achieves under sanitizers
AT_HAND = 2  # number of kernels sent to a worker at once: one runs, and the other starts when the first ends


@dataclass(frozen=True, slots=True)
class Deadlines:
    """A worker's time limits for its answers, in seconds."""

    open_s: float = 120.0
    """opening the device, which may create the first context on a busy machine"""
    layer_s: float = 300.0
    """making the data and the float64 reference of a layer (an upper limit)"""
    evaluate_s: float = 60.0
    """loading, verifying and timing one kernel"""
    compile_s: float | None = None
    """one compilation; None: a deadline that adapts to the observed times"""


DEADLINES = Deadlines()


def _declared_differently(one: Problem, other: Problem) -> bool:
    """Return whether two problems have different versions of an operation's files, because a user edited them during
    the run.
    """
    a, b = one.operation, other.operation
    return (a.text, a.references) != (b.text, b.references)


class DeviceWorker:
    """A device and its worker process, which is replaced whenever a kernel breaks it.

    `AT_HAND` threads may call `evaluate` at once. In the meantime, other threads may call `begin_layer`, `finals` or
    `refresh`, which wait for running kernels. No other calls may overlap. The worker keeps many layers' data in at most
    half of the device's memory, and frees the least recently used layers first.
    """

    def __init__(self, name: str, deadlines: Deadlines, runtime: Binary | None) -> None:
        self.name = name
        self._layers: dict[Problem, LayerRequest] = {}
        """requests of the layers that were prepared"""
        self._held: dict[Problem, int] = {}
        """maximum bytes of the data of each layer that the present worker keeps, least recently used first"""
        self._deadlines = deadlines
        self._open_request = OpenRequest(name, runtime)
        self._environ = worker_environ(name)
        self._worker: Worker | None = None
        self._answered = 0
        """number of evaluations by the present worker"""
        self._sending = threading.Lock()
        """held by a thread that sends a kernel, or that keeps other threads from sending"""
        self._last = threading.Event()
        """set when the last kernel sent has finished"""
        self._last.set()
        self._known_good: dict[Problem, EvaluateRequest | VerifyRequest] = {}
        self._doubtful = False
        """whether the last kernel failed; a known-good kernel of the next kernel's layer must then pass first"""
        try:
            self.opened = of_kind(self._ask(self._open_request, deadlines.open_s), Opened)
        except WorkerLost as error:
            raise DeviceError(f"{name}: its worker process ended while opening it: {error.message}") from None
        except BaseException:
            self.drop()
            raise

    @property
    def cpu_seconds(self) -> float:
        """CPU time used by the current worker process, in seconds."""
        return self._worker.cpu_seconds if self._worker else 0.0

    def begin_layer(self, layer: LayerRequest) -> None:
        """Make a layer's data in the worker. Raises DeviceError if that fails."""
        with self._alone():
            held = next((problem for problem in self._held if problem == layer.problem), None)
            if held and _declared_differently(held, layer.problem):
                del self._held[held]
            known_good = self._known_good.get(layer.problem)
            if known_good and _declared_differently(known_good.source.problem, layer.problem):
                del self._known_good[layer.problem]
            self._layers.pop(layer.problem, None)
            self._layers[layer.problem] = layer
            for forgotten in list(self._layers)[:-_MOST_LAYERS]:
                del self._layers[forgotten]
                self._known_good.pop(forgotten, None)
            self._hold(layer.problem)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no kernel is running, and keep other threads from sending any."""
        with self._sending:
            self._last.wait()
            yield

    def _hold(self, problem: Problem) -> None:
        """Make a layer's data in the worker, unless it is already there. Raises DeviceError if that fails."""
        if self._worker is None:
            self._revive()
        if problem in self._held:
            self._held[problem] = self._held.pop(problem)  # now the last in order
            return
        needed, without = _data_bytes(problem), []
        while self._held and (
            len(self._held) >= _MOST_LAYERS or sum(self._held.values()) + needed > self.opened.info.memory_bytes // 2
        ):
            without.append(next(iter(self._held)))
            del self._held[without[-1]]
        layer = replace(self._layers[problem], without=tuple(without))
        within_s = min(self._deadlines.layer_s, _made_within_s(problem))
        try:
            self._ask(layer, within_s)
        except WorkerLost as lost:
            if lost.hung:
                what = f"its data and reference were not made within {within_s:.0f} s"
                raise DeviceError(
                    f"{self.name}: {problem}: {what}; does the reference in {problem.operation.folder} end?"
                ) from None
            self._revive(layer)
        except Rejected as error:
            self.drop()  # frees the part of the data that was made
            raise DeviceError(f"{self.name}: {problem}: its data cannot be made: {error.message}") from None
        self._held[problem] = needed

    def evaluate(self, request: EvaluateRequest) -> Measured:
        """Verify and time a kernel. Raises Rejected with the kernel's outcome.

        If another kernel is running, this one is queued in the worker, so that the device doesn't have to wait for this
        process.
        """
        measured = self._evaluate(request, alone=False) or self._evaluate(request, alone=True)
        assert measured is not None  # noqa: S101 - alone, it has no kernel before it
        return measured

    def _evaluate(self, request: EvaluateRequest, *, alone: bool) -> Measured | None:
        """Verify and time a kernel. With `alone`, wait for the previous kernel before sending this one.

        Returns None if the previous kernel failed or broke the worker, so that this one didn't run.
        """
        with self._sending:
            problem = request.source.problem
            if alone or self._answered >= _RECYCLE_AFTER or problem not in self._held:
                self._last.wait()
            before, done = self._last, threading.Event()
            behind = not before.is_set()
            if not behind:
                self._ready(problem)
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
            self._answered += 1
            measured = of_kind(reply, Measured)
            if not measured.too_slow:
                self._known_good.setdefault(request.source.problem, request)
            return measured
        finally:
            done.set()

    def verify(self, request: VerifyRequest) -> ErrorStats:
        """Verify a kernel. Raises Rejected with the kernel's outcome."""
        self._ready(request.source.problem)
        reply = self._settled(request.source, lambda: self._ask(request, self._deadlines.evaluate_s))
        self._answered += 1
        self._known_good.setdefault(request.source.problem, request)
        return of_kind(reply, ErrorStats)

    def run_some_blocks(self, request: SomeBlocksRequest) -> None:
        """Run some blocks of a kernel. Raises Rejected with the kernel's outcome."""
        self._ready(None)
        deadline_s = _SOME_BLOCKS_S if request.source.problem.operation.independent else _SUMMING_S
        self._settled(request.source, lambda: self._ask(request, deadline_s))

    def _settled(self, source: KernelSource, answer: Callable[[], Reply]) -> Reply:
        """Return the answer about a kernel that may break the worker. Raises Rejected with the kernel's outcome."""
        try:
            return self._launched(answer)
        except Rejected as error:
            if error.outcome != Outcome.WRONG_RESULT or error.reason == "oob_write":
                self.drop()  # the context may be poisoned or the reference overwritten
            raise explained(error, source) from None

    def finals(self, request: FinalsRequest) -> FinalsTimings:
        """Time contenders interleaved. Raises DeviceLost if the worker is lost."""
        with self._alone():
            self._ready(request.kernels[0][0].problem)
            deadline_s = self._deadlines.layer_s + 4 * request.budget_s
            return of_kind(self._certain(request, deadline_s, "timing the finals"), FinalsTimings)

    def perform(self, request: Request, deadline_s: float, problem: Problem | None = None) -> Reply:
        """Send another request that runs kernels, and return the answer. Raises Rejected if a kernel fails.

        If a problem is given, the worker first makes the data for this layer.
        """
        self._ready(problem)
        try:
            return self._launched(lambda: self._ask(request, deadline_s))
        except Rejected:
            self.drop()
            raise

    def _launched(self, answer: Callable[[], Reply]) -> Reply:
        """Return the answer about kernels that may break the worker.

        If a kernel fails, raises Rejected, and the next request runs a known-good kernel first.
        """
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
        """Measure the device's rates. Raises DeviceLost if the worker is lost."""
        request = CalibrateRequest(binary)
        return of_kind(self._certain(request, self._deadlines.layer_s, "measuring its rates"), Calibration)

    def _certain(self, request: Request, deadline_s: float, what: str) -> Reply:
        """Return the answer to a request whose kernels are all known to be correct.

        Raises DeviceLost if the worker is lost.
        """
        try:
            return self._ask(request, deadline_s)
        except WorkerLost as error:
            raise DeviceLost(f"{self.name}: lost while {what}: {error.message}") from None

    def refresh(self) -> None:
        """Stop the worker once it has finished the current kernels, so that the next request starts a fresh one."""
        with self._alone():
            self.drop()

    def drop(self) -> None:
        """Stop the worker immediately, so that the next request starts a fresh one."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None
            self._held.clear()

    def _ready(self, problem: Problem | None) -> None:
        """Make sure that there is a worker with the layer's data that hasn't evaluated too many kernels.

        If the last kernel failed, a known-good kernel for the layer must pass first. Raises DeviceLost if it fails in
        several fresh workers.
        """
        if self._answered >= _RECYCLE_AFTER:
            self.drop()
        for _ in range(_RESPAWNS):
            if self._worker is None:
                self._revive()
            if problem in self._layers:
                self._hold(problem)
            known_good = self._known_good.get(problem) if problem else None
            if not self._doubtful or known_good is None:
                break
            try:
                self._ask(known_good, self._deadlines.evaluate_s)
            except (WorkerLost, Rejected):
                self.drop()
            else:
                break
        else:
            raise DeviceLost(f"{self.name}: a kernel that was correct before fails in {_RESPAWNS} fresh workers")
        self._doubtful = False

    def _revive(self, layer: LayerRequest | None = None) -> None:
        """Start a fresh worker, open the device and, if a layer is given, make its data.

        Raises DeviceLost if several fresh workers fail.
        """
        message = ""
        for _ in range(_RESPAWNS):
            try:
                self._ask(replace(self._open_request, first=False), self._deadlines.open_s)
                if layer is not None:
                    self._ask(layer, self._deadlines.layer_s)
            except (WorkerLost, Rejected) as error:
                message = error.message
                self.drop()
            else:
                return
        during = f", while data and reference of {layer.problem} are made" if layer else ""
        raise DeviceLost(f"{self.name}: does not come back after {_RESPAWNS} fresh workers{during}: {message}")

    def _ask(self, request: Request, deadline_s: float) -> Reply:
        if self._worker is None:
            self._worker = Worker(self._environ)
            self._answered = 0
            self._held.clear()
        self._worker.send(request)
        return self._received(self._worker, deadline_s)

    def _received(self, worker: Worker, deadline_s: float) -> Reply:
        try:
            return worker.receive(deadline_s)
        except WorkerLost:
            self._worker = None
            self._held.clear()
            raise


def _data_bytes(problem: Problem) -> int:
    """Return a layer's maximum memory in a worker: data sets with references, and copies for short kernels."""
    return data_bytes(problem) + min(COPIES_BYTES, MOST_PASSES * problem.tensor_bytes)


def _made_within_s(problem: Problem) -> float:
    """Return the time limit, in seconds, for making a layer's data and reference on a busy CPU."""
    if in_numpy(problem.operation):
        return math.inf  # a NumPy reference has its own limits
    return _LEAST_MADE_S + (problem.flops + problem.tensor_bytes) / _MADE_PER_S


_ERROR = re.compile(r"ERROR: AddressSanitizer: ([\w-]+)")
_ACCESS = re.compile(r"^(READ|WRITE) of size (\d+)", re.MULTILINE)
_FRAME = re.compile(r"^ *#\d+ 0x[0-9a-f]+ in (\S+?)(?:\(.*)? \S*kernel\.cu:(\d+)", re.MULTILINE)
_REGION = re.compile(
    r"is located (\d+) bytes (inside of|after|before|to the right of|to the left of) (\d+)-byte region"
)
_ALLOCATED = re.compile(r"allocated by .*\n *#0 0x[0-9a-f]+ in (\S+)")
_UNDEFINED = re.compile(r"kernel\.cu:(\d+):\d+: runtime error: (.+)")


def explained(rejected: Rejected, source: KernelSource) -> Rejected:
    """Return the rejection with the sanitizer's report reduced to one line, or with any other message shortened."""
    report = rejected.message
    if undefined := _UNDEFINED.search(report):
        return Rejected(rejected.outcome, "undefined", f"kernel.cu:{undefined[1]}: {undefined[2]}")
    error, access = _ERROR.search(report), _ACCESS.search(report)
    if not error:
        return Rejected(rejected.outcome, rejected.reason, report[:MAX_MESSAGE])
    frame = _FRAME.search(report)
    where = f"kernel.cu:{frame[2]}: {frame[1]}" if frame else source.stages[0].entry
    if not access:
        return Rejected(rejected.outcome, "illegal_address", f"{where}: {error[1]}")
    verb = "reads" if access[1] == "READ" else "writes"
    reason = "oob_read" if access[1] == "READ" else "oob_write"
    place = _place(report, source) or f"memory outside its arrays ({error[1]})"
    return Rejected(rejected.outcome, reason, f"{where} {verb} {access[2]} bytes of {place}")


def _place(report: str, source: KernelSource) -> str:
    """Describe an address relative to an array: which array, which side, how far. Returns "" if unknown."""
    region, allocated = _REGION.search(report), _ALLOCATED.search(report)
    if not region or not allocated:
        return ""
    distance, side, region_bytes = int(region[1]), region[2], int(region[3])
    if "memalign" not in allocated[1]:  # not an array of the device, but a core's copy of shared memory
        declared = ", ".join(dict.fromkeys(f"{s.smem_bytes} ({s.entry})" for s in (*source.prepare, *source.stages)))
        return f"shared memory beyond the smem_bytes that its stage declares: {declared}"
    if side == "inside of":  # the guard bands belong to the allocation
        size_bytes, offset = region_bytes - allocated_bytes(0), distance - GUARD_BYTES
    else:
        size_bytes = region_bytes
        offset = -distance if side in ("before", "to the left of") else region_bytes + distance
    name = " or ".join(_named(source, size_bytes)) or "an array"
    return f"the memory {'before' if offset < 0 else 'behind'} {name} ({size_bytes} bytes), at byte {offset}"


def _named(source: KernelSource, size_bytes: int) -> Iterator[str]:
    sizes = {array.name: array.size_bytes for array in source.problem.arrays}
    sizes |= {"workspace": source.workspace_bytes, "packed_w": source.packed_w_bytes}
    yield from (name for name, size in sizes.items() if size == size_bytes)
