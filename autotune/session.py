"""compile, load -> verify -> measure: what runs inside a worker process, `python -m autotune.session FD PARENT`."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from autotune.benchmark import Converged, Race, lost, measure, summarise
from autotune.calibrate import calibrate
from autotune.device import Device, compile_program, open_device
from autotune.errors import AutotuneError, DeviceError
from autotune.forward import LoadedKernel
from autotune.trial import Measured
from autotune.verify import GuardedArray, Verifier
from autotune.worker import (
    Bug,
    CalibrateRequest,
    CompileRequest,
    EvaluateRequest,
    LayerRequest,
    Opened,
    OpenRequest,
    Rates,
    Reply,
    Request,
)

_PR_SET_PDEATHSIG = 1  # prctl, linux/prctl.h


class Session:
    """What a worker holds between requests."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._device: Device | None = None
        self._verifier: Verifier | None = None

    def answer(self, request: Request) -> Reply:
        """Do what a request asks."""
        match request:
            case CompileRequest(program, target):
                return compile_program(program, target)
            case OpenRequest(name):
                _die_at_once_with_parent()
                self._device = open_device(name)
                return Opened(self._device.info, self._device.environment)
            case LayerRequest(problem, check):
                if self._verifier is not None:
                    self._verifier.close()
                    self._verifier = None
                self._opened().admit(problem)
                self._verifier = Verifier(self._opened(), problem, check)
                return None
            case EvaluateRequest():
                return self._evaluate(request)
            case CalibrateRequest(binary):
                return Rates(calibrate(self._opened(), binary))

    def _opened(self) -> Device:
        if self._device is None:
            raise DeviceError("the worker has no open device")
        return self._device

    def _evaluate(self, request: EvaluateRequest) -> Measured:
        device, verifier, source = self._opened(), self._verifier, request.source
        if verifier is None:
            raise DeviceError("the worker has no layer")
        started = self._clock()
        module = device.load(request.binary)
        workspace = GuardedArray(device, source.workspace_bytes)
        packed_w = GuardedArray(device, source.packed_w_bytes)
        kernel = LoadedKernel(device, module, source, weight_bytes=verifier.integers.w.size_bytes)
        loaded = self._clock()
        launches = kernel.forward(verifier.tensors(verifier.normal, packed_w.address, workspace.address))
        best_us = math.inf if request.best_us is None else request.best_us
        trial_run: list[float] = []

        def sample() -> float:
            return device.time_us(lambda: kernel.run(launches), cold=request.cache == "cold")

        def in_the_race() -> bool:
            trial_run.append(sample())
            return not lost(trial_run, best_us)

        error = verifier.verify(kernel, workspace, packed_w, repeat=in_the_race)
        verified = self._clock()
        if lost(trial_run, best_us):
            timing = summarise(trial_run, request.cache)
        else:
            timing = measure(sample, Race(best_us, Converged()), cache=request.cache)
        measured = self._clock()
        for array in (workspace, packed_w):
            array.free()
        module.unload()
        return Measured(
            timing=timing,
            error=error,
            too_slow=lost(timing.samples_us, best_us),
            load_us=1e6 * (loaded - started),
            verify_us=1e6 * (verified - loaded),
            measure_us=1e6 * (measured - verified),
        )


def serve(connection: Connection) -> None:
    """Answer requests until the parent hangs up."""
    session = Session(time.perf_counter)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        reply: Reply | AutotuneError | Bug
        try:
            reply = session.answer(request)
        except AutotuneError as error:
            reply = error
        except Exception:  # noqa: BLE001 - reported to the parent, which raises it
            reply = Bug(traceback.format_exc())
        connection.send(reply)


def _die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when the parent dies, and take the whole process group along on SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def _die_at_once_with_parent() -> None:
    """Ask for SIGKILL instead: a kernel in an endless loop keeps Python from ever handling SIGTERM."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _die_with_parent(int(sys.argv[2]))
    serve(Connection(int(sys.argv[1])))
    os._exit(0)
