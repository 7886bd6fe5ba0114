"""`tune --cluster local:N`, and arguments that name no cluster."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from autotune.api.device_names import devices_of_workers
from autotune.cluster.scheduler import local_workers
from autotune.errors import StudyError
from tests.cluster.chaos import evaluated, rows_of, study_of
from tests.fork_server import ForkedRun, ForkServer
from tests.long_run import long_run
from tests.processes import MARK, marked
from tests.unit.tiny import write_family


def begin(fork_server: ForkServer, folder: Path, cluster: str, *words: object, mark: str = "") -> ForkedRun:
    write_family(folder / "families")
    (folder / "small.toml").write_text(study_of(1, 4))
    words = ("--family-dir", "families", "--cluster", cluster, "--db", "all.db", *words)
    return fork_server.start(folder, "tune", "small.toml", *words, env={MARK: mark})


def test_a_study_is_tuned_by_workers_that_end_with_it(fork_server: ForkServer, tmp_path: Path) -> None:
    done = begin(fork_server, tmp_path, "local:2", "--device", "null", mark=str(tmp_path)).finish()
    assert done.code == 0, done.err
    assert evaluated(rows_of(tmp_path / "all.db")) == 4
    assert not marked(str(tmp_path))


@pytest.mark.long
def test_workers_of_a_run_that_is_killed_end(fork_server: ForkServer, tmp_path: Path) -> None:
    words = ("--device", "null:delay_ms=400", "--trials", 500)
    run = begin(fork_server, tmp_path, "local:1", *words, mark=str(tmp_path))
    until = time.monotonic() + 60
    while not evaluated(rows_of(tmp_path / "all.db")) and time.monotonic() < until:
        time.sleep(0.2)
    run.kill()
    while marked(str(tmp_path)) and time.monotonic() < until:
        time.sleep(0.2)
    assert not marked(str(tmp_path))


def test_a_device_that_does_not_open_ends_the_run(fork_server: ForkServer, tmp_path: Path) -> None:
    done = begin(fork_server, tmp_path, "local:1", "--device", "null:melt=1").finish()
    assert done.code == 1
    assert "autotune: null:melt=1: expected NAME=SHARE" in done.err
    assert done.err.splitlines()[-1] == "autotune: local:1: every worker has ended, with status 1"


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        ("nowhere.invalid:1", "no scheduler at nowhere.invalid:1 ("),
        ("tcp://127.0.0.1:99999", "tcp://127.0.0.1:99999: connect(): port must be 0-65535"),
        ("tls://127.0.0.1:1", "tls://127.0.0.1:1: Dask was given no certificates; docs/cluster.md has TLS"),
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


@pytest.mark.parametrize("cluster", ["local:0", "local:two", "local:65", "local:"])
def test_a_number_of_workers_that_is_none_is_refused(cluster: str) -> None:
    with pytest.raises(StudyError, match=f"{cluster}: expected local:N with N from 1 to 64"):
        local_workers(cluster)


@pytest.mark.parametrize("cluster", ["ssh:one,two", "slurm:4"])
def test_the_former_launchers_name_dasks_own(cluster: str) -> None:
    with pytest.raises(StudyError, match=f"{cluster}: start the workers with Dask's SSHCluster or dask-jobqueue"):
        local_workers(cluster)
    assert local_workers("127.0.0.1:8786") == local_workers("tls://one:8786") == 0


@pytest.mark.parametrize(
    ("count", "name", "each"),
    [
        (1, "cuda:0,cuda:1", ["cuda:0,cuda:1"]),
        (2, "cuda:0,cuda:1,cuda:3", ["cuda:0", "cuda:1"]),
        (2, "null:delay_ms=1", ["null:delay_ms=1", "null:delay_ms=1"]),
    ],
)
def test_workers_of_a_machine_have_a_gpu_each(count: int, name: str, each: list[str]) -> None:
    assert devices_of_workers(count, name) == each


@pytest.mark.parametrize("device", ["cuda:0", "cuda:0,cuda:0"])
def test_two_workers_on_one_gpu_are_refused(fork_server: ForkServer, tmp_path: Path, device: str) -> None:
    done = begin(fork_server, tmp_path, "local:2", "--device", device).finish()
    assert (done.code, done.err) == (
        1,
        f"autotune: 2 workers need a GPU each, and --device {device} names 1 GPU; start at most that many\n",
    )
