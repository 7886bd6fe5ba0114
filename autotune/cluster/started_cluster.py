"""A cluster that begins and ends with a run: a scheduler in this process, agents here, on hosts by ssh, or by Slurm.

All three are a program before the command of an agent, so that neither Dask's SSHCluster nor dask-jobqueue, which start
Dask's own workers, has an answer here.
"""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from distributed import Scheduler, Security
from distributed.utils import get_ip

from autotune.errors import StudyError, ToolchainError
from autotune.table import is_whole

_END_S = 20.0  # for an agent to end the trial at hand
_MOST = 64
"""agents that one run starts"""
_HOST = re.compile(r"[\w.@\[\]:][\w.@\[\]:-]*")
_SSH = ("ssh", "-tt", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
"""with a terminal, whose end is told to what runs there, and without questions"""
_SRUN = ("srun", "--ntasks=1")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent is started."""

    kind: str
    """`local`, `ssh` or `slurm`"""
    host: str = ""
    """of `ssh`"""

    def command(self, words: Sequence[str]) -> tuple[str, ...]:
        """What runs a command there, by the Python that runs here."""
        if self.kind == "ssh":
            return (*_SSH, self.host, shlex.join(["exec", *words]))
        return (*_SRUN, *words) if self.kind == "slurm" else tuple(words)

    def __str__(self) -> str:
        return f"{self.kind} {self.host}".strip()


def places(cluster: str) -> tuple[Place, ...]:
    """Where `local:N`, `ssh:HOST,HOST` or `slurm:N` wants agents; nowhere for a scheduler's address.

    Raises StudyError for a wrong number or host, ToolchainError where the program is missing that starts agents.
    """
    kind, _, rest = cluster.partition(":")
    if kind in ("local", "slurm") and not is_whole(rest, 1, _MOST):
        raise StudyError(f"{cluster}: expected {kind}:N with N from 1 to {_MOST}, such as {kind}:2")
    program = {"ssh": _SSH[0], "slurm": _SRUN[0]}.get(kind)
    if program and shutil.which(program) is None:
        raise ToolchainError(f"{cluster}: {program} is not on the PATH")
    if kind == "ssh":
        hosts = rest.split(",")
        wrong = [host for host in hosts if not _HOST.fullmatch(host)]
        if wrong or len(hosts) > _MOST:
            raise StudyError(f"{cluster}: expected ssh:HOST,HOST with 1 to {_MOST} hosts, each [USER@]HOST")
        return tuple(Place(kind, host) for host in hosts)
    return (Place(kind),) * int(rest) if kind in ("local", "slurm") else ()


@dataclass(frozen=True, slots=True)
class Started:
    """A scheduler, and the processes that started its agents."""

    address: str
    processes: tuple[tuple[Place, subprocess.Popen[bytes]], ...]

    def gone(self) -> str:
        """How the agents ended, once none is left; empty before."""
        codes = [(place, process.poll()) for place, process in self.processes]
        if any(code is None for _, code in codes):
            return ""
        return "; ".join(f"the agent of {place} ended with status {code}" for place, code in codes)


@asynccontextmanager
async def started_cluster(where: Sequence[Place], words: Callable[[int], Sequence[str]]) -> AsyncIterator[Started]:
    """A scheduler that has an agent at each place, given by the words after `autotune agent ADDRESS` of each number.

    It listens where the first host reaches this one, with TLS where Dask's configuration asks for it.
    """
    host = "127.0.0.1" if where[0].kind == "local" else _address_here(where[0].host)
    protocol = "tls" if Security().require_encryption else "tcp"
    async with Scheduler(host=host, port=0, protocol=protocol, dashboard=False, dashboard_address=":0") as scheduler:
        started: list[tuple[Place, subprocess.Popen[bytes]]] = []
        try:
            for number, place in enumerate(where):
                agent = [sys.executable, "-m", "autotune", "agent", scheduler.address, "--once"]
                command = place.command([*agent, *words(number)])
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
                started.append((place, process))
            yield Started(scheduler.address, tuple(started))
        finally:
            for _, process in started:
                process.terminate()
            for _, process in started:
                try:
                    process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def _address_here(host: str) -> str:
    """The address of this machine by which a host of ssh reaches it; that of the default route where none is known."""
    if host:
        said = subprocess.run(("ssh", "-G", host), capture_output=True, text=True, check=False).stdout
        name = dict(line.split(" ", 1) for line in said.splitlines() if " " in line).get("hostname", host)
        with suppress(OSError):  # a host behind another one may have no name here
            socket.getaddrinfo(name, None, socket.AF_INET)
            return str(get_ip(name))
    return str(get_ip())
