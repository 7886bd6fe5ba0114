"""A command under attack ends in time, in little memory, without a traceback, and with one line that says why."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path

from tests.fork_server import ForkServer
from tests.unit.tiny import Finished

WITHIN_S = 5.0
"""of CPU time, because wall time depends on the load of the machine"""
WALL_S = 60.0
"""in addition to that"""
MEMORY_BYTES = 1 << 30


def attacked(
    fork_server: ForkServer,
    folder: Path,
    *words: object,
    env: Mapping[str, str] | None = None,
    within_s: float = WITHIN_S,
    memory_bytes: int = MEMORY_BYTES,
) -> Finished:
    """Run `autotune WORDS...` in `folder`.

    Raises AssertionError if it takes more, prints a traceback or leaves a temporary folder. `within_s` is CPU time; on
    a busy machine the command may take WALL_S more.
    """
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    run = fork_server.start(folder, *words, env={"TMPDIR": str(temporary), **(env or {})}, memory_bytes=memory_bytes)
    until = time.monotonic() + within_s + WALL_S
    while not run.ended and run.cpu_s < within_s and time.monotonic() < until:
        time.sleep(0.01)
    late = not run.ended
    if late:
        run.send_signal(signal.SIGKILL)
    finished = run.finish()
    assert not late, f"still running after {within_s:g} s of CPU time: {words}: {finished.err}"
    assert "Traceback" not in finished.err, finished.err
    left = [path.name for path in temporary.iterdir()]
    assert not left, f"left in the temporary folder: {left}"
    return finished


def refused(finished: Finished, *parts: str, code: int = 1) -> str:
    """The one line with which a command was refused, among notes and the device's line; it contains these parts."""
    beside = ("device ", "autotune: note: ")
    lines = [line for line in finished.err.splitlines() if not line.startswith(beside)]
    assert finished.code == code, finished
    assert len(lines) == 1, finished.err
    for part in parts:
        assert part in lines[0], lines[0]
    return lines[0]
