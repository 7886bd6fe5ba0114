"""Run a kernel under a sanitizer with few images, to find errors that a GPU tolerates.

On the CPU, the sanitizer is `host:check`, which checks the same text compiled as C++. On a GPU, it is
compute-sanitizer, which checks the machine code.
"""

from __future__ import annotations

import pickle
import queue
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from autotune.checking.findings import false_alarm, findings, finished
from autotune.compilation.compile import Binary
from autotune.errors import AutotuneError, Rejected, StudyError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import relaunched
from autotune.family.source import KernelSource
from autotune.family.source_map import with_source_lines
from autotune.family.space import BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.tempdirs import temporary_folder
from autotune.trial import Outcome
from autotune.workers.profiled import Job

SMALL_N = (1, 9)
"""Numbers of images: 1, and an odd number larger than most kernels process at once."""
TOOLS = ("memcheck", "racecheck", "initcheck")
ALL_TOOLS = (*TOOLS, "synccheck")
"""The tools including synccheck, which only finds misused barriers and isn't run by exports."""
HOST_CHECK = "host:check"
CLEAN, FALSE_ALARM, FAULT, NOT_RUN = "clean", "false alarm", "fault", "not run"
_LINES: Mapping[str, tuple[str, ...]] = {"cuda": ("-lineinfo",)}
"""nvcc's option for line information, which doesn't change the machine code."""
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "memcheck": ("--padding", "1024", "--report-api-errors", "no"),  # the process itself reports failures of PyCUDA
    "racecheck": ("--racecheck-report", "analysis"),
    "initcheck": (),
    "synccheck": (),
}
_HOST_FLOPS = 2e8  # FLOP limit for a run on `host:check`; two cores compute 1e7 (matrix products) to 1e8 per second
_ONCE_FLOPS = 5e7  # a larger problem runs once, not once for each order of warps and blocks
_GPU_FLOPS = 1e11  # FLOP limit for a run under compute-sanitizer, which makes a kernel a thousand times slower
_DEADLINE_S = 300.0  # deadline of one tool on one kernel
_FAULTY = 86  # exit status if a tool found errors
_PORTS = 10  # number of ports, from --port on, that one compute-sanitizer may use
_FIRST_PORT = 49152
_SHOWN = 3  # maximum number of findings in a message


@dataclass(frozen=True, slots=True)
class Winner:
    """A kernel chosen for a layer, with the family that renders it."""

    name: str
    source: KernelSource
    bound: BoundTemplate
    """the recorded header of the family, bound to problem and device"""
    family: KernelTemplate | None = None
    """the family as installed now; messages name lines of the family's files if it still renders the same kernel"""

    @property
    def template(self) -> str:
        """The name of the kernel's family."""
        return self.source.config.template

    @property
    def runtime(self) -> str:
        """The names of the problem's run-time sizes."""
        return ", ".join(self.source.problem.operation.runtime)

    def with_source_lines(self, message: str) -> str:
        """Return a message about the kernel's text, with lines of the family's files."""
        if self.family is None:
            return message
        return with_source_lines(message, self.family, self.source, self.bound.device)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One tool's verdict on one kernel."""

    kernel: str
    tool: str
    """host:check, or one of ALL_TOOLS"""
    n: tuple[int, ...]
    """values of each run-time size, such as numbers of images"""
    word: str
    """clean | false alarm | fault | not run"""
    message: str = ""
    runtime: str = "n"
    """name of the run-time sizes"""

    def __str__(self) -> str:
        at = f" at {self.runtime} = {' and '.join(map(str, self.n))}" if self.n else ""
        but = "; not every size ran: " if self.word == CLEAN else ": "
        return f"{self.kernel}: {self.tool}{at}: {self.word}{but if self.message else ''}{self.message}"


class Sanitizer(Protocol):
    """A sanitizer that checks winners."""

    def check(self, winners: Sequence[Winner]) -> Iterator[Verdict]:
        """Yield a verdict for each winner and tool, in the order of the winners."""

    def close(self) -> None:
        """Release the sanitizer's resources."""


class HostCheck:
    """Runs kernels on the CPU under AddressSanitizer and UndefinedBehaviorSanitizer, in several orders of warps."""

    def __init__(self, evaluator: DeviceEvaluator) -> None:
        self._evaluator = evaluator

    def check(self, winners: Sequence[Winner]) -> Iterator[Verdict]:
        """Verify each kernel with few images."""
        compiled = [self._evaluator.compile(winner.source) for winner in winners]
        for winner, binary in zip(winners, compiled, strict=True):
            try:
                ready = binary.result()
            except Rejected as rejected:  # the host device supports less than a GPU's compiler
                yield self._verdict(winner, (), NOT_RUN, f"the host device cannot compile it: {rejected.message}")
            else:
                yield self._verified(winner, ready)

    def close(self) -> None:
        """Stop the worker and the compilers."""
        self._evaluator.close()

    def _verified(self, winner: Winner, binary: Binary) -> Verdict:
        ran: list[int] = []
        why = ""
        for n in SMALL_N:
            try:
                problem = winner.source.problem.with_each_runtime(n)
            except StudyError as error:
                why = str(error)
                continue
            if problem.flops > _HOST_FLOPS:
                why = f"{winner.runtime} = {n} would take too long on a CPU"
                continue
            try:
                source = _with_n(winner, n)
                self._evaluator.begin_layer(problem)
                self._evaluator.verify(source, binary, once=problem.flops > _ONCE_FLOPS)
            except Rejected as rejected:
                if rejected.outcome == Outcome.INVALID_CONFIG:
                    why = rejected.message
                    continue
                message = winner.with_source_lines(f"{rejected.reason}: {rejected.message}")
                return self._verdict(winner, (*ran, n), FAULT, message)
            except AutotuneError as error:
                why = str(error)
                continue
            ran.append(n)
        return self._verdict(winner, tuple(ran), CLEAN if ran else NOT_RUN, why)

    def _verdict(self, winner: Winner, n: tuple[int, ...], word: str, message: str) -> Verdict:
        return Verdict(winner.name, HOST_CHECK, n, word, message, winner.runtime)


