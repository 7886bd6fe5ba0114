"""render -> compile: compile many programs at once in worker processes that never touch a device, with a cache."""

from __future__ import annotations

import contextlib
import queue
import statistics
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from autotune.compilation.cache import BinaryCache
from autotune.compilation.compile import Binary, Program, Target
from autotune.devices.backends import compiler_identity
from autotune.errors import Rejected, ToolchainError
from autotune.trial import Outcome
from autotune.workers.compiler_messages import CompileRequest, CompilerRequest
from autotune.workers.worker import Reply, Worker, WorkerLost, of_kind

FIRST_DEADLINE_S = 60.0  # deadline of a compilation before the deadline adapts
LEAST_DEADLINE_S = 5.0  # of 7,100 recorded kernels, all that took 4.5 s to compile took over 2.5 times the best time
DEADLINE_FACTOR = 5.0  # times the 90th percentile of the compilation times so far, which was 0.9 to 1.1 s
_SEEN = 20  # number of compilations before the deadline adapts


class CompilePool:
    """Compiles in `jobs` worker processes. If a worker's compiler hangs or dies, the worker is replaced."""

    def __init__(self, jobs: int, cache: BinaryCache | None, *, deadline_s: float | None = None) -> None:
        self._jobs = jobs
        self._threads = ThreadPoolExecutor(jobs, thread_name_prefix="compile")
        self._cache = cache
        self._idle: queue.SimpleQueue[Worker | None] = queue.SimpleQueue()
        self._fixed_deadline_s = deadline_s
        self._seconds: deque[float] = deque(maxlen=500)
        self._busy: set[Worker] = set()
        self._compilers: dict[str, str] = {}
        self._lock = threading.Lock()
        for _ in range(jobs):
            self._idle.put(None)

    def start(self, kind: str) -> None:
        """Start the workers and load the compiler for a kind of device, so that the first programs needn't wait."""
        for _ in range(self._jobs):
            self._threads.submit(self._ask, CompilerRequest(kind))

    def submit(self, program: Program, target: Target, deadline_s: float | None = None) -> Future[Binary]:
        """Start compiling a kernel. The future raises Rejected('compile', ...) or ToolchainError."""
        return self._threads.submit(self._compile, program, target, deadline_s)

    def submit_own(self, program: Program, target: Target, what: str) -> Future[Binary]:
        """Start compiling one of autotune's own programs, with a long deadline. The future raises ToolchainError."""
        return self._threads.submit(self._compile_own, program, target, what)

    @property
    def deadline_s(self) -> float:
        """The current time limit for one compilation, in seconds."""
        if self._fixed_deadline_s is not None:
            return self._fixed_deadline_s
        seconds = sorted(self._seconds)
        if len(seconds) < _SEEN:
            return FIRST_DEADLINE_S
        return max(LEAST_DEADLINE_S, DEADLINE_FACTOR * statistics.quantiles(seconds, n=10)[-1])

    def _compile_own(self, program: Program, target: Target, what: str) -> Binary:
        try:
            return self._compile(program, target, self._fixed_deadline_s or FIRST_DEADLINE_S)
        except Rejected as error:
            raise ToolchainError(
                f"{target.kind}: {what} cannot be compiled: {error.message}; check that the compiler works"
            ) from error

    def _compile(self, program: Program, target: Target, deadline_s: float | None = None) -> Binary:
        key = BinaryCache.key(program, target, self._compiler(target)) if self._cache else ""
        if self._cache and (found := self._cache.get(key)):
            return found
        started = time.perf_counter()
        binary = of_kind(self._ask(CompileRequest(program, target), deadline_s), Binary)
        seconds = time.perf_counter() - started
        self._seconds.append(seconds)
        if self._cache:
            self._cache.put(key, binary)
        return replace(binary, compile_us=1e6 * seconds)

    def _compiler(self, target: Target) -> str:
        """Return the name, version and flags of a target's compiler. Each kind of device is looked up once."""
        if target.kind not in self._compilers:
            self._compilers[target.kind] = compiler_identity(target)
        return self._compilers[target.kind]

    def _ask(self, request: CompileRequest | CompilerRequest, deadline_s: float | None = None) -> Reply:
        worker: Worker = self._idle.get() or Worker()
        with self._lock:
            self._busy.add(worker)
        alive = True
        try:
            return worker.ask(request, deadline_s or self.deadline_s)
        except WorkerLost as error:
            alive = False
            reason = "compiler_hang" if error.hung else "compiler_crash"
            raise Rejected(Outcome.COMPILE, reason, error.message) from None
        finally:
            with self._lock:
                self._busy.discard(worker)
            self._idle.put(worker if alive else None)

    def close(self) -> None:
        """Kill every compiler without waiting for pending compilations."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for worker in self._busy:
                worker.signal_end()
        self._threads.shutdown(wait=True)
        with contextlib.suppress(queue.Empty):
            while True:
                idle = self._idle.get_nowait()
                if idle is not None:
                    idle.kill()
