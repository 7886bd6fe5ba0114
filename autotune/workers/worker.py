"""The parent's handle on a worker process, and the requests and replies that they exchange.

The child process runs `worker_process`. If a kernel crashes, hangs or poisons the CUDA context, only the worker process
ends. Requests and replies are pickled and sent over a private socket. Tensors are never sent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeVar

from autotune.compilation.compile import MAX_MESSAGE, Binary
from autotune.devices.device import Baseline, DeviceInfo, Environment
from autotune.devices.host_machine import process_seconds
from autotune.errors import AutotuneError
from autotune.family.source import KernelSource
from autotune.measurement.calibrate import Calibration
from autotune.measurement.dispatcher_check import Choices, ChoicesRequest
from autotune.measurement.end_to_end_timer import EndToEndRequest, EndToEndTiming
from autotune.problem import Problem
from autotune.tempdirs import temporary_folder
from autotune.trial import ErrorStats, Measured, Timing
from autotune.workers.compiler_messages import Bug, CompileRequest, CompilerRequest

T = TypeVar("T")
MOST_PASSES = 32  # maximum number of passes in one sample of a short kernel
COPIES_BYTES = 1 << 30  # maximum memory for copies of a layer's arrays, for samples of several passes


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Open a device. Answer: Opened."""

    device: str
    runtime: Binary | None = None
    """the compiled `runtime_program` for this kind of device, so that no worker compiles it again"""
    first: bool = True
    """whether to measure other programs' use of the device; False if a worker of this process has just used the device
    """


@dataclass(frozen=True, slots=True)
class Opened:
    """An open device's identity and environment."""

    info: DeviceInfo
    environment: Environment


@dataclass(frozen=True, slots=True)
class LayerRequest:
    """Make a layer's test data and reference, keeping the data of other layers. Answer: None."""

    problem: Problem
    check: Binary
    without: tuple[Problem, ...] = ()
    """layers whose data is freed first"""


@dataclass(frozen=True, slots=True)
class EvaluateRequest:
    """Load, verify and time a kernel on the layer's data. Answer: Measured or Skipped."""

    source: KernelSource
    binary: Binary
    cache: str
    best_us: float | None
    """median of the best known kernel, microseconds; infinite if there is none. A kernel that is far slower than this
    median, or than the worker's own best, is not timed to the end. None: every kernel is timed to the end
    """
    behind: bool = False
    """whether the request was sent while another kernel was running; the request is skipped if that kernel failed"""


@dataclass(frozen=True, slots=True)
class Skipped:
    """The reply for a kernel that didn't run because the previous one failed."""


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Load and verify a kernel on the layer's data. Answer: ErrorStats."""

    source: KernelSource
    binary: Binary
    once: bool = False
    """run the kernel only once, on normal data"""


@dataclass(frozen=True, slots=True)
class SomeBlocksRequest:
    """Load a kernel and run some of its blocks on zeros. Answer: None."""

    source: KernelSource
    binary: Binary
    large: tuple[KernelSource, ...] = ()
    """the kernel with arrays of about the same size"""
    small: tuple[KernelSource, ...] = ()
    """the kernel with far smaller arrays"""


@dataclass(frozen=True, slots=True)
class FinalsRequest:
    """Time one layer's contenders interleaved, in a random order each round. Answer: FinalsTimings."""

    kernels: tuple[tuple[KernelSource, Binary], ...]
    baselines: tuple[Baseline, ...]
    cache: str
    budget_s: float
    seed: int
    libraries: tuple[tuple[str, KernelSource], ...] = ()
    """paths of exported libraries, each with the kernel that was exported; the libraries are verified first"""


@dataclass(frozen=True, slots=True)
class FinalsTimings:
    """The timings for each kind of contender, in the order of the request. Sample i was taken in round i.

    A contender that is far behind has no samples from later rounds.
    """

    kernels: tuple[Timing, ...]
    baselines: tuple[Timing | str, ...] = ()
    """timings of baselines, or the reason why a baseline cannot run the layer"""
    libraries: tuple[Timing, ...] = ()
    again: Timing | None = None
    """a second timing of the first kernel at the same addresses, if libraries take part"""


@dataclass(frozen=True, slots=True)
class CalibrateRequest:
    """Measure the device's rates. Answer: Calibration."""

    binary: Binary


