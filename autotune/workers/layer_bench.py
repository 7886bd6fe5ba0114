"""load -> verify -> measure: verify and time kernels on a layer's data on a device."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from autotune.compilation.compile import Binary
from autotune.devices.device import Device, Passes, Sample
from autotune.errors import Disproved, Rejected
from autotune.family.source import KernelSource
from autotune.measurement.benchmark import (
    Clocks,
    Converged,
    Samples,
    close_contest,
    interleave,
    lost,
    lost_at_first,
    measure,
    surely_behind,
)
from autotune.measurement.exported import Handle, prepared
from autotune.measurement.guard_bands import GuardedArray
from autotune.measurement.launcher import LoadedKernel, Tensors
from autotune.measurement.verify import Verifier
from autotune.trial import ErrorStats, Measured, Outcome, Phases
from autotune.workers.worker import COPIES_BYTES, MOST_PASSES, EvaluateRequest, FinalsRequest, FinalsTimings

_LEAST_ROUNDS, _MOST_ROUNDS = 11, 400  # rounds of the finals
_SAMPLE_US = 400.0  # duration of one sample of a short kernel; long enough to make a graph's launch negligible


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A kernel loaded on the device, with its own workspace and packed weights."""

    kernel: LoadedKernel
    workspace: GuardedArray
    packed_w: GuardedArray
    owned: ExitStack
    """resources that are released with the kernel"""

    def scratch(self, size_bytes: int) -> int:
        """Allocate memory that is released with the kernel."""
        device = self.kernel.device
        address = device.allocate(size_bytes)
        self.owned.callback(device.free, address)
        return address


