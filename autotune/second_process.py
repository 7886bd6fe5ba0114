"""A second process that works beside this one, on another core: values go there and come back over a socket.

Run as `python -m autotune.second_process FD MODULE`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from autotune.errors import AutotuneError

Work = Callable[..., Iterator[Any]]
"""What it does, a function of a module: of an iterator of what is sent to it, and more arguments."""


class HelperLost(AutotuneError):
    """The process ended before its work did."""


@dataclass(frozen=True, slots=True)
class _End:
    """What ends the values of either side: none, or the traceback of a bug."""

    bug: str = ""


class SecondProcess:
    """The process, seen from this one."""

    def __init__(self, connection: Connection, process: subprocess.Popen[bytes]) -> None:
        self._connection, self._process = connection, process

    def begin(self, work: Work, *arguments: object) -> None:
        """Have it do some work, once the work before has ended."""
        self.send((work, arguments))

    def send(self, value: object) -> bool:
        """Send a value. False for a process that has ended, of which `received` tells."""
        try:
            self._connection.send(value)
        except OSError:
            return False
        return True

    def send_end(self) -> None:
        """Say that there are no more."""
        self.send(_End())

    def received(self) -> Iterator[Any]:
        """What it yields. Raises the AutotuneErrors that it raises, HelperLost where it was killed."""
        while True:
            try:
                value = self._connection.recv()
            except (EOFError, OSError):
                raise HelperLost(f"a process that helped here {self._ended()}; is there memory for two?") from None
            if isinstance(value, AutotuneError):
                raise value
            if not isinstance(value, _End):
                yield value
            elif value.bug:
                raise RuntimeError(f"in the second process:\n{value.bug}")
            else:
                return

    def _ended(self) -> str:
        code = self._process.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


@contextmanager
def second_process(module: str) -> Iterator[SecondProcess | None]:
    """Such a process, which loads a module while this one goes on; it ends with the block.

    None where there is one core, or no process can be had.
    """
    with ExitStack() as stack:
        begun = None
        if len(os.sched_getaffinity(0)) > 1:
            with suppress(OSError):  # too many processes or open files
                begun = _begun(module, stack)
        yield begun


def _begun(module: str, stack: ExitStack) -> SecondProcess:
    ours, theirs = socket.socketpair()
    with theirs:
        connection = stack.enter_context(Connection(ours.detach()))
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune.second_process", str(theirs.fileno()), module],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # what it has to say comes over the socket
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # a terminal's Ctrl-C ends this process, and with the connection the other
        )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return SecondProcess(connection, process)


def in_turns(one: Iterator[Any], other: Iterator[Any]) -> Iterator[Any]:
    """The first of one, the first of the other, the second of one and so on; `other` ends with `one` or before."""
    for value in one:
        yield value
        yield from _next(other)
    yield from other


def _next(values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        yield value
        return


def serve(connection: Connection) -> None:
    """Do, in the second process, what the first asks for, until it is gone or something is wrong."""
    try:
        while True:
            work, arguments = connection.recv()
            for value in work(_sent(connection), *arguments):
                connection.send(value)
            connection.send(_End())
    except EOFError:  # it is gone
        return
    except AutotuneError as error:
        connection.send(error)
    except Exception:  # noqa: BLE001 - the other process raises it
        connection.send(_End(traceback.format_exc()))


def _sent(connection: Connection) -> Iterator[Any]:
    while not isinstance(value := connection.recv(), _End):
        yield value


if __name__ == "__main__":
    this = import_module("autotune.second_process")  # whose classes the values are of, not this copy's
    warnings.simplefilter("ignore")  # the other process reads the same, and warns
    import_module(sys.argv[2])
    with suppress(OSError):
        this.serve(Connection(int(sys.argv[1])))
    os._exit(0)
