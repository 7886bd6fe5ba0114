"""A second process: what it yields, what it raises, and that it ends with the first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.errors import StudyError
from autotune.second_process import HelperLost, in_turns, second_process

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core, on which none is begun")

HERE = __name__


def doubled(given: Iterator[int], more: int) -> Iterator[int]:
    """Of each value twice as much, and more."""
    return (2 * value + more for value in given)


def wrong(_: object, kind: str) -> Iterator[int]:
    """One value, and then an error."""
    yield 1
    raise StudyError("study.toml: 7 is none") if kind == "ours" else ZeroDivisionError(kind)


def process_id(_: object) -> Iterator[int]:
    """The process's own."""
    yield os.getpid()


def waits(given: Iterator[int]) -> Iterator[int]:
    """The process's id, and then what is given."""
    yield os.getpid()
    yield from given


def test_values_go_there_and_come_back_job_after_job() -> None:
    with second_process(HERE) as other:
        assert other is not None
        for more in (0, 5):
            assert other.begin(doubled, more)
            assert all(other.send(value) for value in range(100))
            other.send_end()
            assert list(other.received()) == [2 * value + more for value in range(100)]


@pytest.mark.parametrize("killed", [False, True])
def test_it_would_begin_at_once_when_it_has_started_or_never_will(killed: bool) -> None:
    with second_process(HERE) as other:
        assert other is not None
        assert not other.would_begin()
        if killed:
            other._process.kill()
        until = time.monotonic() + 60
        while not other.would_begin() and time.monotonic() < until:
            time.sleep(0.001)
        assert other.begin(process_id) != killed


def test_values_take_turns_to_the_end_of_both() -> None:
    assert list(in_turns(iter("ace"), iter("bd"))) == list("abcde")
    assert list(in_turns(iter("ac"), iter("bd"))) == list("abcd")
    assert list(in_turns(iter("abc"), iter(()))) == list("abc")


def test_what_is_raised_there_is_raised_here() -> None:
    with second_process(HERE) as other:
        assert other is not None
        other.begin(wrong, "ours")
        found = other.received()
        assert next(found) == 1
        with pytest.raises(StudyError, match=r"^study.toml: 7 is none$"):
            next(found)
        assert not all(other.send(bytes(1 << 20)) for _ in range(3))  # it has ended
    with second_process(HERE) as other:
        assert other is not None
        other.begin(wrong, "a bug")
        with pytest.raises(RuntimeError, match="ZeroDivisionError: a bug"):
            list(other.received())


def test_one_that_is_killed_is_told_of() -> None:
    with second_process(HERE) as other:
        assert other is not None
        other.begin(waits)
        found = other.received()
        os.kill(next(found), signal.SIGKILL)
        with pytest.raises(HelperLost, match="was killed by signal 9; run this again"):
            next(found)


def test_it_ends_with_the_block_and_with_the_first_process() -> None:
    with second_process(HERE) as other:
        assert other is not None
        other.begin(process_id)
        (number,) = other.received()
        assert is_running(number)
    assert not is_running(number)
    script = (
        "import os, signal\nfrom autotune.second_process import second_process\nfrom tests.unit.test_second_process "
        "import waits\nwith second_process('tests.unit.test_second_process') as other:\n    other.begin(waits)\n"
        "    print(next(other.received()), flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    until = time.monotonic() + 20
    while is_running(int(done.stdout)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_running(int(done.stdout))


def is_running(number: int) -> bool:
    """Whether there is a process that has not ended."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_on_one_core_there_is_none() -> None:
    script = (
        "import os\nfrom autotune.second_process import second_process\nos.sched_setaffinity(0, [min("
        "os.sched_getaffinity(0))])\nwith second_process('autotune.errors') as other:\n    print(other)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
