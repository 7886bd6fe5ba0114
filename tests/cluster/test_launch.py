"""Arguments of `tune --cluster` that name no cluster."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from autotune.cluster.scheduler import address_of
from tests.cluster.chaos import study_of
from tests.fork_server import ForkedRun, ForkServer
from tests.long_run import long_run
from tests.unit.tiny import write_family


def begin(fork_server: ForkServer, folder: Path, cluster: str) -> ForkedRun:
    write_family(folder / "families")
    (folder / "small.toml").write_text(study_of(1, 4))
    words = ("--family-dir", "families", "--cluster", cluster, "--db", "all.db")
    return fork_server.start(folder, "tune", "small.toml", *words)


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        ("nowhere.invalid:1", "no scheduler at nowhere.invalid:1 ("),
        ("tcp://127.0.0.1:99999", "tcp://127.0.0.1:99999: connect(): port must be 0-65535"),
        ("tls://127.0.0.1:1", "tls://127.0.0.1:1: Dask was given no certificates; docs/cluster.md has TLS"),
        ("slurm:4", "slurm:4: start the workers with `autotune worker`, Dask's SSHCluster or dask-jobqueue, and give"),
        *long_run(("127.0.0.1:1", "no scheduler at 127.0.0.1:1 ([Errno 111]")),
    ],
)
def test_a_scheduler_that_cannot_be_reached_is_reported_in_a_line(
    fork_server: ForkServer, tmp_path: Path, cluster: str, why: str
) -> None:
    begun = time.monotonic()
    done = begin(fork_server, tmp_path, cluster).finish()
    lines = [line for line in done.err.splitlines() if not line.startswith(("note: ", "no scheduler at "))]
    assert (done.code, len(lines)) == (1, 1), done.err
    assert lines[0].startswith(f"autotune: {why}")
    assert time.monotonic() - begun < 60


def test_a_worker_connects_to_a_host_with_the_name_of_a_former_launcher() -> None:
    assert address_of("slurm:8786") == "tcp://slurm:8786"