@dataclass(frozen=True, slots=True)
class DependenceRequest:
    """Run an operation's NumPy reference on these problems. Answer: warnings about the operation's declaration."""

    problems: tuple[Problem, ...]


DeviceRequest = (
    OpenRequest
    | LayerRequest
    | EvaluateRequest
    | VerifyRequest
    | SomeBlocksRequest
    | FinalsRequest
    | CalibrateRequest
    | EndToEndRequest
    | ChoicesRequest
    | DependenceRequest
)
Request = CompileRequest | CompilerRequest | DeviceRequest
Reply = (
    Binary
    | Opened
    | Measured
    | Skipped
    | ErrorStats
    | FinalsTimings
    | Calibration
    | EndToEndTiming
    | Choices
    | tuple[str, ...]
    | None
)


def of_kind(reply: Reply, kind: type[T]) -> T:
    """Return the reply, typed as the record that answers the request."""
    assert isinstance(reply, kind)  # noqa: S101 - each request has one kind of answer
    return reply


_MAX_REPORT = 4 * MAX_MESSAGE  # characters of a sanitizer's report, which `device_worker.explained` turns into one line


class WorkerLost(Exception):
    """The worker died or missed the deadline (`hung`). If it died, the message ends with its last output."""

    def __init__(self, message: str, *, hung: bool) -> None:
        super().__init__(message)
        self.message = message
        self.hung = hung


class WorkerBug(Exception):
    """The worker raised an exception other than AutotuneError, which is a bug in autotune. The message is the
    traceback.
    """


class Worker:
    """A child process that answers requests. It has its own process group and is killed together with its children.

    The worker and its compilers write temporary files to a folder that is removed when the worker ends.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        with contextlib.ExitStack() as begun:  # undone if a later step fails
            folder = begun.enter_context(temporary_folder())  # removed last: removing it opens files, perhaps too many
            ours, theirs = socket.socketpair()
            begun.enter_context(theirs)
            begun.enter_context(ours)
            self._output = begun.enter_context(tempfile.TemporaryFile(prefix="autotune-"))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "autotune.workers.worker_process", str(theirs.fileno()), folder],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, **(environ or {}), "TMPDIR": folder},
            )
            self._begun = begun.pop_all()  # released with the process
        theirs.close()
        self._connection = Connection(ours.detach())
        self._sending = threading.Lock()

    @property
    def cpu_seconds(self) -> float:
        """CPU time used by the worker process, seconds."""
        return process_seconds(self._process.pid)

    def ask(self, request: Request, deadline_s: float) -> Reply:
        """Send a request and wait for the answer. Raises the same errors as `receive`."""
        self.send(request)
        return self.receive(deadline_s)

    def send(self, request: Request) -> None:
        """Send a request, which the worker answers after any earlier ones. If the worker is gone, `receive` raises."""
        with self._sending, contextlib.suppress(OSError):
            self._connection.send(request)

    def receive(self, deadline_s: float) -> Reply:
        """Wait for the answer to the oldest request.

        Raises the worker's own error (Rejected or another AutotuneError), WorkerBug for any other exception in the
        worker, or WorkerLost after killing the worker.
        """
        try:
            if not self._connection.poll(deadline_s):
                self.kill()
                raise WorkerLost(f"no answer within {deadline_s:.0f} s", hung=True)
            reply = self._connection.recv()
        except (EOFError, OSError):
            raise WorkerLost(self._last_output(), hung=False) from None
        if isinstance(reply, AutotuneError):
            raise reply
        if isinstance(reply, Bug):
            raise WorkerBug(reply.traceback)
        answer: Reply = reply
        return answer

    def signal_end(self) -> None:
        """Kill the worker and all its child processes without waiting. A pending `receive` raises WorkerLost."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the worker and all its child processes, wait for it to end, and release its resources."""
        self.signal_end()
        self._process.wait()
        self._begun.close()
        with self._sending:  # a pending send fails at once, because the worker is gone
            self._connection.close()

    def _last_output(self) -> str:
        """Return a message that says how the worker ended, followed by its last output."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = 0
        end = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        self._output.seek(0)
        output = self._output.read().decode(errors="replace").strip()
        self.kill()
        most = _MAX_REPORT if "Sanitizer" in output else MAX_MESSAGE
        return f"worker {end}" + (f": {output[:most]}" if output else "")
