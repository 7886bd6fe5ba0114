"""Dask as this project needs it: where a scheduler is, and which of its settings matter."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from pathlib import Path

import dask
from distributed import Scheduler, Security
from distributed.comm.addressing import get_address_host_port

from autotune.errors import StudyError

TTL_S = 30.0  # seconds without a word, after which an agent is lost
"""Dask's own default is five minutes; a setting of the scheduler's that is below counts."""
CONNECT_S = 10.0  # within which a scheduler answers


def address_of(cluster: str) -> str:
    """The address of a scheduler, or that in a scheduler file. Raises StudyError for what is neither."""
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
    """Reach a scheduler's port, and no more.

    Raises OSError where nobody listens or no host has that name, TimeoutError, and StudyError for what is no address.
    """
    address = address_of(cluster)
    try:
        host, port = get_address_host_port(address)
    except ValueError as error:
        raise StudyError(f"{cluster}: {error}; expected HOST:PORT or tls://HOST:PORT") from None
    try:
        certified = Security().get_connection_args("client")["ssl_context"] is not None
    except (OSError, ValueError) as error:
        raise StudyError(f"{cluster}: Dask's certificates cannot be used ({error}); docs/cluster.md has TLS") from None
    if address.startswith("tls:") and not certified:
        raise StudyError(f"{cluster}: Dask was given no certificates; docs/cluster.md has TLS")
    async with asyncio.timeout(CONNECT_S):
        try:
            _, writer = await asyncio.open_connection(host, port)
        except (OverflowError, UnicodeError) as error:
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
    """Leave Dask's own words, of which it has many at every loss that is dealt with here, and its looks at itself."""
    dask.config.set({"distributed.admin.log-format": "%(message)s"})
    dask.config.set(
        {
            "distributed.admin.tick.interval": "1s",
            "distributed.admin.system-monitor.interval": "5s",
            "distributed.client.scheduler-info-interval": "1h",  # nobody looks at it
        }
    )
    for name in ("distributed", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


_IDLE_MS = {"tick": 1e3, "idle-timeout": 5e3, "no-workers-timeout": 5e3, "monitor": 5e3, "stealing": 5e3}
"""how often a scheduler looks at itself; as it comes, it looks 50 times a second, which takes it 17 ms of CPU time"""


def prepare(dask_scheduler: Scheduler) -> float:
    """Run on a scheduler: a lease whose agent dies comes back at once, silence is noticed, little is done for nothing.

    Returns after how many seconds without a word an agent is lost.

    Dask's default would hand a layer with a killer kernel to three more agents by itself.
    """
    dask_scheduler.allowed_failures = 0
    for name, every_ms in _IDLE_MS.items():
        if name in dask_scheduler.periodic_callbacks:
            dask_scheduler.periodic_callbacks[name].callback_time = every_ms
    if dask_scheduler.worker_ttl is None or dask_scheduler.worker_ttl > TTL_S:
        dask_scheduler.worker_ttl = TTL_S
        look = dask_scheduler.periodic_callbacks.get("worker-ttl")
        if look is not None:
            look.callback_time = 1e3 * TTL_S
    return float(dask_scheduler.worker_ttl)
