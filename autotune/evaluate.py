"""What tuning evaluates kernels with: `Evaluator`, and the one over a device in worker processes."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from autotune.calibrate import calibration_program
from autotune.compile import Binary, Program, Target
from autotune.device import DeviceInfo, Environment, parse_device
from autotune.errors import DeviceLost, Rejected
from autotune.problem import Conv2dProblem
from autotune.reference import check_program
from autotune.source import KernelSource
from autotune.trial import Measured, Outcome
from autotune.worker import (
    CalibrateRequest,
    CompileRequest,
    EvaluateRequest,
    LayerRequest,
    Opened,
    OpenRequest,
    Rates,
    Reply,
    Request,
    Worker,
    WorkerLost,
)

OPEN_DEADLINE_S = 120.0  # a first CUDA context on a busy machine
LAYER_DEADLINE_S = 300.0  # making data and the float64 reference of a layer
EVALUATE_DEADLINE_S = 60.0  # loading, verifying (at least four runs) and timing one kernel
COMPILE_DEADLINE_S = 60.0
_RESPAWNS = 3  # fresh workers tried in a row before the device counts as lost


class Evaluator(Protocol):
    """Compiles and measures the kernels of one layer after another on one device."""

    @property
    def info(self) -> DeviceInfo: ...

    @property
    def environment(self) -> Environment: ...

    @property
    def ahead(self) -> int:
        """How many configs are worth having under way at once; 1 makes a run strictly sequential."""

    def begin_layer(self, problem: Conv2dProblem) -> None:
        """Get ready for a layer. Raises DeviceError when the device refuses it."""

    def compile(self, source: KernelSource) -> Future[Binary]:
        """Start compiling; the future raises Rejected('compile', ...)."""

    def evaluate(self, source: KernelSource, binary: Binary, *, cache: str, best_us: float | None) -> Measured:
        """Verify and time one kernel. Raises Rejected with its outcome, DeviceLost when the device is gone."""

    def close(self) -> None: ...


class CompilePool:
    """Compiles in `jobs` worker processes that never touch a device."""

    def __init__(self, jobs: int) -> None:
        self._threads = ThreadPoolExecutor(jobs, thread_name_prefix="compile")
        self._idle: queue.SimpleQueue[Worker | None] = queue.SimpleQueue()
        for _ in range(jobs):
            self._idle.put(None)

    def submit(self, program: Program, target: Target) -> Future[Binary]:
        """Start compiling; the future raises Rejected('compile', ...) or ToolchainError."""
        return self._threads.submit(self._compile, program, target)

    def _compile(self, program: Program, target: Target) -> Binary:
        worker = self._idle.get() or Worker()
        alive = True
        started = time.perf_counter()
        try:
            reply = worker.ask(CompileRequest(program, target), COMPILE_DEADLINE_S)
        except WorkerLost as error:
            alive = False
            reason = "compiler_hang" if error.hung else "compiler_crash"
            raise Rejected(Outcome.COMPILE, reason, error.message) from None
        finally:
            self._idle.put(worker if alive else None)
        assert isinstance(reply, Binary)  # noqa: S101 - the type of this request's answer
        return replace(reply, compile_us=1e6 * (time.perf_counter() - started))

    def close(self) -> None:
        """End every compiler at once."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(queue.Empty):
            while True:
                if worker := self._idle.get_nowait():
                    worker.kill()


class DeviceEvaluator:
    """Evaluates on `cuda:N` or `host`: a compile pool and one worker that holds the device."""

    def __init__(self, device: str, jobs: int, *, evaluate_deadline_s: float = EVALUATE_DEADLINE_S) -> None:
        self._name = device
        self._evaluate_deadline_s = evaluate_deadline_s
        self._environ = _environ(device)
        self._pool = CompilePool(jobs)
        self._ahead = jobs + 1
        self._layer: LayerRequest | None = None
        self._worker: Worker | None = None
        opened = self._ask(OpenRequest(device), OPEN_DEADLINE_S)
        assert isinstance(opened, Opened)  # noqa: S101 - the type of this request's answer
        self._opened = opened

    @property
    def info(self) -> DeviceInfo:
        """The device."""
        return self._opened.info

    @property
    def environment(self) -> Environment:
        """Driver, compiler and flags."""
        return self._opened.environment

    @property
    def ahead(self) -> int:
        """One config for each compile slot and one being measured."""
        return self._ahead

    @property
    def target(self) -> Target:
        """What kernels are compiled for."""
        return Target(self.info.kind, self.info.arch, check=self._name == "host:check")

    def begin_layer(self, problem: Conv2dProblem) -> None:
        """Compile the layer's verification program and make its data."""
        check = self._pool.submit(check_program(problem), self.target).result()
        self._layer = LayerRequest(problem, check)
        if self._worker is None:
            self._revive()
        else:
            try:
                self._ask(self._layer, LAYER_DEADLINE_S)
            except WorkerLost:
                self._revive()

    def compile(self, source: KernelSource) -> Future[Binary]:
        """Start compiling a kernel."""
        return self._pool.submit(source.program, self.target)

    def evaluate(self, source: KernelSource, binary: Binary, *, cache: str, best_us: float | None) -> Measured:
        """Verify and time a kernel in the worker; a worker that a kernel ruined is replaced."""
        if self._worker is None:
            self._revive()
        try:
            reply = self._ask(EvaluateRequest(source, binary, cache, best_us), self._evaluate_deadline_s)
        except WorkerLost as error:
            if error.hung:
                raise Rejected(Outcome.TIMEOUT, "hang", error.message) from None
            raise Rejected(Outcome.RUNTIME, "crash", error.message) from None
        except Rejected:
            self._drop()  # the context may be poisoned, the memory not freed: a fresh worker costs little
            raise
        assert isinstance(reply, Measured)  # noqa: S101 - the type of this request's answer
        return reply

    def calibrate(self) -> Mapping[str, float]:
        """The device's rates per second: bytes of copy and fill, FLOP of arithmetic."""
        binary = self._pool.submit(calibration_program(), self.target).result()
        reply = self._ask(CalibrateRequest(binary), LAYER_DEADLINE_S)
        assert isinstance(reply, Rates)  # noqa: S101 - the type of this request's answer
        return reply.per_second

    def close(self) -> None:
        """End the worker and the compile pool."""
        self._drop()
        self._pool.close()

    def _ask(self, request: Request, deadline_s: float) -> Reply:
        if self._worker is None:
            self._worker = Worker(self._environ)
        try:
            return self._worker.ask(request, deadline_s)
        except WorkerLost:
            self._worker = None
            raise

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _revive(self) -> None:
        """A fresh worker with the device open and the current layer's data made."""
        words = ""
        for _ in range(_RESPAWNS):
            try:
                self._ask(OpenRequest(self._name), OPEN_DEADLINE_S)
                if self._layer is not None:
                    self._ask(self._layer, LAYER_DEADLINE_S)
            except (WorkerLost, Rejected) as error:
                words = error.message
                self._drop()
            else:
                return
        raise DeviceLost(f"{self._name}: does not come back after {_RESPAWNS} fresh workers: {words}")


def _environ(device: str) -> Mapping[str, str]:
    """What a worker's process needs in its environment for this device."""
    kind, rest = parse_device(device)
    if (kind, rest) == ("host", "check"):
        from autotune.devices.host_compile import check_environment
        from autotune.toolchain import find_cxx

        return check_environment(str(find_cxx()))
    return {}
