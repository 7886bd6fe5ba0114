"""compile, load -> verify -> measure: what runs inside a worker process, which alone holds its device.

Started as `python -m autotune.workers.worker_process FD`.
"""

from __future__ import annotations

import math
import os
import random
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from autotune.compilation.compile import Binary
from autotune.devices.backends import compile_program, load_compiler, open_device
from autotune.devices.device import Device, Passes, Sample
from autotune.errors import AutotuneError, DeviceError, Disproved, Rejected
from autotune.family.source import KernelSource
from autotune.measurement.benchmark import (
    Clocks,
    Converged,
    Race,
    Samples,
    interleave,
    lost,
    lost_at_first,
    measure,
    surely_behind,
)
from autotune.measurement.calibrate import calibrate
from autotune.measurement.choices import ChoicesRequest, choices
from autotune.measurement.class_agreement import Network, NetworkRequest
from autotune.measurement.exported import Handle, prepared
from autotune.measurement.forward import LoadedKernel, Tensors
from autotune.measurement.guarded import GuardedArray
from autotune.measurement.host_to_host import EndToEndRequest, measure_end_to_end
from autotune.measurement.verify import Verifier
from autotune.problem import Problem
from autotune.temporary import remove
from autotune.trial import Measured, Outcome
from autotune.workers.worker import (
    COPIES_BYTES,
    MOST_PASSES,
    Bug,
    CalibrateRequest,
    CompileRequest,
    CompilerRequest,
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
)

