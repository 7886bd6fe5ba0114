"""`--cluster local:N`: a scheduler in this process and N worker processes, which end with the run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from distributed import Scheduler, Security

from autotune.errors import StudyError
from autotune.toml_table import is_whole

_END_S = 20.0  # maximum wait for a worker to end its current evaluation
_MOST = 64  # workers that one run may start


def local_workers(cluster: str) -> int:
    """N of `local:N`; 0 for the address of a scheduler. Raises StudyError for a wrong N."""
    kind, _, count = cluster.partition(":")
    if kind in ("ssh", "slurm"):
        raise StudyError(
            f"{cluster}: start the workers with Dask's SSHCluster or dask-jobqueue and give their scheduler's address; "
            f"docs/cluster.md has both"
        )
    if kind != "local":
        return 0
    if not is_whole(count, 1, _MOST):
        raise StudyError(f"{cluster}: expected local:N with N from 1 to {_MOST}, such as local:2")
    return int(count)


@contextmanager
def worker_processes(address: str, workers: Sequence[Sequence[str]]) -> Iterator[tuple[subprocess.Popen[bytes], ...]]:
    """Start `autotune worker` once for each list of options; the processes end with the block."""
    command = [sys.executable, "-m", "autotune", "worker", address]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for options in workers:
            started = subprocess.Popen([*command, *options], stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
            processes.append(started)
        yield tuple(processes)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A scheduler of this process with worker processes."""

    address: str
    processes: tuple[subprocess.Popen[bytes], ...]

    def gone(self) -> str:
        """A message with the exit statuses once all workers have ended; empty before."""
        codes = [process.poll() for process in self.processes]
        if any(code is None for code in codes):
            return ""
        return f"every worker has ended, with status {', '.join(map(str, codes))}"


@asynccontextmanager
async def local_cluster(workers: Sequence[Sequence[str]]) -> AsyncIterator[LocalCluster]:
    """A scheduler with these workers; with TLS where Dask's configuration asks for it."""
    protocol = "tls" if Security().require_encryption else "tcp"
    async with Scheduler(
        host="127.0.0.1", port=0, protocol=protocol, dashboard=False, dashboard_address=":0"
    ) as scheduler:
        with worker_processes(scheduler.address, [[*each, "--once"] for each in workers]) as processes:
            yield LocalCluster(scheduler.address, processes)
