"""CPU time as the limit of a check: it does not grow while other processes run, and includes child processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from autotune.checking.check import Stopwatch
from autotune.devices.host_machine import process_seconds, tree_seconds

WORK = "import time\nwhile time.process_time() < 0.2: pass"


def test_the_work_of_a_process_that_has_ended_counts() -> None:
    took = Stopwatch(lambda: tree_seconds(os.getpid()))
    grandchild = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORK!r}])"
    subprocess.run([sys.executable, "-c", grandchild], check=True)
    assert took.seconds > 0.15


def test_waiting_is_no_time() -> None:
    sleeping = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        took = Stopwatch(lambda: process_seconds(sleeping.pid))
        time.sleep(0.3)
        assert took.seconds < 0.2
    finally:
        sleeping.communicate(b"\n")
    assert process_seconds(sleeping.pid) == 0.0
