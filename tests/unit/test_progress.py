"""Progress of a run: a bar with notices above it on a terminal, few lines in a pipe, and Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from autotune.cli.progress import network_state
from autotune.tuning.trial_log import Network
from tests.injected_faults import GOOD

from .tiny import Command

NOTICE = """
import time
from autotune.cli.output import for_people, note
from autotune.cli.progress import counting, stages
with for_people():
    with stages() as stage:
        stage("building")
        time.sleep(0.3)  # it is drawn by then
        note("memcheck: " + "not run " * 12)
    with counting("sanitize", 4) as tell:
        tell(3, "3 clean")
        note("a notice")
"""
NETWORK = """
from autotune.cli.progress import counting
from autotune.cli.output import for_people
with for_people(), counting("resnet50-fp16", 1440) as tell:
    tell(810, "1.331 ms, was 1.904 ms, floor 1.02 ms (23 of 24 layers)")
"""


LISTING = """
from autotune.cli.progress import observer
from autotune.cli.output import for_people
from autotune.tuning.trial_log import Network, Progress
network = Network(1000, 0, 0.0, 0.0, None, 0, 20000, 0.0, None, 1000, 0, ended=False)
with for_people(), observer() as observe:
    observe(Progress("many.l17", 0, 20, None, {}, 0.0, 0, ended=False, network=network, phase="listing"))
"""


FINALS = """
import time
from dataclasses import replace
from autotune.cli.progress import observer
from autotune.cli.output import for_people
from autotune.tuning.trial_log import Network, Progress
network = Network(2, 2, 20.0, 30.0, None, 40, 40, 9.0, None, searching=0, concluded=1, ended=False)
with for_people(), observer() as observe:
    searched = Progress("net.l2", 20, 20, None, {}, 9.0, 0, ended=False, network=network)
    observe(searched)
    observe(replace(searched, phase="finals"))
    time.sleep(1.3)
    observe(replace(searched, network=replace(network, concluded=2, ended=True), ended=True))
"""


def on_a_terminal(*words: str, columns: int = 80) -> str:
    """The standard error of a run on a terminal; standard output goes elsewhere."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, *words], stderr=theirs, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment
    ):
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # how reading a terminal ends
                break
    os.close(ours)
    return shown.decode()


def test_while_configs_are_listed_it_says_of_which_layer() -> None:
    shown = re.sub(r"\x1b\[[\d;?]*\w", "", on_a_terminal("-c", LISTING))
    assert re.search(r"many .*0/20000 listing configs of l17 ", shown), shown


def test_notices_stand_above_a_live_line_and_are_broken_between_words() -> None:
    shown = on_a_terminal("-c", NOTICE)
    assert re.search(r"building \.\.\.\r\x1b\[2Kmemcheck: (not run )+(not )?\r\n(not )?run", shown), shown
    assert re.search(r"\x1b\[2Ka notice *\r\n", shown), shown
    assert re.search(r"sanitize.*3/4.*3 clean", re.sub(r"\x1b\[[\d;?]*\w", "", shown))


def test_a_notice_is_as_wide_as_the_terminal_that_shows_it() -> None:
    assert re.search(r"memcheck: (not run ){12}\r\n", on_a_terminal("-c", NOTICE, columns=160))


def test_a_networks_gain_is_shown_once_every_layer_has_a_kernel() -> None:
    words = [
        network_state(Network(2, timed, now_us, start_us, 1e3, 9, 40, 1.0, None, 2, 0, ended=False))
        for timed, now_us, start_us in ((0, 0.0, 0.0), (1, 8e3, 9e3), (2, 2e4, 3e4))
    ]
    assert words == ["none correct yet", "8 ms for 1 of 2 layers", "20 ms, was 30 ms, floor 1 ms"]


def test_finals_have_a_bar_and_a_clock_that_goes_on() -> None:
    shown = re.sub(r"\x1b\[[\d;?]*\w", "", on_a_terminal("-c", FINALS, columns=120))
    assert re.search(r"finals \S+ +1/2 +l2 +0:00:01", shown), shown
    assert re.search(r"net +\S+ 40/40 .* 0:00:01 .*\r?\n.*finals \S+ +2/2", shown), shown


def test_long_words_leave_count_and_times_whole_at_80_columns() -> None:
    shown = re.sub(r"\x1b\[[\d;?]*\w", "", on_a_terminal("-c", NETWORK))
    assert re.search(r"resnet50-fp16 \S+ +810/1440 1\.331 ms, was 1\.904 ms, \S.*… \d:\d\d:\d\d ", shown), shown


def test_into_a_pipe_a_long_run_says_little(autotune: Command, filled: Path) -> None:
    done = autotune("retime", "small", "--device", "null", "--best", 2)
    said = [line for line in done.err.splitlines() if line.startswith("retime: ")]
    assert len(said) == 1, "it was quick"
    assert re.fullmatch(r"retime: 0/\d", said[0])
    assert autotune("retime", "small", "--device", "null", "-q").err == ""


@pytest.mark.cxx
def test_ctrl_c_ends_a_check_in_a_line(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "autotune", "check", str(GOOD), "--device", "host", "--full"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True) as check:
        assert check.stderr is not None
        _device, first = check.stderr.readline(), check.stderr.readline()
        began = time.monotonic()
        os.killpg(check.pid, signal.SIGINT)
        said = check.stderr.read()
    assert first == "shared_tile: 0, compiling the first\n"
    assert (check.returncode, "Traceback" in said) == (130, False), said
    assert time.monotonic() - began < 20
