"""Open devices, print messages, and handle Ctrl-C in commands that measure."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Generator, Set
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, NoReturn

from autotune.api.device_names import binary_cache, evaluator_of
from autotune.api.interrupts import orderly_interrupts
from autotune.cli.options import say_device
from autotune.cli.output import note
from autotune.cli.progress import observer
from autotune.devices.driver_api import has_libcuda
from autotune.errors import AutotuneError
from autotune.evaluation.evaluator import DeviceEvaluator, Evaluator
from autotune.workers.device_worker import DEADLINES, Deadlines

if TYPE_CHECKING:
    from autotune.api.run import Caller
    from autotune.store import Store


def command_line(study: str) -> Caller:
    """Return the caller for a run started by a command, which prints to standard error."""
    from autotune.api.run import Caller

    waiting: list[str] = []

    def wait(store: Store, interrupted: bool) -> None:
        if interrupted:
            end_interrupted(f"stopped waiting for the process that tunes {study} into {store.path}")
        if not waiting:
            waiting.append(f"{study}: another process is tuning it into {store.path}; waiting for it to end")
            note(waiting[0])

    return Caller(wait, observer, say_device, note, stopping_on_interrupt)


def open_evaluator(name: str | None, jobs: int, deadlines: Deadlines = DEADLINES) -> Evaluator:
    """Open the evaluator of the named device or, without a name, of the first CUDA device or else the host.

    Prints which device was chosen and why, and warns if other programs are using the device.
    """
    return evaluator_of(name, jobs, deadlines, say=say_device, warn=note)


def present_devices(kinds: Set[str]) -> Generator[tuple[str, DeviceEvaluator]]:
    """Open every device of these kinds (cuda, host) in turn, and yield its name and evaluator.

    Each device is closed before the next one is opened. If the first CUDA device or the host can't be opened, the
    reason is printed on standard error.
    """
    number = 0
    while "cuda" in kinds and has_libcuda() and (evaluator := _try_open(f"cuda:{number}", say=number == 0)):
        with closing(evaluator):
            yield f"cuda:{number}", evaluator
        number += 1
    if "host" in kinds and (evaluator := _try_open("host", say=True)):
        with closing(evaluator):
            yield "host", evaluator


def _try_open(name: str, *, say: bool) -> DeviceEvaluator | None:
    try:
        return DeviceEvaluator([name], 1, cache=binary_cache())
    except AutotuneError as error:
        if say:
            note(str(error))
        return None


INTERRUPTED = 128 + signal.SIGINT
"""exit code after Ctrl-C, as in a shell"""


def stopping_on_interrupt() -> AbstractContextManager[Callable[[], bool]]:
    """Handle Ctrl-C: the first one prints a message and asks for an orderly end, the second one ends the process
    immediately.
    """
    message = "\nfinishing the running trial; press Ctrl-C again to stop immediately"
    return orderly_interrupts(lambda: note(message))


def end_interrupted(left: str, *, resumes: bool = True) -> NoReturn:
    """Print one line with what is left to do and the command that continues, and exit. Called after Ctrl-C."""
    arguments = [word for word in sys.argv[1:] if word != "--fresh"]  # because --fresh would start over
    how = "resume" if resumes else "begin again"
    note(f"autotune: interrupted; {left}; to {how}: {shlex.join(['autotune', *arguments])}")
    sys.exit(INTERRUPTED)
