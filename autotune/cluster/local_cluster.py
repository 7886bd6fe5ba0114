"""A cluster on this machine, for trying out: a scheduler in this process and agents as processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from distributed import Scheduler

_END_S = 20.0  # for an agent to end the trial at hand


@asynccontextmanager
async def local_cluster(agents: Sequence[Sequence[str]]) -> AsyncIterator[str]:
    """The address of a scheduler that has these agents, each given by the words after `autotune agent ADDRESS`."""
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        started: list[subprocess.Popen[bytes]] = []
        try:
            for words in agents:
                command = [sys.executable, "-m", "autotune", "agent", scheduler.address, "--ends-with-parent", *words]
                started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True))
            yield scheduler.address
        finally:
            for process in started:
                process.terminate()
            for process in started:
                try:
                    process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    process.kill()
