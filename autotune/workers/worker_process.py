"""A worker process's main loop, which compiles programs and passes other requests on to `device_server`.

Started as `python -m autotune.workers.worker_process FD`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection

from autotune.compilation.compile import Binary
from autotune.devices.backends import compile_program, load_compiler
from autotune.errors import AutotuneError
from autotune.tempdirs import remove
from autotune.workers.compiler_messages import Bug, CompileRequest, CompilerRequest

_COMPILER_NICE = 10


class Compiler:
    """Compiles at a lower priority than the processes that time and propose kernels."""

    def __init__(self) -> None:
        self._compiles = False

    def answer(self, request: CompilerRequest | CompileRequest) -> Binary | None:
        """Load a compiler, or compile a program and return its binary."""
        if not self._compiles:
            self._compiles = True
            os.nice(_COMPILER_NICE)
        match request:
            case CompilerRequest(kind):
                load_compiler(kind)
                return None
            case CompileRequest(program, target):
                return compile_program(program, target)


def serve(connection: Connection) -> None:
    """Answer requests until the parent closes the connection."""
    compiler, devices = Compiler(), None
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        reply: object
        try:
            if isinstance(request, (CompilerRequest, CompileRequest)):
                reply = compiler.answer(request)
            else:
                from autotune.workers.device_server import WorkerServer  # not needed by compilers

                devices = devices or WorkerServer(time.perf_counter)
                reply = devices.answer(request)
        except AutotuneError as error:
            reply = error
        except Exception:  # noqa: BLE001 - reported to the parent, which raises it
            reply = Bug(traceback.format_exc())
        connection.send(reply)


def _end_with_parent(connection: Connection, folder: str) -> None:
    """Kill this process and all its child processes when the parent closes the connection or is killed.

    The folder for temporary files is removed first, because afterwards no process is left to do so.

    A thread waits for the end of the connection, because a kernel in an endless loop keeps the main thread from
    handling signals. PR_SET_PDEATHSIG doesn't work, because it fires when the parent's thread that started the worker
    ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hangup = select.poll()
    hangup.register(connection.fileno(), 0)  # hang-ups are always reported

    def wait() -> None:
        hangup.poll()
        remove(folder)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    parent = Connection(int(sys.argv[1]))
    _end_with_parent(parent, sys.argv[2])
    serve(parent)
    remove(sys.argv[2])  # the thread that waits for the parent may remove it first
    os._exit(0)
