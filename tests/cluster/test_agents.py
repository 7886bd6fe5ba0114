"""Who of a scheduler's workers is an agent that the coordinator may ask."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import Client, Scheduler, Worker

from autotune import __version__
from autotune.cluster.agent import CompilingAgent
from autotune.cluster.agents import Agents
from autotune.cluster.dask_agent import AgentWorker
from autotune.cluster.messages import Collecting


def agent_of(name: str, version: str) -> CompilingAgent:
    agent = CompilingAgent(name, 1, ("null", "none", ""), lambda *_: Future(), lambda: None)
    agent.info = replace(agent.info, version=version)
    return agent


async def met() -> tuple[list[str], list[str]]:
    """The agents that were admitted of three workers, and what was said."""
    said: list[str] = []
    agents = Agents(
        wants=lambda _: True,
        admits=lambda _: True,
        asking=lambda *_: Collecting("owner", 0, frozenset(), {}, 0, 1.0),
        say=said.append,
    )
    words = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": ":0"}
    async with (
        Scheduler(port=0, **words) as scheduler,
        AgentWorker(scheduler.address, agent_of("new", __version__), "new"),
        AgentWorker(scheduler.address, agent_of("old", "0.0.1"), "old"),
        Worker(scheduler.address, nthreads=1, dashboard=False),
        Client(scheduler.address, asynchronous=True) as client,
    ):
        agents.meet(client)
        async with asyncio.timeout(30):
            while not list(agents) or not said:
                agents.meet(client)
                await asyncio.sleep(0.05)
        names = [agent.info.name for agent in agents]
        agents.forget()
    return names, said


def test_workers_without_an_agent_or_of_another_version_are_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Dask's workers keep a folder there
    names, said = asyncio.run(met())
    assert names == ["new"]
    (line,) = said
    assert "its autotune is 0.0.1" in line
    assert "install one version on all hosts" in line
