"""What runs inside a worker process, which alone holds its device: requests answered one by one.

Started as `python -m autotune.workers.worker_process FD`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from autotune.compilation.compile import Binary
from autotune.devices.backends import compile_program, load_compiler, open_device
from autotune.devices.device import Device
from autotune.errors import AutotuneError, DeviceError
from autotune.measurement.benchmark import Clocks
from autotune.measurement.calibrate import calibrate
from autotune.measurement.choices import ChoicesRequest, choices
from autotune.measurement.class_agreement import Network, NetworkRequest
from autotune.measurement.host_to_host import EndToEndRequest, measure_end_to_end
from autotune.measurement.verify import Verifier
from autotune.problem import Problem
from autotune.temporary import remove
from autotune.trial import Measured
from autotune.workers.layer_bench import LayerBench
from autotune.workers.worker import (
    Bug,
    CalibrateRequest,
    CompileRequest,
    CompilerRequest,
    EvaluateRequest,
    FinalsRequest,
    LayerRequest,
    Opened,
    OpenRequest,
    Reply,
    Request,
    Skipped,
    VerifyRequest,
)

_COMPILER_NICE = 10


class WorkerServer:
    """What a worker holds between requests."""

    def __init__(
        self, clock: Callable[[], float], open_named: Callable[[str, Binary | None], Device] = open_device
    ) -> None:
        self._clock = clock
        self._open = open_named
        self._device: Device | None = None
        self._layers: dict[Problem, LayerBench] = {}
        self._network: Network | None = None
        self._clocks = Clocks()
        self._compiles = False
        self._failed = False
        """the last kernel to be evaluated did"""

    def answer(self, request: Request) -> Reply:
        """Do what a request asks."""
        match request:
            case CompilerRequest(kind):
                self._give_way()
                load_compiler(kind)
                return None
            case CompileRequest(program, target):
                self._give_way()
                return compile_program(program, target)
            case OpenRequest(name, runtime):
                self._device = self._open(name, runtime)
                return Opened(self._device.info, self._device.environment)
            case LayerRequest(problem, check, without):
                for other in (*without, problem):
                    self._forget(other)
                device = self._opened()
                device.admit(problem)
                self._layers[problem] = LayerBench(device, Verifier(device, problem, check), self._clocks, self._clock)
                return None
            case EvaluateRequest():
                return self._evaluate(request)
            case VerifyRequest(source, binary, once):
                return self._layer(source.problem).verify(source, binary, once=once)
            case FinalsRequest():
                return self._layer(request.kernels[0][0].problem).finals(request)
            case CalibrateRequest(binary):
                return calibrate(self._opened(), binary)
            case EndToEndRequest():
                verifier = self._layer(request.problem).verifier
                return measure_end_to_end(self._opened(), verifier, request, self._clock)
            case ChoicesRequest():
                return choices(self._opened(), request)
            case NetworkRequest(spec, references, kernels):
                if self._network is None or self._network.spec != spec:
                    self._network = Network(self._opened(), spec, references)
                return self._network.agreement(kernels)

    def _give_way(self) -> None:
        """As a compiler: what times kernels, and what proposes them, goes first."""
        if not self._compiles:
            self._compiles = True
            os.nice(_COMPILER_NICE)

    def _opened(self) -> Device:
        if self._device is None:
            raise DeviceError("the worker has no open device")
        return self._device

    def _layer(self, problem: Problem) -> LayerBench:
        if problem not in self._layers:
            raise DeviceError(f"the worker has no data of the layer {problem}")
        return self._layers[problem]

    def _forget(self, problem: Problem) -> None:
        """Free a layer's data, if there are any."""
        layer = self._layers.pop(problem, None)
        if layer is not None:
            layer.verifier.close()

    def _evaluate(self, request: EvaluateRequest) -> Measured | Skipped:
        if request.behind and self._failed:
            return Skipped()
        self._failed = True
        measured = self._layer(request.source.problem).evaluate(request)
        self._failed = False
        return measured


def serve(connection: Connection) -> None:
    """Answer requests until the parent hangs up."""
    server = WorkerServer(time.perf_counter)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        reply: Reply | AutotuneError | Bug
        try:
            reply = server.answer(request)
        except AutotuneError as error:
            reply = error
        except Exception:  # noqa: BLE001 - reported to the parent, which raises it
            reply = Bug(traceback.format_exc())
        connection.send(reply)


def _end_with_parent(connection: Connection, folder: str) -> None:
    """Kill this process and all it started when the parent's end of the connection closes, even by SIGKILL.

    Their folder for temporary files goes first: nobody is left to remove it afterwards.

    A thread waits for that: a kernel in an endless loop keeps the main thread from handling signals. PR_SET_PDEATHSIG
    would not do, since it fires when the parent's thread ends that started the worker.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hangup = select.poll()
    hangup.register(connection.fileno(), 0)  # hang-ups are always reported

    def wait() -> None:
        hangup.poll()
        remove(folder)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    parent = Connection(int(sys.argv[1]))
    _end_with_parent(parent, sys.argv[2])
    serve(parent)
    remove(sys.argv[2])  # whoever comes first, this or the one who waits for the parent's end
    os._exit(0)
