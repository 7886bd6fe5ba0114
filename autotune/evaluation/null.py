"""The `null` device, which doesn't run kernels, predicts times and fails on demand. Used for dry runs and pipeline
tests.

`null:compile=0.1,hang=0.05,delay_ms=5` makes 10 % of all kernels fail to compile and 5 % hang. Every evaluation, and
every kernel of the finals, takes 5 ms. Whether a kernel fails, and how long it takes, depends only on its config. With
`compile_ms=200,compilers=16`, a compilation takes 200 ms, and 16 of them run at once. Without `compilers`, the run is
strictly sequential and can be repeated exactly.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from autotune.compilation.compile import Binary, Target
from autotune.devices.device import DeviceInfo, Environment
from autotune.errors import DeviceError, Rejected
from autotune.evaluation.evaluator import Evaluator, compiled_at_once
from autotune.family.source import KernelSource
from autotune.measurement.benchmark import RACE_FACTOR, summarise
from autotune.trial import ErrorStats, Measured, Outcome, Resources
from autotune.workers.worker import FinalsRequest, FinalsTimings

_FAILURES = {
    "compile": (Outcome.COMPILE, "compile_error", "the null device was asked to fail this compilation"),
    "crash": (Outcome.RUNTIME, "crash", "the null device was asked to crash"),
    "illegal_address": (Outcome.RUNTIME, "illegal_address", "the null device simulates an illegal address"),
    "hang": (Outcome.TIMEOUT, "hang", "the null device was asked to hang"),
    "wrong": (Outcome.WRONG_RESULT, "wrong", "the null device simulates a wrong result"),
}
_FLOPS_PER_US = 10e6  # speed of an imaginary device: 10 TFLOP/s with the fastest config
_SAMPLES = 5
_MOST_DELAY_MS = 3_600_000  # an hour
_DELAYS = {"delay_ms": _MOST_DELAY_MS, "compile_ms": _MOST_DELAY_MS, "compilers": 999}  # with the maximum of each


class NullEvaluator(Evaluator):
    """An Evaluator that doesn't compile or run anything."""

    def __init__(self, options: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        delays = dict.fromkeys(_DELAYS, 0.0)
        self._shares: dict[str, float] = {}
        self._sleep = sleep
        for option in filter(None, options.split(",")):
            name, _, value = option.partition("=")
            try:
                number = float(value)
            except ValueError:
                number = -1.0
            most = dict.fromkeys(_FAILURES, 1) | _DELAYS
            counts = name != "compilers" or (number >= 1 and number.is_integer())
            if not 0 <= number <= most.get(name, -1) or not counts:
                allowed = ", ".join(_FAILURES)
                raise DeviceError(
                    f"null:{option}: expected NAME=SHARE with NAME one of {allowed}, or delay_ms=NUMBER or "
                    f"compile_ms=NUMBER, {_MOST_DELAY_MS} at most, or compilers=COUNT"
                )
            (delays if name in _DELAYS else self._shares)[name] = number
        self._delay_ms, self._compile_ms, self._compilers = delays.values()
        self._pool = ThreadPoolExecutor(int(self._compilers), "null-compile") if self._compilers else None
        self._device = threading.Lock()
        """held while a kernel runs"""

    @property
    def info(self) -> DeviceInfo:
        """A device with the limits of sm_90."""
        return DeviceInfo("null", "null", arch=90, sm_count=132, memory_bytes=1 << 37)

    @property
    def environment(self) -> Environment:
        """An environment in which every version is `none`."""
        return Environment(driver="none", toolkit="none", flags="")

    @property
    def ahead(self) -> int:
        """1 without `compilers`, otherwise the same as for one GPU."""
        return int(self._compilers) + 4 if self._compilers else 1

    def compile(self, source: KernelSource) -> Future[Binary]:
        """Return a future with an empty binary, or with the failure requested by the options."""
        if self._pool is not None:
            return self._pool.submit(self._compiled, source)
        return compiled_at_once(self._compiled, source)

    def _compiled(self, source: KernelSource) -> Binary:
        if self._compile_ms:
            self._sleep(self._compile_ms / 1000)
        failure = self._failure(source)
        if failure == "compile":
            raise Rejected(*_FAILURES[failure])
        registers = 32 + int(96 * _fraction(source.config.to_json()))
        return Binary(Target("null"), b"", Resources(registers), "", source.program.entries)

    def evaluate(self, source: KernelSource, binary: Binary, *, cache: str, best_us: float | None) -> Measured:
        """Return the predicted time, or raise the failure requested by the options."""
        with self._device:
            self._sleep(self._delay_ms / 1000)
        if failure := self._failure(source):
            raise Rejected(*_FAILURES[failure])
        time_us = predicted_us(source)
        too_slow = best_us is not None and time_us > RACE_FACTOR * best_us
        samples = (time_us,) * (1 if too_slow else _SAMPLES)
        return Measured(summarise(samples, cache), ErrorStats(0.0, 0.0), too_slow)

    def finals(self, request: FinalsRequest) -> FinalsTimings:
        """Return the predicted times again. Raises DeviceError if the request contains a baseline."""
        if request.baselines:
            raise DeviceError("null: libraries are measured on CUDA devices only")
        with self._device:
            self._sleep(len(request.kernels) * self._delay_ms / 1000)
        times_us = (predicted_us(source) for source, _ in request.kernels)
        return FinalsTimings(tuple(summarise((time_us,) * _SAMPLES, request.cache) for time_us in times_us))

    def close(self) -> None:
        """Stop the compilers."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _failure(self, source: KernelSource) -> str:
        """Return this config's failure, or "" if it succeeds."""
        position, reached = _fraction(f"fail {source.config}"), 0.0
        for name, share in self._shares.items():
            reached += share
            if position < reached:
                return name
        return ""


def predicted_us(source: KernelSource) -> float:
    """Return a config's time: the layer's ideal time multiplied by a factor in [1, 2) for each parameter value."""
    time_us = 1.0 + source.problem.flops / _FLOPS_PER_US
    for name, value in source.config.pairs:
        time_us *= 1.0 + _fraction(f"{source.config.template} {name}={value}")
    return time_us


def _fraction(text: str) -> float:
    """Return a number in [0, 1) that depends on nothing but the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
