"""Dask's scheduler: find its address, configure it, and list its workers."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dask
from distributed import Scheduler, Security
from distributed.comm.addressing import get_address_host_port

from autotune.errors import StudyError

TTL_S = 30.0  # seconds without a heartbeat after which a worker counts as lost; Dask's default is five minutes
CONNECT_S = 10.0  # maximum wait for a scheduler's answer


def address_of(cluster: str) -> str:
    """Return a scheduler's address, which is given directly or by a scheduler file.

    Raises StudyError if `cluster` is neither.
    """
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
    """Try just once to connect to a scheduler's port. (Dask would retry until a timeout.)

    Raises OSError if nothing listens on the port, the host name is unknown or Dask's certificates can't be read,
    TimeoutError if there is no answer, and StudyError for an invalid address.
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
    """Return whether an address accepts unencrypted connections from other machines."""
    scheme, _, rest = address.partition("://")
    host = rest.rpartition(":")[0].strip("[]")
    try:
        return scheme == "tcp" and not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return scheme == "tcp" and host != "localhost"


def quiet() -> None:
    """Keep Dask from logging that a worker or scheduler was lost, which autotune reports itself."""
    dask.config.set({"distributed.admin.log-format": "%(message)s"})
    for name in ("distributed", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def prepare(dask_scheduler: Scheduler) -> None:
    """Configure a scheduler (runs there): fail a task if its worker is lost, and drop a silent worker after TTL_S.

    By default, Dask would repeat the task on up to three more workers, with outdated trials.
    """
    dask_scheduler.allowed_failures = 0
    if dask_scheduler.worker_ttl is None or dask_scheduler.worker_ttl > TTL_S:
        dask_scheduler.worker_ttl = TTL_S
        look = dask_scheduler.periodic_callbacks.get("worker-ttl")
        if look is not None:
            look.callback_time = 1e3 * TTL_S


@dataclass(frozen=True, slots=True)
class Workers:
    """A device class's workers."""

    version: str
    """version of autotune on these workers"""
    device_class: bytes
    """the device class, pickled"""
    names: tuple[str, ...]
    tasks: int
    """number of tasks that these workers run at once"""


def workers_of(key: str, *, dask_scheduler: Scheduler) -> Mapping[str, Workers]:
    """Return a scheduler's autotune workers (runs there), by their device classes' labels.

    `key` identifies autotune's entry in a worker's startup information.
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


@contextmanager
def worker_processes(address: str, workers: Sequence[Sequence[str]]) -> Iterator[tuple[subprocess.Popen[bytes], ...]]:
    """Start `autotune worker` once for each list of options. The processes end with the `with` block."""
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
