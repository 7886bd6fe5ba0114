"""Start `autotune` in separate processes quickly, by forking a process that has already imported it.

A run is a normal process with its own folder, environment, streams and exit status. It only saves the second that
importing and parsing the shipped families take. Processes that it starts are started normally.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.unit.tiny import Finished

ROOT = Path(__file__).parents[1]
_MESSAGE_BYTES = 1 << 17


class ForkedRun:
    """A running `autotune WORDS...`."""

    def __init__(self, fork_server: ForkServer, number: int, out: IO[str], err: IO[str]) -> None:
        self.number = number
        self.err = err
        """its standard error, to be read line by line"""
        self._server = fork_server
        self._out = out
        self.done = False
        """whether its end was seen: another process may have its number afterwards"""

    @property
    def ended(self) -> bool:
        """Whether it has ended, normally or by a signal."""
        return self._status[0] == "Z"

    @property
    def cpu_s(self) -> float:
        """CPU time of the process and of its children that have ended."""
        return sum(map(int, self._status[11:15])) / os.sysconf("SC_CLK_TCK")

    @property
    def _status(self) -> list[str]:
        """The fields from the state on (proc(5), /proc/PID/stat)."""
        return Path(f"/proc/{self.number}/stat").read_text().rpartition(")")[2].split()

    def wait_for(self, words: str) -> None:
        """Wait until a line of its standard error begins with these words, or until it ends."""
        while (line := self.err.readline()) and not line.startswith(words):
            pass

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.number, number)

    def kill(self) -> None:
        """Kill it as the kernel's out-of-memory killer would."""
        self.send_signal(signal.SIGKILL)
        self.finish()

    def finish(self) -> Finished:
        """Wait for its end; returns its exit status, negative for a signal."""
        err = self.err.read()
        self.err.close()
        code = self._server.ask({"wait": self.number})
        self.done = True
        self._out.seek(0)
        out = self._out.read()
        self._out.close()
        return Finished(code, out, err)


class ForkServer:
    """The process that forks the runs."""

    def __init__(self, within: Sequence[str] = ()) -> None:
        """`within` are words before its own command: a program that runs it with a changed view of the system."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [*within, sys.executable, "-m", __name__, str(theirs.fileno())]
        self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def start(
        self,
        folder: Path,
        *words: object,
        env: Mapping[str, str] | None = None,
        out: int | None = None,
        err: int | None = None,
        file_bytes: int | None = None,
        memory_bytes: int | None = None,
    ) -> ForkedRun:
        """Start a run; `out` and `err` are descriptors for its standard output and standard error.

        `file_bytes` is the largest size of a file, `memory_bytes` the most memory that the run may map in addition to
        what it starts with.
        """
        kept = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the run
        reader, writer = os.pipe()
        request = {
            "folder": str(folder),
            "words": [str(word) for word in words],
            "environ": {**os.environ, **(env or {})},
            "file_bytes": file_bytes,
            "memory_bytes": memory_bytes,
        }
        number = self.ask(request, [kept.fileno() if out is None else out, writer if err is None else err])
        os.close(writer)
        return ForkedRun(self, number, kept, os.fdopen(reader))

    def run(self, folder: Path, *words: object, env: Mapping[str, str] | None = None) -> Finished:
        """A run from its start to its end."""
        return self.start(folder, *words, env=env).finish()

    def seen(self, path: Path) -> Path:
        """The path outside for a path that the runs see, which may be mounted."""
        return Path(f"/proc/{self._process.pid}/root", *path.parts[1:])

    def ask(self, request: Mapping[str, object], streams: Sequence[int] = ()) -> int:
        """The number of a started process, or the exit status of one that ended."""
        socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
        return int(self._socket.recv(_MESSAGE_BYTES))

    def close(self) -> None:
        """Stop the server; its runs must have ended."""
        self._socket.close()
        self._process.wait()


def serve(requests: socket.socket) -> None:
    """Fork a run for each request, and answer with its exit status."""
    while True:
        message, streams, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 2)
        if not message:
            return
        request = json.loads(message)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                requests.close()
                _limit(request["file_bytes"], request["memory_bytes"])
                os._exit(_run(request["folder"], request["words"], request["environ"], streams))
            for stream in streams:
                os.close(stream)
        requests.send(str(answer).encode())


def _limit(file_bytes: int | None, memory_bytes: int | None) -> None:
    """Limit this process and its children."""
    if file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    if memory_bytes is not None:
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + memory_bytes, mapped + memory_bytes))


def _run(folder: str, words: list[str], environ: dict[str, str], streams: Sequence[int]) -> int:
    """The exit status of the command line, run in this process."""
    from autotune.cli import main

    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests are run under nohup, which ignores it
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    if os.isatty(1):  # paths that Python derived from the server's environment
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", 1)
    sys.argv = ["autotune", *words]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as Python itself would exit
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    import gc
    import importlib.util

    import click

    import autotune.tuning.tune  # so that no run has to
    from autotune.__main__ import COLLECTED_AFTER
    from autotune.cli import cli
    from autotune.family.template_files import load_templates

    cli.get_help(click.Context(cli))  # loads all of them
    if importlib.util.find_spec("distributed"):
        import autotune.cluster.coordinator  # noqa: F401 - saves half a second in each run on a cluster
    load_templates()  # parse their texts once, not in every run
    gc.freeze()  # the garbage collector of a run skips these objects
    gc.set_threshold(COLLECTED_AFTER)
    serve(socket.socket(fileno=int(sys.argv[1])))
