"""A line's device with what others lend it: GPUs of its class measure beside it, other nodes compile for it.

Everything else, finals before all, stays on the line's own device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from autotune.cluster.messages import HARMLESS, CompileFor, Helper, MeasureFor
from autotune.compilation.compile import Binary
from autotune.devices.device import Baseline, DeviceInfo, Environment
from autotune.errors import AutotuneError, Rejected
from autotune.evaluation.evaluator import Evaluator
from autotune.family.source import KernelSource
from autotune.problem import Problem
from autotune.store import LOST
from autotune.trial import Config, Measured, Outcome
from autotune.workers.worker import FinalsTimings

_Answer = TypeVar("_Answer", Binary, Measured)
MOST = 256  # kernels that others measure or compile at once for one line

Ask = Callable[[str, CompileFor | MeasureFor], object]
"""Asks a helper by its address: what came of it, None when it has its own work, Rejected as what it is. Raises OSError
when it cannot be reached, or is lost meanwhile, another AutotuneError for what is wrong there alone."""


@dataclass(slots=True, eq=False)
class _Place:
    """Where kernels are measured and compiled."""

    helper: Helper | None
    """None: this very agent"""
    measuring: int = 0
    compiling: int = 0


class SharedEvaluator:
    """The evaluator of an agent's line. Helpers come and go."""

    def __init__(self, own: Evaluator, compilers: int, ask: Ask) -> None:
        self.own, self._compilers, self._ask = own, compilers, ask
        self._here = _Place(None)
        self._places: list[_Place] = []
        self._changed = threading.Condition()
        self._threads = ThreadPoolExecutor(MOST, thread_name_prefix="compile-elsewhere")

    def lend(self, helpers: Sequence[Helper]) -> None:
        """These help from now on, no others."""
        with self._changed:
            there = {place.helper: place for place in self._places}
            self._places = [there.get(helper) or _Place(helper) for helper in helpers]
            self._changed.notify_all()

    @property
    def helpers(self) -> tuple[Helper, ...]:
        """Those that help."""
        return tuple(place.helper for place in self._places if place.helper is not None)

    @property
    def info(self) -> DeviceInfo:
        """Of every device of the class."""
        return self.own.info

    @property
    def environment(self) -> Environment:
        """Of every device of the class."""
        return self.own.environment

    @property
    def ahead(self) -> int:
        """As many more as helpers compile and measure."""
        return self.own.ahead + sum(each.compilers + 2 * each.slots for each in self.helpers)

    @property
    def slots(self) -> int:
        """Those of all devices."""
        return self.own.slots + sum(each.slots for each in self.helpers)

    @property
    def most_slots(self) -> int:
        """With as many helpers as there can be."""
        return self.own.slots + MOST

    @property
    def finals_alone(self) -> bool:
        """As on the own device."""
        return self.own.finals_alone

    def listed(self, problem: Problem, *, cache: str) -> frozenset[Config] | None:
        """As on the own device."""
        return self.own.listed(problem, cache=cache)

    def expect(self, problem: Problem) -> None:
        """On the own device; helpers get ready with the first kernel."""
        self.own.expect(problem)

    def begin_layer(self, problem: Problem) -> None:
        """On the own device; helpers get ready with the first kernel."""
        self.own.begin_layer(problem)

    def compile(self, source: KernelSource) -> Future[Binary]:
        """Start compiling where the fewest wait for each compiler; here when that place is lost."""
        with self._changed:
            places = [place for place in self._places if place.helper is not None and place.helper.compilers]
            place = min([self._here, *places], key=lambda each: each.compiling / self._compilers_of(each))
            place.compiling += 1
        if place.helper is None:
            future = self.own.compile(source)
        else:
            future = self._threads.submit(self._compile_elsewhere, source, place.helper)
        future.add_done_callback(lambda _: self._compiled(place))
        return future

    def _compilers_of(self, place: _Place) -> int:
        return self._compilers if place.helper is None else place.helper.compilers

    def _compiled(self, place: _Place) -> None:
        with self._changed:
            place.compiling -= 1

    def _compile_elsewhere(self, source: KernelSource, helper: Helper) -> Binary:
        try:
            binary = self._answer(helper, CompileFor(source, self.info.arch), Binary)
        except OSError:
            self._drop(helper)
            binary = None
        return binary or self.own.compile(source).result()

    def evaluate(self, source: KernelSource, binary: Binary, *, cache: str, best_us: float | None) -> Measured:
        """Verify and time a kernel on whichever device is free.

        Raises Rejected for a kernel under which a helper was lost: it is not tried on another device.
        """
        while True:
            place = self._free()
            try:
                if place.helper is None:
                    return self.own.evaluate(source, binary, cache=cache, best_us=best_us)
                measured = self._measure_elsewhere(MeasureFor(source, binary, cache, best_us), place.helper)
            finally:
                with self._changed:
                    place.measuring -= 1
                    self._changed.notify()
            if measured is not None:
                return measured

    def _measure_elsewhere(self, request: MeasureFor, helper: Helper) -> Measured | None:
        """What a helper has measured; None when it has not."""
        try:
            return self._answer(helper, request, Measured)
        except OSError as error:
            self._drop(helper)
            if self.info.kind in HARMLESS:
                return None
            message = f"{helper.name} was lost while it was running"
            raise Rejected(Outcome.RUNTIME, LOST, message) from error

    def _answer(self, helper: Helper, request: CompileFor | MeasureFor, wanted: type[_Answer]) -> _Answer | None:
        """What came of it; None when it has other work, or its own device fails it: it helps no more then."""
        answer: object = None
        with suppress(AutotuneError):
            answer = self._ask(helper.address, request)
        if isinstance(answer, Rejected):
            raise answer
        if isinstance(answer, wanted):
            return answer
        self._drop(helper)
        return None

    def _free(self) -> _Place:
        """A place on a device, the own one first; waits for one."""
        with self._changed:
            while True:
                if self._here.measuring < self.own.slots:
                    place = self._here
                else:
                    free = (each for each in self._places if each.helper and each.measuring < each.helper.slots)
                    found = next(free, None)
                    if found is None:
                        self._changed.wait()
                        continue
                    place = found
                place.measuring += 1
                return place

    def _drop(self, helper: Helper) -> None:
        """It helps no more, until the coordinator names it again."""
        with self._changed:
            self._places = [each for each in self._places if each.helper != helper]

    def finals(
        self,
        kernels: Sequence[tuple[KernelSource, Binary]],
        baselines: Sequence[Baseline],
        *,
        cache: str,
        budget_s: float,
        seed: int,
    ) -> FinalsTimings:
        """On the own device alone."""
        return self.own.finals(kernels, baselines, cache=cache, budget_s=budget_s, seed=seed)

    def refresh(self) -> None:
        """The own device's workers."""
        self.own.refresh()

    def close(self) -> None:
        """The own device, and what waits for others."""
        self.lend(())
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.own.close()
