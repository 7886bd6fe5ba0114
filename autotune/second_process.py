"""A second process that works beside this one, on another core: values go there and come back over a socket."""

from __future__ import annotations

import json
import os
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
from pathlib import Path
from typing import Any, NoReturn

from autotune.errors import AutotuneError
from autotune.temporary import remove
from autotune.writing import LOGS

Work = Callable[..., Iterator[Any]]
"""What it does, a function of a module: of what is sent to it, an iterable, and more arguments."""


class HelperLost(AutotuneError):
    """The process ended amid its work."""


@dataclass(frozen=True, slots=True)
class _End:
    """What ends the values of either side: none, or the traceback of a bug."""

    bug: str = ""


@dataclass(frozen=True, slots=True)
class _Ready:
    """It has loaded what it needs."""


@dataclass(frozen=True, slots=True)
class _Inherited:
    """A file or folder that it removes where the first process is killed."""

    path: Path


class SecondProcess:
    """The process, seen from this one."""

    def __init__(self, connection: Connection, process: subprocess.Popen[bytes]) -> None:
        self._connection, self._process = connection, process
        self._ready: bool | None = None

    def would_begin(self) -> bool:
        """Whether `begin` need not wait for it to start."""
        return self._ready is not None or self._connection.poll()

    def begin(self, work: Work, *arguments: object) -> bool:
        """Have it do some work, once the work before has ended. False where it did not start, or has ended."""
        if self._ready is None:
            try:
                self._ready = isinstance(self._connection.recv(), _Ready)
            except (EOFError, OSError):
                self._ready = False
        return self._ready and self.send((work, arguments))

    def inherit(self, path: Path) -> None:
        """Name a file or folder that it is to remove where this process is killed."""
        self.send(_Inherited(path))

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
                raise HelperLost(f"a process that helped here {self._ended()}; run this again") from None
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
        return f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"


@contextmanager
def second_process(module: str) -> Iterator[SecondProcess | None]:
    """Such a process, which loads a module while this one goes on; it ends with the block.

    None where there is one core, or no process can be had.
    """
    with ExitStack() as stack:
        begun = None
        if len(os.sched_getaffinity(0)) > 1 and sys.executable:
            with suppress(OSError):  # too many processes or open files
                begun = _begun(module, stack)
        yield begun


def _begun(module: str, stack: ExitStack) -> SecondProcess:
    ours, theirs = socket.socketpair()
    with theirs:
        connection = stack.enter_context(Connection(ours.detach()))
        folders = [folder for folder in sys.path if isinstance(folder, str)]  # others lead nowhere
        words = [str(theirs.fileno()), module, json.dumps(folders)]
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # what it has to say comes over the socket
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # a terminal's Ctrl-C ends this process, and with the connection the other
        )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return SecondProcess(connection, process)


_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[3])  # modules are found where the first process finds them
from autotune.second_process import serve
serve(int(sys.argv[1]), sys.argv[2])
"""


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


def serve(descriptor: int, module: str) -> NoReturn:
    """Do, in the second process, what the first asks for, until it is gone or something is wrong."""
    warnings.simplefilter("ignore")  # the other process reads the same, and warns
    import_module(module)
    connection = Connection(descriptor)
    inherited: list[Path] = []
    try:
        connection.send(_Ready())
        _work(connection, inherited)
    except (EOFError, OSError):  # it is gone
        with suppress(EOFError, OSError):
            while True:  # what it had sent before
                value = connection.recv()
                inherited += [value.path] if isinstance(value, _Inherited) else []
        for path in inherited:
            _remove(path)
    os._exit(0)


def _work(connection: Connection, inherited: list[Path]) -> None:
    while True:
        request = connection.recv()
        if isinstance(request, _Inherited):
            inherited.append(request.path)
            continue
        work, arguments = request
        sent = _Sent(connection)
        try:
            for value in work(sent, *arguments):
                connection.send(value)
            end: object = _End()
        except Exception as error:
            if sent.gone or isinstance(error, BrokenPipeError | ConnectionResetError):
                raise EOFError from error
            end = error if isinstance(error, AutotuneError) else _End(traceback.format_exc())
        connection.send(end)
        if end != _End():  # what was sent and not read would be taken for work
            return


class _Sent:
    """What the first process sends, to its end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.gone = False

    def __iter__(self) -> Iterator[Any]:
        try:
            while not isinstance(value := self._connection.recv(), _End):
                yield value
        except (EOFError, OSError):  # also amid a value
            self.gone = True
            raise


def _remove(path: Path) -> None:
    """Remove a file with what SQLite keeps beside it, or a folder."""
    with suppress(OSError):
        for suffix in ("", *LOGS):
            beside = Path(f"{path}{suffix}")
            if beside.is_dir():
                remove(str(beside))
            else:
                beside.unlink(missing_ok=True)