_LEAST_ROUNDS, _MOST_ROUNDS = 11, 400  # of the finals
_COMPILER_NICE = 10
_SAMPLE_US = 400.0  # that the passes of one sample of a short kernel take together: a graph's launch is noise then


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A kernel on the device with its own memory."""

    kernel: LoadedKernel
    workspace: GuardedArray
    packed_w: GuardedArray
    owned: ExitStack
    """what is given back with it"""


class WorkerServer:
    """What a worker holds between requests."""

    def __init__(
        self, clock: Callable[[], float], open_named: Callable[[str, Binary | None], Device] = open_device
    ) -> None:
        self._clock = clock
        self._open = open_named
        self._device: Device | None = None
        self._verifiers: dict[Problem, Verifier] = {}
        self._current: Problem | None = None
        """the layer of what was asked for last"""
        self._network: Network | None = None
        self._clocks = Clocks()
        self._compiles = False
        self._fastest_us: dict[tuple[Problem, str], float] = {}
        """median of a layer's fastest kernel, with cold or hot caches"""
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
                self._opened().admit(problem)
                self._verifiers[problem] = Verifier(self._opened(), problem, check)
                self._current = problem
                return None
            case EvaluateRequest():
                self._current = request.source.problem
                return self._evaluate(request)
            case VerifyRequest(source, binary, once):
                self._current = source.problem
                with self._loaded(source, binary) as loaded:
                    kernel, workspace, packed_w = loaded.kernel, loaded.workspace, loaded.packed_w
                    return self._layer().verify(kernel, workspace, packed_w, repeat=lambda _: not once).error
            case FinalsRequest():
                self._current = request.kernels[0][0].problem
                return self._finals(request)
            case CalibrateRequest(binary):
                return calibrate(self._opened(), binary)
            case EndToEndRequest():
                self._current = request.problem
                return measure_end_to_end(self._opened(), self._layer(), request, self._clock)
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

    def _layer(self) -> Verifier:
        if self._current not in self._verifiers:
            raise DeviceError(f"the worker has no data of the layer {self._current}")
        return self._verifiers[self._current]

    def _forget(self, problem: Problem) -> None:
        """Free a layer's data, if there are any."""
        verifier = self._verifiers.pop(problem, None)
        if verifier is not None:
            verifier.close()
        self._fastest_us = {key: us for key, us in self._fastest_us.items() if key[0] != problem}

    @contextmanager
    def _loaded(self, source: KernelSource, binary: Binary) -> Iterator[_Loaded]:
        """A kernel with its own memory, all given back at the end."""
        device = self._opened()
        with ExitStack() as owned:
            module = device.load(binary)
            owned.callback(module.unload)
            workspace = GuardedArray(device, "workspace", source.workspace_bytes)
            owned.callback(workspace.free)
            packed_w = GuardedArray(device, "packed_w", source.packed_w_bytes)
            owned.callback(packed_w.free)
            kernel = LoadedKernel(device, module, source)
            yield _Loaded(kernel, workspace, packed_w, owned)

    def _each_pass(self, loaded: _Loaded, count: int, *, cold: bool) -> list[Callable[[], None]]:
        """Functions that enqueue a forward pass; when several must be cold, each on arrays of its own."""
        device, verifier, kernel, source = self._opened(), self._layer(), loaded.kernel, loaded.kernel.source
        if count == 1 or not cold:
            tensors = verifier.tensors(verifier.normal, loaded.packed_w.address, loaded.workspace.address)
            return [partial(kernel.run, kernel.forward(tensors))] * count

        def scratch(size_bytes: int) -> int:
            address = device.allocate(size_bytes)
            loaded.owned.callback(device.free, address)
            return address

        passes: list[Callable[[], None]] = []
        for copy in verifier.copies(count):
            tensors = replace(copy, packed_w=scratch(source.packed_w_bytes), workspace=scratch(source.workspace_bytes))
            device.copy(tensors.packed_w, loaded.packed_w.address, source.packed_w_bytes)
            passes.append(partial(kernel.run, kernel.forward(tensors)))
        return passes

    def _check_again(self, source: KernelSource, passes: Passes, *, cold: bool) -> None:
        """Whether a kernel's passes give what they must after many launches. Raises Rejected as `still_right` does."""
        verifier = self._layer()
        tensors = verifier.tensors(verifier.normal)
        if passes.count > 1 and cold:
            tensors = verifier.copies(passes.count)[-1]
        verifier.still_right(source, tensors, partial(self._timed, passes, cold=cold))

    def _timed(self, passes: Passes, *, cold: bool) -> Sample:
        """A sample of passes, on arrays that are as before a pass where one changes what it reads."""
        verifier = self._layer()
        if verifier.changes_inputs:
            verifier.restore(verifier.normal)
        return self._opened().time(passes, cold=cold)

    def _check_all_again(self, kernels: Sequence[_Loaded], entered: Sequence[Passes], *, cold: bool) -> None:
        """Whether finalists are still right. Raises Disproved naming those that are not."""
        wrong = {}
        for position, (loaded, passes) in enumerate(zip(kernels, entered, strict=False)):
            try:
                self._check_again(loaded.kernel.source, passes, cold=cold)
            except Rejected as rejected:
                if rejected.outcome != Outcome.CORRECTNESS:
                    raise
                wrong[position] = rejected.message
        if wrong:
            raise Disproved(wrong)

    def _recorded(self, each: Sequence[Callable[[], None]], owned: ExitStack) -> Passes:
        """Forward passes as one call, given back with what they belong to."""
        passes = self._opened().record(each)
        owned.callback(passes.close)
        return passes

    def _several(self, pass_us: float) -> int:
        """Passes that make up one sample of a kernel that takes so long; one of a long kernel."""
        if pass_us >= self._opened().short_us or self._layer().changes_inputs:
            return 1
        room = COPIES_BYTES // self._layer().problem.tensor_bytes
        return max(1, min(MOST_PASSES, room, math.ceil(_SAMPLE_US / pass_us)))

    def _finals(self, request: FinalsRequest) -> FinalsTimings:
        """Every contender is recorded the same way and has as many passes a sample, each on arrays of its own."""
        device, verifier = self._opened(), self._layer()
        cold = request.cache == "cold"
        with ExitStack() as held:
            kernels = [held.enter_context(self._loaded(source, binary)) for source, binary in request.kernels]
            for loaded in kernels:
                tensors = verifier.tensors(verifier.normal, loaded.packed_w.address, loaded.workspace.address)
                loaded.kernel.prepare(tensors)
            libraries = [held.enter_context(self._exported(*library)) for library in request.libraries]
            count = self._several(
                min(
                    self._timed(Passes(self._each_pass(loaded, 1, cold=cold)[0]), cold=cold).us
                    for loaded in kernels
                    for _ in range(2)  # the first brings its code to the device
                )
            )
            entered = [self._recorded(self._each_pass(loaded, count, cold=cold), held) for loaded in kernels]
            entered += [self._recorded(self._exported_passes(*each, count, cold=cold), held) for each in libraries]
            baselines = device.baselines(request.baselines, verifier.problem, passes=count, cold=cold)
            for passes in baselines:
                if isinstance(passes, Passes):
                    held.callback(passes.close)
                    entered.append(passes)
            for passes in entered:
                self._timed(passes, cold=cold)
            all_samples = [Samples(partial(self._timed, passes, cold=cold), self._clocks) for passes in entered]
            interleave(
                all_samples,
                budget_s=request.budget_s,
                least=_LEAST_ROUNDS,
                most=_MOST_ROUNDS,
                rng=random.Random(request.seed),
                clock=self._clock,
            )
            self._check_all_again(kernels, entered, cold=cold)
            timings = iter(
                [
                    samples.timing(request.cache, device.health(), passes=passes.count, launch=passes.launch)
                    for samples, passes in zip(all_samples, entered, strict=True)
                ]
            )
        return FinalsTimings(
            kernels=tuple(next(timings) for _ in kernels),
            libraries=tuple(next(timings) for _ in libraries),
            baselines=tuple(each if isinstance(each, str) else next(timings) for each in baselines),
        )

    @contextmanager
    def _exported(self, path: str, source: KernelSource) -> Iterator[tuple[Handle, GuardedArray]]:
        """An exported library's handle on the layer's filters, once its output was right, and its workspace."""
        device, verifier = self._opened(), self._layer()
        with prepared(Path(path), verifier.problem, verifier.tensors(verifier.normal)) as handle:
            workspace = GuardedArray(device, "workspace", handle.workspace_bytes)
            try:
                workspace.poison()
                verifier.restore(verifier.normal)
                handle.run(verifier.tensors(verifier.normal, workspace=workspace.address), device.stream_handle)
                device.synchronize()
                verifier.judge(verifier.normal, source, (workspace,))
                yield handle, workspace
            finally:
                workspace.free()

    def _exported_passes(
        self, handle: Handle, workspace: GuardedArray, count: int, *, cold: bool
    ) -> list[Callable[[], None]]:
        """Passes of an exported library; when several must be cold, each on arrays of its own."""
        device, verifier = self._opened(), self._layer()
        own = verifier.copies(count) if count > 1 and cold else [verifier.tensors(verifier.normal)] * count

        def run(tensors: Tensors) -> None:
            handle.run(tensors, device.stream_handle)

        return [partial(run, replace(tensors, workspace=workspace.address)) for tensors in own]

    def _evaluate(self, request: EvaluateRequest) -> Measured | Skipped:
        if request.behind and self._failed:
            return Skipped()
        self._failed = True
        started = self._clock()
        with self._loaded(request.source, request.binary) as loaded:
            measured = self._measure(loaded, request, started)
        self._failed = False
        return measured

    def _measure(self, loaded: _Loaded, request: EvaluateRequest, started: float) -> Measured:
        device, verifier, cold = self._opened(), self._layer(), request.cache == "cold"
        ready = self._clock()
        key = verifier.problem, request.cache
        fastest_us = self._fastest_us.get(key, math.inf)
        best_us = math.inf if request.best_us is None else min(request.best_us, fastest_us)

        def in_the_race(run_us: float) -> bool:
            return device.info.kind == "host" or not lost_at_first(run_us, best_us)  # a run on a busy CPU says little

        verified = verifier.verify(loaded.kernel, loaded.workspace, loaded.packed_w, repeat=in_the_race)
        done = self._clock()
        runs = verified.runs
        shortest_us = min(run.us for run in runs)
        # the verification's last run may have left the integers' filters, packed or in constant memory
        loaded.kernel.prepare(verifier.tensors(verifier.normal, loaded.packed_w.address, loaded.workspace.address))
        count = self._several(shortest_us)
        each = self._each_pass(loaded, count, cold=cold)
        passes = Passes(each[0]) if shortest_us >= device.short_us else self._recorded(each, loaded.owned)
        own: tuple[Sample, ...] = ()  # the verification's own runs are samples too
        if not in_the_race(runs[0].us):
            own = runs
        elif cold and passes.launch == "stream" and count == 1:
            later = (*runs[1:], *verified.on_integers)
            # what the first of several and other data add or save, some per cent, makes no winner of one far behind
            own = (runs[0], *later) if surely_behind([run.us for run in later], best_us) else runs[1:]
        samples = Samples(partial(self._timed, passes, cold=cold), self._clocks, own)
        measure(samples, Race(best_us, Converged()))
        timing = samples.timing(request.cache, device.health(), passes=passes.count, launch=passes.launch)
        too_slow = lost(timing.samples_us, best_us)
        if not (too_slow or surely_behind(timing.samples_us, best_us)):
            self._check_again(request.source, passes, cold=cold)
        self._fastest_us[key] = min(fastest_us, timing.median_us)
        measured = self._clock()
        return Measured(
            timing=timing,
            error=verified.error,
            too_slow=too_slow,
            load_us=1e6 * (ready - started),
            verify_us=1e6 * (done - ready),
            measure_us=1e6 * (measured - done),
        )


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