class LayerBench:
    """A layer's data on a device, used to verify and time its kernels."""

    def __init__(self, device: Device, verifier: Verifier, clocks: Clocks, clock: Callable[[], float]) -> None:
        self.verifier = verifier
        self._device = device
        self._clocks = clocks
        self._clock = clock
        self._fastest_us: dict[str, float] = {}
        """median of the fastest kernel for each cache mode, cold or hot"""

    def verify(self, source: KernelSource, binary: Binary, *, once: bool) -> ErrorStats:
        """Verify a kernel, with a single run if `once`. Raises the same errors as `Verifier.verify`."""
        with self._loaded(source, binary) as loaded:
            kernel, workspace, packed_w = loaded.kernel, loaded.workspace, loaded.packed_w
            return self.verifier.verify(kernel, workspace, packed_w, lambda _: not once, cold=False).error

    def evaluate(self, request: EvaluateRequest) -> Measured:
        """Verify and time a kernel, racing it against the best time if there is one."""
        started = self._clock()
        with self._loaded(request.source, request.binary) as loaded:
            return self._measure(loaded, request, started)

    @contextmanager
    def _loaded(self, source: KernelSource, binary: Binary) -> Iterator[_Loaded]:
        """Load a kernel and allocate its memory. Both are released at the end of the `with` block."""
        device = self._device
        with ExitStack() as owned:
            module = device.load(binary)
            owned.callback(module.unload)
            workspace = GuardedArray(device, "workspace", source.workspace_bytes)
            owned.callback(workspace.free)
            packed_w = GuardedArray(device, "packed_w", source.packed_w_bytes)
            owned.callback(packed_w.free)
            for array in (workspace, packed_w):
                device.watch(array.address, array.size_bytes)
            kernel = LoadedKernel(device, module, source)
            yield _Loaded(kernel, workspace, packed_w, owned)

    def _tensors(
        self, loaded: _Loaded, count: int, *, cold: bool, weights: Mapping[str, int] | None = None
    ) -> list[Tensors]:
        """Return each forward pass's arrays. If several passes must be cold, each one has its own.

        `weights` are the addresses of weights, including packed ones, that all passes share. With None, each pass has
        its own.
        """
        device, verifier, source = self._device, self.verifier, loaded.kernel.source
        shared = weights or {}
        tensors = verifier.tensors(verifier.normal, loaded.packed_w.address, loaded.workspace.address)
        if count == 1 or not cold:
            return [_with(tensors, shared)] * count
        each: list[Tensors] = []
        for copy in verifier.copies(count):
            own = replace(copy, packed_w=loaded.packed_w.address, workspace=loaded.scratch(source.workspace_bytes))
            if weights is None:
                own = replace(own, packed_w=loaded.scratch(source.packed_w_bytes))
                device.copy(own.packed_w, loaded.packed_w.address, source.packed_w_bytes)
            each.append(_with(own, shared))
        return each

    def _weights(self, loaded: _Loaded, *, elsewhere: bool) -> dict[str, int]:
        """Return the addresses of the layer's weights or, if `elsewhere`, of new copies."""
        addresses = {}
        for array in self.verifier.problem.arrays:
            if array.role == "weights":
                addresses[array.name] = self.verifier.normal.inputs[array.name].address
                if elsewhere:
                    copy = loaded.scratch(array.size_bytes)
                    self._device.copy(copy, addresses[array.name], array.size_bytes)
                    addresses[array.name] = copy
        return addresses

    def _check_again(self, source: KernelSource, passes: Passes, *, cold: bool) -> None:
        """Check a kernel's outputs after many launches. Raises the same errors as `still_right`."""
        verifier = self.verifier
        tensors = verifier.tensors(verifier.normal)
        if passes.count > 1 and cold:
            tensors = verifier.copies(passes.count)[-1]
        verifier.still_right(source, tensors, partial(self._timed, passes, cold=cold))

    def _timed(self, passes: Passes, *, cold: bool) -> Sample:
        """Take one sample of passes. Without `cold`, the passes run once before.

        The arrays are restored before each run if a pass changes its inputs.
        """
        if not cold:
            self._restore_inputs()
            passes.enqueue()
        self._restore_inputs()
        return self._device.time(passes, cold=cold)

    def _restore_inputs(self) -> None:
        if self.verifier.changes_inputs:
            self.verifier.restore(self.verifier.normal)

    def _check_all_again(self, kernels: Sequence[_Loaded], entered: Sequence[Passes], *, cold: bool) -> None:
        """Check the finalists' outputs. Raises Disproved with a message for each finalist that is wrong."""
        wrong = {}
        for position, (loaded, passes) in enumerate(zip(kernels, entered, strict=False)):
            try:
                self._check_again(loaded.kernel.source, passes, cold=cold)
            except Rejected as rejected:
                if rejected.outcome != Outcome.WRONG_RESULT:
                    raise
                wrong[position] = rejected.message
        if wrong:
            raise Disproved(wrong)

    def _recorded(self, each: Sequence[Callable[[], None]], owned: ExitStack) -> Passes:
        """Record forward passes as a single call, which is released with `owned`."""
        passes = self._device.record(each)
        owned.callback(passes.close)
        return passes

    def _several(self, pass_us: float) -> int:
        """Return the number of passes in a sample for a kernel that takes `pass_us`: 1 for a long kernel."""
        if pass_us >= self._device.short_us or self.verifier.changes_inputs:
            return 1
        copies = COPIES_BYTES // self.verifier.problem.tensor_bytes
        return max(1, min(MOST_PASSES, copies, math.ceil(_SAMPLE_US / pass_us)))

    def finals(self, request: FinalsRequest) -> FinalsTimings:
        """Time contenders interleaved. Raises Disproved for kernels that are wrong afterwards.

        All contenders are recorded in the same way, with the same number of passes per sample. With cold caches, each
        pass has its own arrays.

        If libraries take part, each of them uses one kernel's arrays and workspace. That kernel's passes then share
        weights, like a library's passes. Since times also depend on the weights' addresses, each kernel except the
        first gets copies of the weights at other addresses. The first kernel is timed a second time at the same
        addresses, for the noise floor.
        """
        device, verifier = self._device, self.verifier
        cold = request.cache == "cold"
        with ExitStack() as held:
            kernels = [held.enter_context(self._loaded(source, binary)) for source, binary in request.kernels]
            for loaded in kernels:
                tensors = verifier.tensors(verifier.normal, loaded.packed_w.address, loaded.workspace.address)
                loaded.kernel.prepare(tensors)
            libraries = [
                held.enter_context(self._exported(*library, loaded))
                for library, loaded in zip(request.libraries, kernels, strict=False)
            ]
            count = self._several(
                min(
                    self._timed(Passes(_passes(loaded, self._tensors(loaded, 1, cold=cold))[0]), cold=cold).us
                    for loaded in kernels
                    for _ in range(2)  # the first pass also loads the kernel's code
                )
            )
            arrays = [
                self._tensors(
                    loaded,
                    count,
                    cold=cold,
                    weights=self._weights(loaded, elsewhere=position > 0) if libraries else None,
                )
                for position, loaded in enumerate(kernels)
            ]
            each = [_passes(loaded, own) for loaded, own in zip(kernels, arrays, strict=True)]
            each += [
                [partial(self._run_exported, handle, tensors) for tensors in own]
                for handle, own in zip(libraries, arrays, strict=False)
            ]
            if libraries:
                each.append(_passes(kernels[0], arrays[0]))
            entered = [self._recorded(passes, held) for passes in each]
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
                contested=close_contest,
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
            again=next(timings) if libraries else None,
            baselines=tuple(each if isinstance(each, str) else next(timings) for each in baselines),
        )

    @contextmanager
    def _exported(self, path: str, source: KernelSource, loaded: _Loaded) -> Iterator[Handle]:
        """Prepare an exported library for the layer's weights, verify it in a kernel's workspace, and yield a
        handle.
        """
        device, verifier, workspace = self._device, self.verifier, loaded.workspace
        with prepared(Path(path), verifier.problem, verifier.tensors(verifier.normal)) as handle:
            if handle.workspace_bytes > workspace.size_bytes:
                sizes = f"{handle.workspace_bytes} bytes of workspace, but its kernel {workspace.size_bytes}"
                raise Rejected(Outcome.RUNTIME, "launch_failure", f"the exported library needs {sizes}")
            workspace.poison()
            verifier.restore(verifier.normal)
            self._run_exported(handle, verifier.tensors(verifier.normal, workspace=workspace.address))
            device.synchronize()
            verifier.judge(verifier.normal, source, (workspace,))
            yield handle

    def _run_exported(self, handle: Handle, tensors: Tensors) -> None:
        handle.run(tensors, self._device.stream_handle)  # read in each call: a recording has its own stream

    def _measure(self, loaded: _Loaded, request: EvaluateRequest, started: float) -> Measured:
        device, verifier, cold = self._device, self.verifier, request.cache == "cold"
        ready = self._clock()
        fastest_us = self._fastest_us.get(request.cache, math.inf)
        best_us = math.inf if request.best_us is None else min(request.best_us, fastest_us)

        def in_the_race(run_us: float) -> bool:
            return device.info.can.cpu or not lost_at_first(run_us, best_us)  # one run on a busy CPU is unreliable

        verified = verifier.verify(loaded.kernel, loaded.workspace, loaded.packed_w, repeat=in_the_race)
        done = self._clock()
        runs = verified.runs
        shortest_us = min(run.us for run in runs)
        # the verification may have left the packed weights or the constant memory of the integer test data
        loaded.kernel.prepare(verifier.tensors(verifier.normal, loaded.packed_w.address, loaded.workspace.address))
        count = self._several(shortest_us)
        each = _passes(loaded, self._tensors(loaded, count, cold=cold))
        passes = Passes(each[0]) if shortest_us >= device.short_us else self._recorded(each, loaded.owned)
        first: tuple[Sample, ...] = ()  # runs of the verification that also count as samples
        if not in_the_race(runs[0].us):
            first = runs
        elif cold and passes.launch == "stream" and count == 1:
            later = (*runs[1:], *verified.on_integers)
            # first passes and passes on other data differ by a few per cent, too little to make a slow kernel win
            first = (runs[0], *later) if surely_behind([run.us for run in later], best_us) else runs[1:]
        samples = Samples(partial(self._timed, passes, cold=cold), self._clocks, first)
        measure(samples, Converged(best_us))
        timing = samples.timing(request.cache, device.health(), passes=passes.count, launch=passes.launch)
        too_slow = lost(timing.samples_us, best_us)
        if not (too_slow or surely_behind(timing.samples_us, best_us)):
            self._check_again(request.source, passes, cold=cold)
        self._fastest_us[request.cache] = min(fastest_us, timing.median_us)
        measured = self._clock()
        return Measured(
            timing=timing,
            error=verified.error,
            too_slow=too_slow,
            phases=Phases(
                load_us=1e6 * (ready - started), verify_us=1e6 * (done - ready), measure_us=1e6 * (measured - done)
            ),
        )


def _passes(loaded: _Loaded, each: Sequence[Tensors]) -> list[Callable[[], None]]:
    """Return functions that each enqueue a forward pass on one set of arrays."""
    return [partial(loaded.kernel.run, loaded.kernel.forward(tensors)) for tensors in each]


def _with(tensors: Tensors, arrays: Mapping[str, int]) -> Tensors:
    """Return the tensors with some arrays at other addresses."""
    return replace(tensors, arrays={**tensors.arrays, **arrays})
