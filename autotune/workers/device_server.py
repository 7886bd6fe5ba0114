"""Answer the requests sent to a worker process that owns a device, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotune.compilation.compile import Binary
from autotune.devices.backends import open_device
from autotune.devices.device import BUSY_PERCENT, Device
from autotune.errors import DeviceError
from autotune.measurement.benchmark import Clocks
from autotune.measurement.calibrate import calibrate
from autotune.measurement.dispatcher_check import ChoicesRequest, choices
from autotune.measurement.end_to_end_timer import EndToEndRequest, measure_end_to_end
from autotune.measurement.some_blocks import run_some_blocks
from autotune.measurement.unread_inputs import doubtful_data
from autotune.measurement.verify import Verifier
from autotune.problem import Problem
from autotune.trial import Measured
from autotune.workers.layer_bench import LayerBench
from autotune.workers.worker import (
    CalibrateRequest,
    DependenceRequest,
    DeviceRequest,
    EvaluateRequest,
    FinalsRequest,
    LayerRequest,
    Opened,
    OpenRequest,
    Reply,
    Skipped,
    SomeBlocksRequest,
    VerifyRequest,
)


class WorkerServer:
    """A worker's state between requests: the device, and each layer's data."""

    def __init__(
        self, clock: Callable[[], float], open_named: Callable[[str, Binary | None], Device] = open_device
    ) -> None:
        self._clock = clock
        self._open = open_named
        self._device: Device | None = None
        self._layers: dict[Problem, LayerBench] = {}
        self._clocks = Clocks()
        self._failed = False
        """whether the last evaluated kernel failed"""

    def answer(self, request: DeviceRequest) -> Reply:
        """Execute a request and return the reply."""
        match request:
            case OpenRequest(name, runtime, first):
                self._device = self._open(name, runtime)
                environment = self._device.environment
                if first and (busy := self._device.busy_percent()) is not None:
                    attributes = {**environment.attributes, BUSY_PERCENT: str(busy)}
                    environment = replace(environment, attributes=attributes)
                return Opened(self._device.info, environment)
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
                return self._layers[source.problem].verify(source, binary, once=once)
            case SomeBlocksRequest(source, binary, large, small):
                run_some_blocks(self._opened(), source, binary, large, small)
                return None
            case FinalsRequest():
                return self._layers[request.kernels[0][0].problem].finals(request)
            case CalibrateRequest(binary):
                return calibrate(self._opened(), binary)
            case EndToEndRequest():
                verifier = self._layers[request.problem].verifier
                return measure_end_to_end(self._opened(), verifier, request, self._clock)
            case ChoicesRequest():
                return choices(self._opened(), request)
            case DependenceRequest(problems):
                return tuple(doubtful_data(problems))

    def _opened(self) -> Device:
        if self._device is None:
            raise DeviceError("the worker has no open device")
        return self._device

    def _forget(self, problem: Problem) -> None:
        """Free a layer's data, if the worker has any."""
        layer = self._layers.pop(problem, None)
        if layer is not None:
            layer.verifier.close()

    def _evaluate(self, request: EvaluateRequest) -> Measured | Skipped:
        if request.behind and self._failed:
            return Skipped()
        self._failed = True
        measured = self._layers[request.source.problem].evaluate(request)
        self._failed = False
        return measured