class ComputeSanitizer:
    """Runs kernels under NVIDIA's compute-sanitizer on a GPU, with a process for each kernel and tool, `jobs`
    at once.
    """

    def __init__(
        self,
        program: Path,
        device: str,
        evaluator: DeviceEvaluator,
        jobs: int,
        tools: Sequence[str] = TOOLS,
    ) -> None:
        self._program, self._device, self._evaluator, self._jobs, self._tools = program, device, evaluator, jobs, tools
        self._slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(jobs):
            self._slots.put(slot)

    def check(self, winners: Sequence[Winner]) -> Iterator[Verdict]:
        """Compile each kernel with line numbers and run it under each tool."""
        compiled = []
        for winner in winners:
            program = winner.source.program
            lined = replace(program, flags=(*program.flags, *_LINES.get(self._evaluator.info.kind, ())))
            compiled.append(self._evaluator.compile(replace(winner.source, program=lined)))
        self._evaluator.refresh()  # so that no other process uses the device
        with ThreadPoolExecutor(self._jobs) as threads:
            asked = [
                threads.submit(self._checked, winner, tool, binary)
                for winner, binary in zip(winners, compiled, strict=True)
                for tool in self._tools
            ]
            try:
                for answered in asked:
                    yield answered.result()
            finally:  # Ctrl-C: cancel the kernels that have not started
                for waiting in asked:
                    waiting.cancel()

    def close(self) -> None:
        """Stop the compilers."""
        self._evaluator.close()

    def _checked(self, winner: Winner, tool: str, compiled: Future[Binary]) -> Verdict:
        sources, why = [], ""
        for n in SMALL_N:
            try:
                source = _with_n(winner, n)
            except AutotuneError as error:
                why = str(error)
                continue
            if source.problem.flops > _GPU_FLOPS:
                why = f"{winner.runtime} = {n} would take too long under {tool}"
            else:
                sources.append(source)
        ran = tuple(source.problem.runtime_size for source in sources)
        try:
            word, message = self._run(winner, tool, sources, compiled.result()) if sources else (NOT_RUN, why)
        except AutotuneError as error:
            word, message = NOT_RUN, str(error)
        return Verdict(winner.name, tool, () if word == NOT_RUN else ran, word, message or why, winner.runtime)

    def _run(self, winner: Winner, tool: str, sources: Sequence[KernelSource], binary: Binary) -> tuple[str, str]:
        """Run one tool on a kernel, and return the verdict's word and message."""
        slot = self._slots.get()
        with temporary_folder() as folder:
            job, log = Path(folder) / "job", Path(folder) / "log"
            job.write_bytes(
                pickle.dumps(Job(self._device, tuple((source, binary) for source in sources), first_round=False))
            )
            command = [
                *(str(self._program), "--tool", tool, "--log-file", str(log), "--error-exitcode", str(_FAULTY)),
                *("--target-processes", "application-only", "--port", str(_FIRST_PORT + _PORTS * slot)),
                *("--launch-timeout", "100", "--show-backtrace", "no", *_OPTIONS[tool]),
                *(sys.executable, "-m", "autotune.workers.profiled", str(job)),
            ]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DEADLINE_S)
            except subprocess.TimeoutExpired:
                return NOT_RUN, f"it did not end within {_DEADLINE_S:.0f} s"
            finally:
                self._slots.put(slot)
            said = log.read_text(errors="replace") if log.is_file() else ""
        return judged(winner, tool, said, done.returncode, f"{done.stdout}\n{done.stderr}")


def judged(winner: Winner, tool: str, log: str, status: int, words: str) -> tuple[str, str]:
    """Return a verdict's word and message.

    They depend on the tool's log, and on the exit status and output (`words`) of the process that it watched.
    """
    last = next((line.strip() for line in reversed(words.splitlines()) if line.strip()), "it printed nothing")
    if not finished(log):
        tail = [line.lstrip("= ") for line in log.splitlines() if line.strip("= ")]
        return NOT_RUN, f"the tool failed (status {status}): {tail[-1] if tail else last}"
    reasons: dict[str, None] = {}
    faults = []
    for found in findings(log):
        reason = false_alarm(found, winner.template, tool, winner.source.program.text)
        if reason:
            reasons[reason] = None
        else:
            faults.append(str(found))
    if faults:
        more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        return FAULT, winner.with_source_lines("; ".join(faults[:_SHOWN])) + more
    if status not in (0, _FAULTY):
        return FAULT, f"the kernel's process ended with status {status}: {last}"
    return (FALSE_ALARM, "; ".join(reasons)) if reasons else (CLEAN, "")


def _with_n(winner: Winner, n: int) -> KernelSource:
    """Return the kernel with n for each run-time size. Raises the same errors as `relaunched`."""
    bound, problem = winner.bound, winner.source.problem.with_each_runtime(n)
    return relaunched(winner.source, BoundTemplate(bound.template, problem, bound.device))
