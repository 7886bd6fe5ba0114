"""Dask's scheduler: its address, the settings that autotune needs, its workers, and a scheduler of this process."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import dask
from distributed import Scheduler, Security
from distributed.comm.addressing import get_address_host_port

from autotune.errors import StudyError
from autotune.toml_table import is_whole

TTL_S = 30.0  # without a heartbeat, after which a worker counts as lost; Dask's default is five minutes
CONNECT_S = 10.0  # maximum wait for a scheduler's answer


def address_of(cluster: str) -> str:
    """The address of a scheduler, given directly or by a scheduler file. Raises StudyError for anything else."""
    if "://" in cluster:
        return cluster
    path = Path(cluster)
    if path.suffix == ".json" or path.is_file():
        try:
            return str(json.loads(path.read_text())["address"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StudyError(f"{cluster}: no scheduler file ({error}); `dask scheduler` writes one") from None
    host, _, port = cluster.rpartition(":")
    if not host or not port.isdecimal():
        raise StudyError(f"{cluster}: expected tcp://HOST:PORT, tls://HOST:PORT, HOST:PORT or a scheduler file")
    return f"tcp://{cluster}"


async def knock(cluster: str) -> None:
    """Connect to a scheduler's port once; Dask would repeat that until a timeout.

    Raises OSError if nobody listens, no host has that name or Dask's certificates cannot be read, TimeoutError, and
    StudyError for an invalid address.
    """
    address = address_of(cluster)
    try:
        if Security().get_connection_args("client")["ssl_context"] is None and address.startswith("tls:"):
            raise StudyError(f"{cluster}: Dask was given no certificates; docs/cluster.md has TLS")
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(*get_address_host_port(address))
    except (ValueError, OverflowError) as error:
        raise StudyError(f"{cluster}: {error}") from None
    writer.close()


def is_open(address: str) -> bool:
    """Whether an address takes unencrypted connections that may come from other machines."""
    scheme, _, rest = address.partition("://")
    host = rest.rpartition(":")[0].strip("[]")
    try:
        return scheme == "tcp" and not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return scheme == "tcp" and host != "localhost"


def quiet() -> None:
    """Keep Dask from logging each loss, which autotune reports in a line of its own."""
    dask.config.set({"distributed.admin.log-format": "%(message)s"})
    for name in ("distributed", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def prepare(dask_scheduler: Scheduler) -> None:
    """Run on a scheduler: fail a task whose worker is lost, and lose a silent worker after TTL_S.

    By default Dask would repeat the task on up to three more workers, with outdated trials.
    """
    dask_scheduler.allowed_failures = 0
    if dask_scheduler.worker_ttl is None or dask_scheduler.worker_ttl > TTL_S:
        dask_scheduler.worker_ttl = TTL_S
        look = dask_scheduler.periodic_callbacks.get("worker-ttl")
        if look is not None:
            look.callback_time = 1e3 * TTL_S


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of one device class."""

    version: str
    """version of their autotune"""
    device_class: bytes
    """pickled"""
    names: tuple[str, ...]
    tasks: int
    """number of tasks that they run at once"""


def workers_of(key: str, *, dask_scheduler: Scheduler) -> Mapping[str, Workers]:
    """Run on a scheduler: return its autotune workers by the label of their device class. `key` identifies their
    startup information.
    """
    by_label: dict[str, Workers] = {}
    for label, quantities in dask_scheduler.resources.items():
        workers = [dask_scheduler.workers[address] for address in quantities if address in dask_scheduler.workers]
        if workers and key in workers[0].extra:
            version, device_class = workers[0].extra[key]
            names = tuple(str(worker.name) for worker in workers)
            by_label[label] = Workers(version, device_class, names, int(sum(quantities.values())))
    return by_label


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
