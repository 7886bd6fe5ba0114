"""Clusters that begin and end with a run: agents by ssh and by Slurm, for which programs of their names stand here."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from autotune.api.device_names import devices_of_agents
from autotune.errors import StudyError, ToolchainError
from tests.cluster.chaos import evaluated, rows_of, study_of
from tests.fork_server import ForkedRun, ForkServer
from tests.long_run import long_run
from tests.unit.tiny import write_family

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None,
    reason="Dask is not installed: pip install 'autotune-conv[cluster]'",
)
PROGRAMS = {
    # the words before the host are ssh's options; -G asks what a host's name stands for
    "ssh": """[ "$1" = -G ] && { echo "hostname 127.0.0.1"; exit; }
while [ "${1#-}" != "$1" ]; do [ "$1" = -o ] && shift; shift; done
[ "$1" = nowhere ] && { echo "ssh: no such host" >&2; exit 255; }
echo "$1 $$" >> started.txt
shift
exec sh -c "$*"
""",
    "srun": """echo "$1 $$" >> started.txt
shift
exec "$@"
""",
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A folder with a study, and programs that start a command here."""
    (tmp_path / "programs").mkdir()
    for name, text in PROGRAMS.items():
        program = tmp_path / "programs" / name
        program.write_text(f"#!/bin/sh\n{text}")
        program.chmod(0o755)
    write_family(tmp_path / "families")
    (tmp_path / "small.toml").write_text(study_of(1, 4))
    return {"PATH": f"{tmp_path / 'programs'}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}


def begin(fork_server: ForkServer, environ: dict[str, str], folder: Path, cluster: str, *words: object) -> ForkedRun:
    words = ("--templates", "families", "--cluster", cluster, "--db", "all.db", *words)
    return fork_server.start(folder, "tune", "small.toml", *words, env=environ)


@pytest.mark.parametrize(
    ("cluster", "started"),
    [("ssh:ann@one,two", ["ann@one", "two"]), *long_run(("slurm:1", ["--ntasks=1"]))],
)
def test_a_study_is_tuned_by_agents_that_end_with_it(
    fork_server: ForkServer, environ: dict[str, str], tmp_path: Path, cluster: str, started: list[str]
) -> None:
    done = begin(fork_server, environ, tmp_path, cluster, "--device", "null").finish()
    assert done.code == 0, done.err
    lines = [line.split() for line in (tmp_path / "started.txt").read_text().splitlines()]
    assert sorted(where for where, _ in lines) == sorted(started)
    assert evaluated(rows_of(tmp_path / "all.db")) == 4
    assert not [pid for _, pid in lines if Path("/proc", pid).exists()]


@pytest.mark.long
def test_agents_of_a_run_that_is_killed_end(fork_server: ForkServer, environ: dict[str, str], tmp_path: Path) -> None:
    run = begin(fork_server, environ, tmp_path, "ssh:one", "--device", "null:delay_ms=400", "--trials", 500)
    until = time.monotonic() + 60
    while not trials(tmp_path) and time.monotonic() < until:
        time.sleep(0.2)
    run.kill()
    (_, pid) = (tmp_path / "started.txt").read_text().split()
    while Path("/proc", pid).exists() and time.monotonic() < until:
        time.sleep(0.2)
    stays = Path("/proc", pid).exists()
    if stays:
        os.kill(int(pid), signal.SIGKILL)
    assert not stays


def trials(folder: Path) -> int:
    """How many are stored; none while there is no database."""
    with suppress(Exception):
        return evaluated(rows_of(folder / "all.db"))
    return 0


def test_a_host_that_cannot_be_reached_is_told(
    fork_server: ForkServer, environ: dict[str, str], tmp_path: Path
) -> None:
    done = begin(fork_server, environ, tmp_path, "ssh:nowhere", "--device", "null").finish()
    assert done.code == 1
    assert "ssh: no such host" in done.err
    assert done.err.splitlines()[-1] == "autotune: ssh:nowhere: the agent of ssh nowhere ended with status 255"


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        ("nowhere.invalid:1", "no scheduler at nowhere.invalid:1 ("),
        ("tcp://127.0.0.1:99999", "tcp://127.0.0.1:99999: connect(): port must be 0-65535"),
        ("tls://127.0.0.1:1", "tls://127.0.0.1:1: Dask was given no certificates; docs/cluster.md has TLS"),
        *long_run(("127.0.0.1:1", "no scheduler at 127.0.0.1:1 ([Errno 111]")),
    ],
)
def test_a_scheduler_that_cannot_be_reached_is_told_in_a_line(
    fork_server: ForkServer, environ: dict[str, str], tmp_path: Path, cluster: str, why: str
) -> None:
    begun = time.monotonic()
    done = begin(fork_server, environ, tmp_path, cluster).finish()
    told = [line for line in done.err.splitlines() if not line.startswith(("note: ", "no scheduler at "))]
    assert (done.code, len(told)) == (1, 1), done.err
    assert told[0].startswith(f"autotune: {why}")
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    "cluster", ["local:0", "local:two", "slurm:65", "ssh:", "ssh:one,,two", "ssh:-oProxyCommand=x"]
)
def test_what_is_no_place_is_told(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, cluster: str) -> None:
    from autotune.cluster.started_cluster import places

    monkeypatch.setenv("PATH", environ["PATH"])
    with pytest.raises(StudyError, match=f"{cluster}: expected {cluster.partition(':')[0]}:"):
        places(cluster)
    assert places("127.0.0.1:8786") == places("tls://one:8786") == ()


@pytest.mark.parametrize(
    ("count", "name", "each"),
    [
        (1, "cuda:0,cuda:1", ["cuda:0,cuda:1"]),
        (2, "cuda:0,cuda:1,cuda:3", ["cuda:0", "cuda:1"]),
        (2, "null:delay_ms=1", ["null:delay_ms=1", "null:delay_ms=1"]),
    ],
)
def test_agents_of_a_machine_have_a_gpu_each(count: int, name: str, each: list[str]) -> None:
    assert devices_of_agents(count, name) == each


@pytest.mark.parametrize("device", ["cuda:0", "cuda:0,cuda:0"])
def test_two_agents_on_one_gpu_are_refused(
    fork_server: ForkServer, environ: dict[str, str], tmp_path: Path, device: str
) -> None:
    done = begin(fork_server, environ, tmp_path, "local:2", "--device", device).finish()
    assert (done.code, done.err) == (
        1,
        f"autotune: 2 agents need a GPU each, and --device {device} names 1 GPU: ask for no more agents than that\n",
    )


@pytest.mark.parametrize(("cluster", "program"), [("ssh:one", "ssh"), ("slurm:1", "srun")])
def test_a_program_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str, program: str
) -> None:
    from autotune.cluster.started_cluster import places

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=f"{cluster}: {program} is not on the PATH"):
        places(cluster)
